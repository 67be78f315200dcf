"""A worker process's side of checking: what it sets up once, and what it does for each check.

Two ends are set here rather than by the parent, since they must hold without it: the kernel refuses memory above the
limit, and an alarm ends a check that outlives both its seconds and its parent, also inside native code.
"""

import logging
import resource
import signal

from judge_server.checks.check import Check
from judge_server.checks.deciding import decide
from judge_server.ports import CallFailed, Finding

LOADED_FIRST = ("__main__", "judge_server.checks.formulas", "judge_server.checks.schemas", __name__)
"""What the process that workers are forked from imports, so that a worker in place of a killed one is there at once."""

ALARM_GRACE_S = 2.0
"""How much longer than its seconds a check may run where nobody is left to stop it."""


def prepare(memory_mb: int) -> None:
    """Make a fresh process a worker: libraries loaded, memory bounded, and ended at once by SIGTERM."""
    from judge_server.checks import formulas, schemas

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    formulas.equal("1/2", "0.5")
    schemas.satisfies("{}", {"type": "object"})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for native code to return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))


def warm() -> None:
    """Do nothing: what a pool is given first, so that its processes start."""


def decide_within(check: Check, seconds: float, memory_mb: int) -> Finding | CallFailed:
    """Decide a check; the process ends if that takes much longer than its seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_S)
    try:
        return decide(check)
    except MemoryError:
        return CallFailed("engine", f"the {check.program.method} check ran out of its {memory_mb} MB of memory")
    except Exception as error:  # noqa: BLE001 - whatever a library did not foresee is no verdict
        return CallFailed("engine", f"the {check.program.method} check broke: {type(error).__name__}: {error!s:.200}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
