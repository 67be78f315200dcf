"""What a serving process asks of Python and of the system. Knows nothing of what it serves."""

import gc
import resource

_YOUNG, _MIDDLE, _OLD = 20_000, 10, 200
"""Objects made and not freed before the youngest are looked at; and how often that is, and the next, before the next.

With Python's own 700, 10, 10 every request sets off several collections, and while 80,000 calls wait in the queue the
oldest generation holds so much that one of them stops the process for 0.4 s: deadlines pass meanwhile. What judging
makes has no cycles of references and is freed without a collector, so it need come but rarely.
"""


_MAX_DESCRIPTORS = 65_536


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to what the system grants, 65,536 at most; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _MAX_DESCRIPTORS if hard == unlimited else min(hard, _MAX_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted if soft == unlimited else max(soft, wanted)


def tune_garbage_collector() -> None:
    """Leave what is loaded by now out of every collection of garbage, and have those of the rest far apart."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
