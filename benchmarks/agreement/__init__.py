"""Measure how far a judge's verdicts agree with the labels of public data sets, which are read in place."""
