"""Judges: those that are loaded, and the one that a fingerprint names."""
