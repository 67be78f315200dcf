"""Two training runs score at a cluster of plain processes while its hosts are killed, held and cut off from each other.

`python -m benchmarks.soak` measures it for long; tests run a short one.
"""
