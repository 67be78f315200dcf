"""Tests of logs and traces, and of what they never contain."""
