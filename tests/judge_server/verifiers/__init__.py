"""Criteria that a program verifies."""
