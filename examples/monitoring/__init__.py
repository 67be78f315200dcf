"""Runs in which a policy learns to game its rubric, and what the monitors see: `python -m examples.monitoring`."""
