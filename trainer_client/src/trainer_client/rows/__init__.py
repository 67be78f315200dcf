"""Rows of a data set, judged: read into groups, sent to the service, and answered row by row."""
