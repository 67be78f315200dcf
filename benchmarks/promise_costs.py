"""Measure what the protections against hostile requests cost an ordinary one, in processor time: `make bench-promises`.

One service runs as it is, and each other one without one protection. Requests have 64 new responses of 2 KB under 12
criteria, as in `benchmarks.http_overhead`. The services run at the same time and are measured in turns, in a random
order, so that a slowdown of the machine affects them alike; a cost is the median over turns of what the complete
service takes more than the other one. It needs Linux.
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import adjudge_services.process
import judge_server.bodies
import judge_server.scoring.judge
import judge_server.scoring.planner
import judge_server.time_sharing
from adjudge_services.cli.main import app
from benchmarks.http_overhead import PER_REQUEST, drive
from benchmarks.report import publish
from benchmarks.server import running, unused_port

COMPLETE = "nothing"
IN_FLIGHT = 2


def _without_slices() -> None:
    judge_server.time_sharing.SLICE_S = math.inf


def _without_short_collections() -> None:
    process = adjudge_services.process
    process._YOUNG, process._MIDDLE, process._OLD = 20_000, 10, 200


def _without_switches() -> None:
    adjudge_services.process._SWITCH_S = 0.005


def _without_small_lookups() -> None:
    judge_server.scoring.judge._VERDICTS_PER_LOOKUP = 1024


def _without_size_checks() -> None:
    judge_server.scoring.planner.check_request_size = lambda *_: None


def _without_strict_json() -> None:
    judge_server.bodies.strict_json = json.loads  # type: ignore[attr-defined, assignment]


WITHOUT: dict[str, Callable[[], None]] = {
    COMPLETE: lambda: None,
    "slices of long work": _without_slices,
    "short garbage collections": _without_short_collections,
    "threads that give way early": _without_switches,
    "look-ups of 64 verdicts": _without_small_lookups,
    "sizes checked before planning": _without_size_checks,
    "strict JSON": _without_strict_json,
}


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process's threads in nanoseconds' resolution; the usual figure has 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(turns: int, requests: int) -> dict[str, list[float]]:
    """Return the microseconds of the processor per judgement of each service, one for each turn."""
    taken: dict[str, list[float]] = {name: [] for name in WITHOUT}
    draw = random.Random(1)
    with ExitStack() as stack:
        services = {}
        for name in WITHOUT:
            port = unused_port()
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            command = [sys.executable, "-m", "benchmarks.promise_costs", "--serve-without", name, "--port", str(port)]
            environment = os.environ | {"ADJUDGE_DATA_DIR": folder, "ADJUDGE_LEDGER": "off"}
            url = f"http://127.0.0.1:{port}"
            services[name] = url, stack.enter_context(running(command, environment, f"{url}/readyz"))
        for turn in range(turns + 1):
            for name in draw.sample(list(services), len(services)):
                url, process = services[name]
                before = processor_seconds(process.pid)
                asyncio.run(drive(url, process, requests, IN_FLIGHT))
                if turn:  # the first turn is a warm-up
                    seconds = processor_seconds(process.pid) - before
                    taken[name].append(seconds * 1e6 / (requests * PER_REQUEST))
    return taken


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--requests", type=int, default=20, help="requests per turn and service")
    parser.add_argument("--serve-without", choices=list(WITHOUT), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_without is not None:
        WITHOUT[given.serve_without]()
        app(["serve", "--engine", "scripted://hash", "--port", str(given.port)])
    taken = measure(given.turns, given.requests)
    rows = []
    for name, own in taken.items():
        costs = [100 * (complete / without - 1) for complete, without in zip(taken[COMPLETE], own, strict=True)]
        low, middle, high = statistics.quantiles(costs, n=4)
        rows.append(
            {
                "without": name,
                "microseconds per judgement": statistics.median(own),
                "its cost, %": middle,
                "quartiles, %": f"{low:.1f} to {high:.1f}",
            }
        )
    publish("promise_costs", f"{given.turns} turns of {given.requests * PER_REQUEST:,} judgements", rows)


if __name__ == "__main__":
    main()
