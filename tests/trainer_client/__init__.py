"""Tests of the client: its mathematics and its HTTP side."""
