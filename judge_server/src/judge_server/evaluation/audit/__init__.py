"""Audits of runs: whether a rubric is being gamed."""
