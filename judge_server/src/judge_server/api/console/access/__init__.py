"""Signing in, and the keys of a project."""
