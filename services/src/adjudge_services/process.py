"""What a serving process asks of Python itself, once it stands. Knows nothing of what it serves."""

import gc

_YOUNG, _MIDDLE, _OLD = 20_000, 10, 200
"""Objects made and not freed before the youngest are looked at; and how often that is, and the next, before the next.

With Python's own 700, 10, 10 every request sets off several collections, and while 80,000 calls wait in the queue the
oldest generation holds so much that one of them stops the process for 0.4 s: deadlines pass meanwhile. What judging
makes has no cycles of references and is freed without a collector, so it need come but rarely.
"""


def collect_garbage_rarely() -> None:
    """Leave what is loaded by now out of every collection of garbage, and have those of the rest far apart."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
