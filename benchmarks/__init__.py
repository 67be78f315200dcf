"""Benchmarks: each is a command that prints a table with the machine and the commit, and writes JSON."""
