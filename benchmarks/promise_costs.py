"""Measure what the protections against hostile requests cost an ordinary one, in processor time: `make bench-promises`.

Requests have 64 new responses of 2 KB under 12 criteria, as in `benchmarks.http_overhead`. One service takes a
protection away and back between turns, so that each pair of turns, one with the protection and one without, is of the
same process: two processes of the same program differ by more than a protection costs. The order of protections, and
that within a pair, is random. The service is started anew several times. The table has the median over pairs of what a
request takes more with the protection, with its 95% bootstrap interval; "nothing" takes nothing away, and shows what no
cost looks like. It needs Linux.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import scipy.stats

import judge_server.bodies
import judge_server.judging.replies
import judge_server.prompts.fencing
import judge_server.scoring.judge
import judge_server.scoring.planner
import judge_server.time_sharing
from adjudge_services import process as process_setup
from adjudge_services.cli.main import app
from benchmarks.http_overhead import PER_REQUEST, drive
from benchmarks.report import publish
from benchmarks.server import running, unused_port

IN_FLIGHT = 2
CONTROL = "nothing"
_TOGGLE_TIMEOUT_S = 10.0


class Protection(NamedTuple):
    """What takes a protection away, and what puts it back."""

    remove: Callable[[], None]
    restore: Callable[[], None]


def replaced(owner: Any, name: str, replacement: Any) -> Protection:
    """Return a protection that is an attribute, and is taken away by replacing it."""
    return Protection(partial(setattr, owner, name, replacement), partial(setattr, owner, name, getattr(owner, name)))


PROTECTIONS: dict[str, Protection] = {
    CONTROL: Protection(lambda: None, lambda: None),
    "slices of long work": replaced(judge_server.time_sharing, "SLICE_S", math.inf),
    "short garbage collections": Protection(
        partial(gc.set_threshold, 20_000, 10, 200),
        partial(gc.set_threshold, process_setup._YOUNG, process_setup._MIDDLE, process_setup._OLD),
    ),
    "threads that give way early": Protection(
        partial(sys.setswitchinterval, 0.005), partial(sys.setswitchinterval, process_setup._SWITCH_S)
    ),
    "look-ups of 64 verdicts": replaced(judge_server.scoring.judge, "_VERDICTS_PER_LOOKUP", 1024),
    "sizes checked before planning": replaced(judge_server.scoring.planner, "check_request_size", lambda *_: None),
    "strict JSON": replaced(judge_server.bodies, "strict_json", json.loads),
    "probabilities checked": replaced(judge_server.judging.replies, "_choice_mass", lambda *given: math.fsum(given[2])),
    "control tokens neutralised": replaced(judge_server.prompts.fencing, "neutralise", lambda text: text),
    "a note of who asks": replaced(judge_server.time_sharing._Projects, "note", lambda _: None),
}


class Switch:
    """Takes protections of a service in another process away and back, by a signal and two files in a folder."""

    def __init__(self, folder: Path, process: psutil.Process) -> None:
        self._wanted, self._applied = folder / "wanted", folder / "applied"
        self._process = process

    def remove(self, name: str) -> None:
        """Have the service run with all protections but this one, and return when it does."""
        self._wanted.write_text(name)
        until = time.monotonic() + _TOGGLE_TIMEOUT_S
        while not self._applied.exists() or self._applied.read_text() != name:
            if time.monotonic() > until:
                raise TimeoutError(f"the service did not take away {name!r} within {_TOGGLE_TIMEOUT_S:g} s")
            self._process.send_signal(signal.SIGUSR1)  # again and again: an event loop that waits may miss one
            time.sleep(0.02)

    @staticmethod
    def obey(folder: Path) -> None:
        """In the service: do what the files say at each signal."""
        removed = CONTROL

        def on_signal(*_: object) -> None:
            nonlocal removed
            PROTECTIONS[removed].restore()
            removed = (folder / "wanted").read_text()
            PROTECTIONS[removed].remove()
            (folder / "applied").write_text(removed)

        signal.signal(signal.SIGUSR1, on_signal)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process's threads in nanoseconds' resolution; the usual figure has 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def measure(turns: int, requests: int, seed: int) -> dict[str, list[float]]:
    """Start a service; return what each protection costs in percent, one figure for each pair of turns."""
    costs: dict[str, list[float]] = {name: [] for name in PROTECTIONS}
    draw, port = random.Random(seed), unused_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.promise_costs", "--serve-in", folder, "--port", str(port)]
        environment = os.environ | {"ADJUDGE_DATA_DIR": folder, "ADJUDGE_LEDGER": "off"}
        url = f"http://127.0.0.1:{port}"
        with running(command, environment, f"{url}/readyz") as process:
            switch = Switch(Path(folder), process)

            def seconds() -> float:
                before = processor_seconds(process.pid)
                asyncio.run(drive(url, process, requests, IN_FLIGHT))
                return processor_seconds(process.pid) - before

            seconds()  # a warm-up
            for _ in range(turns):
                for name in draw.sample(list(PROTECTIONS), len(PROTECTIONS)):
                    took: dict[bool, float] = {}
                    for complete in draw.sample([True, False], 2):
                        switch.remove(CONTROL if complete else name)
                        took[complete] = seconds()
                    costs[name].append(100 * (took[True] / took[False] - 1))
    return costs


def with_interval(costs: Sequence[float]) -> str:
    """Show the median of the costs with its 95% bootstrap interval."""
    interval = scipy.stats.bootstrap((costs,), statistics.median, vectorized=False, rng=0).confidence_interval
    return f"{statistics.median(costs):.1f} [{interval.low:.1f}, {interval.high:.1f}]"


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=3, help="how often the service is started anew")
    parser.add_argument("--turns", type=int, default=15, help="pairs of turns of each protection and start")
    parser.add_argument("--requests", type=int, default=20, help="requests per turn")
    parser.add_argument("--serve-in", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_in is not None:
        Switch.obey(given.serve_in)
        app(["serve", "--engine", "scripted://hash", "--port", str(given.port)])
    starts = [measure(given.turns, given.requests, seed) for seed in range(given.starts)]
    rows = []
    for name in PROTECTIONS:
        costs = [cost for start in starts for cost in start[name]]
        low, _, high = statistics.quantiles(costs, n=4)
        rows.append({"protection": name, "its cost, %": with_interval(costs), "quartiles": f"{low:.1f} to {high:.1f}"})
    judgements = given.requests * PER_REQUEST
    publish("promise_costs", f"{given.starts} starts, {given.turns} pairs of turns of {judgements:,} judgements", rows)


if __name__ == "__main__":
    main()
