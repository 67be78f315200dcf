"""Tests of the attacks on a judge."""
