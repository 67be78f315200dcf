"""A soak test: two training runs score on a cluster whose processes are killed, paused and disconnected meanwhile.

`python -m benchmarks.soak` runs a long one; the tests run a short one.
"""
