"""Judges in other processes, seen from an api."""
