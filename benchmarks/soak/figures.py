"""Latency of requests before, during and after each kind of fault, and the time until it recovers."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.load import p99
from benchmarks.soak.faults import Fault

WINDOW_S, STRIDE_S = 5.0, 1.0
WITHIN_S = 10.0
CLEAR_S = 2.0
"""Requests that begin within this many seconds before a fault are not counted to the previous one."""

TIMES_CALM = 2.0
"""Latency has recovered when its 99th percentile is at most this many times that of the calm phase."""

RequestTimings = Sequence[tuple[float, float]]
"""The start of each request, in seconds since 1970, and its duration in seconds, sorted by start."""


def request_timings(lines: Sequence[Mapping[str, Any]]) -> RequestTimings:
    """Extract the timings from the trainers' logs."""
    return sorted((line["began"], line["ended"] - line["began"]) for line in lines)


def between(requests: RequestTimings, begin: float, end: float) -> list[float]:
    """Return the durations of the requests that began within this interval."""
    return [took for began, took in requests if begin <= began < end]


def recovered_s(requests: RequestTimings, fault: Fault, until: float, calm: float) -> float:
    """Return the seconds from the end of a fault until all later windows up to `until` have recovered; inf if none has.

    The 99th percentile of such a short window is its slowest request, so a single slow request restarts the count.
    """
    recovered = math.inf
    start = fault.ended
    while start + WINDOW_S <= until:
        window = between(requests, start, start + WINDOW_S)
        slow = not window or p99(window) > TIMES_CALM * calm
        recovered = math.inf if slow else min(recovered, start - fault.ended)
        start += STRIDE_S
    return recovered


def settled(requests: RequestTimings, fault: Fault, until: float, calm: float) -> bool:
    """Whether the 99th percentile from `WITHIN_S` after a fault up to `until` has recovered."""
    after = between(requests, fault.ended + WITHIN_S, until)
    return bool(after) and p99(after) <= TIMES_CALM * calm


def by_kind(requests: RequestTimings, faults: Sequence[Fault], end: float, calm: float) -> list[dict[str, Any]]:
    """Return a table row for each kind of fault."""
    rows: defaultdict[str, list[tuple[Fault, float]]] = defaultdict(list)
    ends = [later.began for later in faults[1:]] + [end]
    for fault, until in zip(faults, [at - CLEAR_S for at in ends], strict=True):
        rows[fault.kind].append((fault, until))
    return [_row(kind, requests, some, calm) for kind, some in sorted(rows.items())]


def _row(kind: str, requests: RequestTimings, some: Sequence[tuple[Fault, float]], calm: float) -> dict[str, Any]:
    under = [
        took for fault, _ in some for began, took in requests if began < fault.ended and began + took > fault.began
    ]
    after = [took for fault, until in some for took in between(requests, fault.ended + WITHIN_S, until)]
    recovered = [recovered_s(requests, fault, until, calm) for fault, until in some]
    return {
        "fault": kind,
        "times": len(some),
        "lasted s": statistics.mean(fault.ended - fault.began for fault, _ in some),
        "p99 s under it": p99(under),
        "longest s": max(under, default=math.nan),
        "p99 s from 10 s after": p99(after),
        "p99 as before then": sum(settled(requests, fault, until, calm) for fault, until in some),
        "recovered s, mean": statistics.mean(recovered),
        "recovered s, most": max(recovered),
        "none slow after 10 s": sum(seconds <= WITHIN_S for seconds in recovered),
    }
