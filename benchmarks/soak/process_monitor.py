"""Sample the memory and open files of the hosts in a thread, and summarise their growth."""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil

from benchmarks.server import AdjudgeProcess
from benchmarks.soak.background import Background

SAMPLE_INTERVAL_S = 2.0
WARM_UP_S = 30.0
"""Minimum age of a process to be compared; caches and pools fill up after the start."""


class ProcessSample(NamedTuple):
    """Resources of a host's process at a time; `age_s` is the time since its start."""

    host: str
    at: float
    age_s: float
    resident_mb: float
    descriptors: int
    threads: int


class ProcessMonitor(Background):
    """Samples hosts until it is stopped."""

    def __init__(self, hosts: Sequence[AdjudgeProcess]) -> None:
        self.samples: list[ProcessSample] = []
        self._hosts = hosts
        super().__init__("process-monitor", SAMPLE_INTERVAL_S)

    def _act(self) -> None:
        for host in self._hosts:
            pid = host.pid
            if pid is not None:
                self._sample(host.name, pid)

    def _sample(self, name: str, pid: int) -> None:
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
    """Return a row per host: medians over the first and the last quarter of the time, without warm-up."""
    warm: defaultdict[str, list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        if sample.age_s >= WARM_UP_S:
            warm[sample.host].append(sample)
    rows = []
    for host, seen in sorted(warm.items()):
        begin, end = seen[0].at, seen[-1].at
        first = [sample for sample in seen if sample.at <= begin + (end - begin) / 4]
        last = [sample for sample in seen if sample.at >= end - (end - begin) / 4]
        rows.append(
            {
                "host": host,
                "MB, first quarter": statistics.median(sample.resident_mb for sample in first),
                "MB, last quarter": statistics.median(sample.resident_mb for sample in last),
                "MB, most": max(sample.resident_mb for sample in seen),
                "files, first quarter": int(statistics.median(sample.descriptors for sample in first)),
                "files, last quarter": int(statistics.median(sample.descriptors for sample in last)),
                "files, most": max(sample.descriptors for sample in seen),
                "threads, most": max(sample.threads for sample in seen),
            }
        )
    return rows
