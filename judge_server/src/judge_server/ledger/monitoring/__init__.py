"""Monitors of training runs: the signals recorded for them, what they find, and the gold judge they compare with."""
