"""A worker process's side of checking: what it sets up once, and what it does for each check.

Two ends are set here rather than by the parent, since they must hold without it: the kernel refuses memory above the
limit, and an alarm ends a check that outlives both its seconds and its parent, also inside native code. A first try is
interrupted here too, after its seconds of the processor, so that the process is still there for the next check.
"""

import logging
import re
import resource
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from judge_server.checks.check import Check
from judge_server.checks.deciding import decide
from judge_server.ports import CallFailure, JudgeResult

PRELOADED_MODULES = ("__main__", "judge_server.checks.formulas", "judge_server.checks.schemas", __name__)
"""What the process that workers are forked from imports, so that a worker in place of a killed one is there at once."""

ALARM_GRACE_S = 2.0
"""How much longer than its seconds a check may run where nobody is left to stop it."""


def init_worker(memory_mb: int) -> None:
    """Make a fresh process a worker: libraries loaded, memory bounded, and ended at once by SIGTERM."""
    from judge_server.checks import formulas, schemas

    logging.getLogger("math_verify").setLevel(logging.ERROR)
    formulas.equal("1/2", "0.5")
    schemas.satisfies("{}", {"type": "object"})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler would wait for native code to return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGVTALRM, _interrupt)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))


def warm() -> None:
    """Do nothing: what a pool is given first, so that its processes start."""


class TryTimeExceeded(BaseException):
    """The seconds of a first try are over. No library may take it for an error of its own."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TryTimeExceeded


@contextmanager
def _time_limits(seconds: float, first_try_s: float | None) -> Iterator[None]:
    """End the process where the block takes much longer than `seconds`, and raise `TryTimeExceeded` after `first_s`."""
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_S)
    signal.setitimer(signal.ITIMER_VIRTUAL, first_try_s or 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def decide_within(
    check: Check, seconds: float, memory_mb: int, first_try_s: float | None
) -> JudgeResult | CallFailure | None:
    """Decide a check; None where `first_s` seconds of the processor were not enough."""
    try:
        with _time_limits(seconds, first_try_s):
            return decide(check)
    except TryTimeExceeded:
        return None
    except MemoryError:
        return CallFailure("engine", f"the {check.program.method} check ran out of its {memory_mb} MB of memory")
    except Exception as error:  # noqa: BLE001 - whatever a library did not foresee is no verdict
        return CallFailure("engine", f"the {check.program.method} check broke: {type(error).__name__}: {error!s:.200}")


def compile_within(patterns: Sequence[str], seconds: float, compile_s: float) -> tuple[int, str] | None:
    """Compile regular expressions for `compile_s` of the processor; the place of the first unusable one, and why.

    The process ends if that takes much longer than `seconds`.
    """
    place = -1
    try:
        with _time_limits(seconds, compile_s):
            for pattern in patterns:
                place += 1
                re.compile(pattern)
    except TryTimeExceeded:
        return place, f"this regular expression takes longer than {compile_s:g} s to compile; write a simpler one"
    except MemoryError:
        return place, "this regular expression takes too much memory to compile; write a simpler one"
    except (re.error, OverflowError, RecursionError) as error:
        return place, f"this is not a regular expression: {error}"
    finally:
        re.purge()
    return None
