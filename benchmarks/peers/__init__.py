"""Adjudge beside what people use today: the same responses and criteria, the same server underneath, in one run."""
