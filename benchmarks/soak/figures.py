"""Seconds that requests took, before, under and after each kind of fault, and how soon they were as before."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.soak.faults import Fault

WINDOW_S, STRIDE_S = 5.0, 1.0
WITHIN_S = 10.0
CLEAR_S = 2.0
"""Requests that begin so shortly before a fault are counted with it and not with the one before."""

TIMES_CALM = 2.0
"""Requests are as before when their 99th percentile is below so many times that of the calm time."""

RequestTimings = Sequence[tuple[float, float]]
"""When each request began, in seconds since 1970, and how many seconds it took, in order."""


def request_timings(lines: Sequence[Mapping[str, Any]]) -> RequestTimings:
    """Of what trainers wrote down."""
    return sorted((line["began"], line["ended"] - line["began"]) for line in lines)


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile; NaN of nothing."""
    return sorted(seconds)[math.ceil(len(seconds) * 0.99) - 1] if seconds else math.nan


def between(requests: RequestTimings, begin: float, end: float) -> list[float]:
    """Seconds of requests that began in this time."""
    return [took for began, took in requests if begin <= began < end]


def recovered_s(requests: RequestTimings, fault: Fault, until: float, calm: float) -> float:
    """Seconds from the end of a fault to the first of the windows that are as before up to `until`; inf without one.

    The 99th percentile of so short a window is its slowest request: a single slow one later on begins it anew.
    """
    after = math.inf
    start = fault.ended
    while start + WINDOW_S <= until:
        there = between(requests, start, start + WINDOW_S)
        slow = not there or p99(there) > TIMES_CALM * calm
        after = math.inf if slow else min(after, start - fault.ended)
        start += STRIDE_S
    return after


def settled(requests: RequestTimings, fault: Fault, until: float, calm: float) -> bool:
    """Whether the 99th percentile from `WITHIN_S` after a fault up to `until` is as before."""
    after = between(requests, fault.ended + WITHIN_S, until)
    return bool(after) and p99(after) <= TIMES_CALM * calm


def by_kind(requests: RequestTimings, faults: Sequence[Fault], end: float, calm: float) -> list[dict[str, Any]]:
    """A row for each kind of fault."""
    rows: defaultdict[str, list[tuple[Fault, float]]] = defaultdict(list)
    untils = [later.began for later in faults[1:]] + [end]
    for fault, until in zip(faults, [moment - CLEAR_S for moment in untils], strict=True):
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
