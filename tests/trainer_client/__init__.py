"""Tests of the trainer client: its reward mathematics and its HTTP side."""
