"""An attack test: two honest training runs score while attackers send the most expensive and malformed requests known.

`python -m benchmarks.attacks` runs it for half an hour; a test runs a short version.
"""
