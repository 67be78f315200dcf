"""Judging: from (response, criterion) pairs to verdicts. It has no notion of rubric names, runs or rewards."""
