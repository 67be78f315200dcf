"""Reproduce the papers' figures and numbers, by simulation or from their own tables."""
