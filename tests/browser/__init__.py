"""Tests that drive a real browser, and the pictures of the console that it takes for the documentation."""
