"""Tests of criteria that a program verifies."""
