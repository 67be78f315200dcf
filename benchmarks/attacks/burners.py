"""Neutral load: processes that compute and send nothing, to separate what an attack does from what its clients take.

Attackers, checks, PostgreSQL and the service share the machine's processors. A request that is twice as slow because
the processors are busy says nothing about the service. So the honest requests are also timed beside burners that use
as much of the processors as everything but the service did under attack, second by second: an average would hide the
seconds in which both processors were busy, and those decide a 99th percentile.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

NICE = 5
_PERIOD_S = 0.02
_HONEST = "benchmarks.soak.trainer"


def seconds_beside(service_pid: int | None) -> float:
    """Return the processor seconds so far of this process's descendants, except for the service and the honest runs."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, command = process.cpu_times(), process.cmdline()
        except psutil.NoSuchProcess:
            continue
        own = 0.0 if process.pid == service_pid or _HONEST in command else times.user + times.system
        total += own + times.children_user + times.children_system
    return total


@contextmanager
def burning(processors: Sequence[float], duration_s: float) -> Iterator[None]:
    """Keep as many processors busy, at the attackers' priority, as was measured.

    The measurements are replayed in order, each for an equal part of `duration_s`, or until the block ends.
    """
    count = os.cpu_count() or 1
    shares = [min(1.0, max(0.0, busy) / count) for busy in processors]
    step_s = duration_s / max(1, len(shares))
    command = [sys.executable, "-m", "benchmarks.attacks.burners", str(step_s), json.dumps(shares)]
    burners = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def burn(step_s: float, shares: Sequence[float]) -> None:
    """Use each share of one processor for `step_s` seconds, one after the other."""
    until = time.monotonic()
    for share in shares:
        until += step_s
        while (period_began := time.monotonic()) < until:
            began = time.process_time()
            while time.process_time() - began < share * _PERIOD_S and time.monotonic() < until:
                sum(range(1000))
            time.sleep(max(0.0, period_began + _PERIOD_S - time.monotonic()))


def main() -> None:
    """Burn from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step_s", type=float)
    parser.add_argument("shares", type=json.loads)
    given = parser.parse_args()
    os.nice(NICE)
    burn(given.step_s, given.shares)


if __name__ == "__main__":
    main()
