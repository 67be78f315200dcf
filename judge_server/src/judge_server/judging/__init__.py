"""Judging: from (response, criterion) pairs to findings, without knowing rubrics' names, runs or rewards."""
