"""Measure what the protections against hostile requests cost an ordinary one, in processor time: `make bench-promises`.

Two services run as they are, and each other one without one protection. Requests have 64 new responses of 2 KB under
12 criteria, as in `benchmarks.http_overhead`. The services run at the same time and are measured in turns, in a random
order, so that a slowdown of the machine affects them alike. Two processes of the same program may differ for as long
as they live, so all services are started anew several times. A start's cost of a protection is the median
over its turns of what the complete services take more than the one without it; the table has the mean over starts with
its 95% confidence interval (Student's t). One complete service against the other shows what no cost looks like. It
needs Linux.
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

import scipy.stats

import adjudge_services.process
import judge_server.bodies
import judge_server.judging.replies
import judge_server.prompts.fencing
import judge_server.scoring.judge
import judge_server.scoring.planner
import judge_server.time_sharing
from adjudge_services.cli.main import app
from benchmarks.http_overhead import PER_REQUEST, drive
from benchmarks.report import publish
from benchmarks.server import running, unused_port

COMPLETE = "nothing"
AGAIN = "nothing, again"
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


def _without_mass_checks() -> None:
    judge_server.judging.replies._choice_mass = lambda *given: math.fsum(given[2])  # type: ignore[assignment]


def _without_neutralising() -> None:
    judge_server.prompts.fencing.neutralise = lambda text: text


def _without_noted_projects() -> None:
    judge_server.time_sharing._Projects.note = lambda _: None  # type: ignore[assignment, method-assign]


WITHOUT: dict[str, Callable[[], None]] = {
    COMPLETE: lambda: None,
    AGAIN: lambda: None,
    "slices of long work": _without_slices,
    "short garbage collections": _without_short_collections,
    "threads that give way early": _without_switches,
    "look-ups of 64 verdicts": _without_small_lookups,
    "sizes checked before planning": _without_size_checks,
    "strict JSON": _without_strict_json,
    "probabilities checked": _without_mass_checks,
    "control tokens neutralised": _without_neutralising,
    "a note of who asks": _without_noted_projects,
}


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process's threads in nanoseconds' resolution; the usual figure has 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(turns: int, requests: int, seed: int) -> dict[str, list[float]]:
    """Start every service, and return the processor's microseconds per judgement of each one, one for each turn."""
    taken: dict[str, list[float]] = {name: [] for name in WITHOUT}
    draw = random.Random(seed)
    with ExitStack() as stack:
        services = {}
        for name in draw.sample(list(WITHOUT), len(WITHOUT)):
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


def cost(taken: dict[str, list[float]], name: str) -> float:
    """Return what the complete services took more than the one without `name`, in percent: the median over turns.

    The second complete service is compared with the first one only.
    """
    complete = taken[COMPLETE]
    if name != AGAIN:
        complete = [statistics.mean(both) for both in zip(complete, taken[AGAIN], strict=True)]
    return statistics.median(100 * (own / other - 1) for own, other in zip(complete, taken[name], strict=True))


def with_interval(costs: list[float]) -> str:
    """Show the mean of the starts' costs with its 95% confidence interval."""
    low, high = scipy.stats.ttest_1samp(costs, 0.0).confidence_interval(0.95)
    return f"{statistics.mean(costs):.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=8, help="how often all services are started anew; at least 2")
    parser.add_argument("--turns", type=int, default=11, help="turns of each start")
    parser.add_argument("--requests", type=int, default=20, help="requests per turn and service")
    parser.add_argument("--serve-without", choices=list(WITHOUT), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_without is not None:
        WITHOUT[given.serve_without]()
        app(["serve", "--engine", "scripted://hash", "--port", str(given.port)])
    starts = [measure(given.turns, given.requests, seed) for seed in range(given.starts)]
    rows = [
        {
            "without": name,
            "microseconds per judgement": statistics.median(one for taken in starts for one in taken[name]),
            "its cost, %": "" if name == COMPLETE else with_interval([cost(taken, name) for taken in starts]),
        }
        for name in WITHOUT
    ]
    judgements = given.requests * PER_REQUEST
    publish("promise_costs", f"{given.starts} starts, {given.turns} turns each of {judgements:,} judgements", rows)


if __name__ == "__main__":
    main()
