"""Adjudge's tests, run from the repository's root with `pytest`."""
