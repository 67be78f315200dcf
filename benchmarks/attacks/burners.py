"""Neutral load: processes that compute and send nothing, to separate what an attack does from what its clients take.

Attackers, checks, PostgreSQL and the service share the machine's processors. A request that is twice as slow because
the processors are busy says nothing about the service. So the honest requests are also timed beside burners that use
as much of the processors as everything but the service did under attack.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
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
def burning(processors: float) -> Iterator[None]:
    """Keep this many processors busy during the block, at the attackers' priority."""
    count = os.cpu_count() or 1
    share = min(1.0, max(0.0, processors) / count)
    command = [sys.executable, "-m", "benchmarks.attacks.burners", str(share)]
    burners = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def burn(share: float) -> None:
    """Use a share of one processor until the process is killed."""
    while True:
        period_began, began = time.monotonic(), time.process_time()
        while time.process_time() - began < share * _PERIOD_S:
            sum(range(1000))
        time.sleep(max(0.0, period_began + _PERIOD_S - time.monotonic()))


def main() -> None:
    """Burn from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("share", type=float)
    given = parser.parse_args()
    os.nice(NICE)
    burn(given.share)


if __name__ == "__main__":
    main()
