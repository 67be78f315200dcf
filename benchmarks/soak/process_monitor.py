"""Memory and open files of the hosts, looked at every other second in a thread, and whether they stay flat."""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

from benchmarks.soak.hosts import AdjudgeProcess

EVERY_S = 2.0
GROWN_UP_S = 30.0
"""How old a process is before it is compared: a start fills what stays full."""


class ProcessSample(NamedTuple):
    """What a host's process had at a moment; `age_s` since it was started."""

    host: str
    at: float
    age_s: float
    resident_mb: float
    descriptors: int
    threads: int


class ProcessMonitor:
    """Looks at hosts until it is stopped."""

    def __init__(self, hosts: Sequence[AdjudgeProcess]) -> None:
        self.samples: list[ProcessSample] = []
        self._hosts = hosts
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            for host in self._hosts:
                pid = host.pid
                if pid is not None:
                    self._look(host.name, pid)

    def _look(self, name: str, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                now = time.time()
                memory = process.memory_info().rss / 2**20
                age = now - process.create_time()
                self.samples.append(ProcessSample(name, now, age, memory, process.num_fds(), process.num_threads()))
        except psutil.Error:  # killed meanwhile
            pass


def growth_rows(samples: Sequence[ProcessSample]) -> list[dict[str, Any]]:
    """For each host, its figures in the first and the last quarter of the time: medians over grown-up processes."""
    grown: defaultdict[str, list[ProcessSample]] = defaultdict(list)
    for look in samples:
        if look.age_s >= GROWN_UP_S:
            grown[look.host].append(look)
    rows = []
    for host, seen in sorted(grown.items()):
        begin, end = seen[0].at, seen[-1].at
        first = [look for look in seen if look.at <= begin + (end - begin) / 4]
        last = [look for look in seen if look.at >= end - (end - begin) / 4]
        rows.append(
            {
                "host": host,
                "MB, first quarter": statistics.median(look.resident_mb for look in first),
                "MB, last quarter": statistics.median(look.resident_mb for look in last),
                "MB, most": max(look.resident_mb for look in seen),
                "files, first quarter": int(statistics.median(look.descriptors for look in first)),
                "files, last quarter": int(statistics.median(look.descriptors for look in last)),
                "files, most": max(look.descriptors for look in seen),
                "threads, most": max(look.threads for look in seen),
            }
        )
    return rows
