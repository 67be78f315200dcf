"""Tests that drive a real browser, and the console screenshots for the documentation."""
