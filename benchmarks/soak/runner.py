"""Run a soak from start to end: measure the capacity, run a calm phase, inject faults, and collect the results."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.soak.bulk import Bulk, FinishedOperation
from benchmarks.soak.cluster import Cluster
from benchmarks.soak.faults import FAULTS, Fault, order, strike
from benchmarks.soak.process_monitor import ProcessMonitor, ProcessSample
from benchmarks.soak.workload import AT_A_JUDGE, CRITERIA, RUBRIC, RULES, VERDICTS
from trainer_client import Client

RUNS = (1, 2)
_ANSWERED_WITHIN_S = 150.0
_WRITTEN_WITHIN_S = 300.0

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """Parameters of a soak; times in seconds.

    The load is `share` of the measured capacity; operations make up `bulk_share` of the capacity. A fault begins every
    `interval_s`, but not sooner than `rest_s` after the end of the previous one.
    """

    faults: int
    interval_s: float = 30.0
    hold_s: float = 6.0
    rest_s: float = 15.0
    seed: int = 1
    kinds: Sequence[str] = tuple(FAULTS)
    capacity_s: float = 15.0
    calm_s: float = 60.0
    share: float = 0.7
    bulk_share: float = 0.1
    bulk_interval_s: float = 15.0
    senders: int = 12
    engine: str = f"scripted://hash?delay_s=0.02&concurrency={AT_A_JUDGE // CRITERIA}"
    settings: dict[str, str] = field(default_factory=dict)


@dataclass
class SoakResult:
    """Results of a soak; times in seconds since 1970.

    `lines` are the trainers' logs, without the capacity measurement. `unwritten` lists problems of the ledgers that
    were not written completely.
    """

    capacity: float
    calm: tuple[float, float]
    faults: list[Fault]
    end: float
    lines: Lines
    operations: list[FinishedOperation]
    refused: list[str]
    samples: list[ProcessSample]
    unwritten: list[str]
    database: str
    kills: list[float]


@contextmanager
def soak(plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[SoakResult]:
    """Run a soak and yield its results while the stores still run. `say` receives progress messages."""
    with ExitStack() as stack:
        say("starting two apis, two judges, two workers, PostgreSQL and Redis")
        cluster = Cluster(folder, plan.engine, plan.settings)
        stack.callback(cluster.close)
        cluster.start()
        with Client(cluster.url) as client:
            client.publish_rubric(RUBRIC, RULES)
        say(f"measuring the capacity for {plan.capacity_s:g} s")
        capacity = _capacity(cluster, plan)
        groups = max(1, round(plan.bulk_share * capacity * plan.bulk_interval_s / VERDICTS))
        period = plan.senders * len(RUNS) * VERDICTS / (capacity * (plan.share - plan.bulk_share))
        say(f"capacity {capacity:,.0f} verdicts/s; calm phase of {plan.calm_s:g} s at {plan.share:.0%} of it")
        bulk = stack.enter_context(closing(Bulk(cluster.url, groups, plan.bulk_interval_s)))
        with training_runs(cluster.url, folder, plan.senders, period, 0) as logs:
            time.sleep(min(5.0, plan.calm_s / 2))
            monitor = ProcessMonitor(cluster.hosts)
            begin = time.time()
            time.sleep(plan.calm_s)
            calm = (begin, time.time())
            faults = list(_faults(cluster, plan, say))
            end = time.time()
            bulk.stop()
            say("waiting for the last requests")
        monitor.stop()
        say("waiting for operations and the ledger")
        yield SoakResult(
            capacity=capacity,
            calm=calm,
            faults=faults,
            end=end,
            lines=read_lines(*logs),
            operations=bulk.ended(_ANSWERED_WITHIN_S),
            refused=bulk.refused,
            samples=monitor.samples,
            unwritten=_ledger_problems(cluster),
            database=cluster.stores.database,
            kills=[kill for api in cluster.apis.values() for kill in api.kills],
        )


def _faults(cluster: Cluster, plan: Plan, say: Callable[[str], None]) -> Iterator[Fault]:
    for kind, n in islice(order(plan.seed, plan.kinds), plan.faults):
        next_at = time.monotonic() + plan.interval_s
        fault = strike(cluster, kind, n, plan.hold_s)
        say(f"{kind}: {fault.victim}, {fault.ended - fault.began:.1f} s")
        yield fault
        time.sleep(max(plan.rest_s, next_at - time.monotonic()))


def _capacity(cluster: Cluster, plan: Plan) -> float:
    """Measure the verdicts per second of trainers that send as fast as they can; leave out the first seconds."""
    with training_runs(cluster.url, cluster.folder, plan.senders, 0.0, 500_000) as logs:
        time.sleep(plan.capacity_s)
        end = time.time()
    begin = end - plan.capacity_s * 0.7
    answered = [line for line in read_lines(*logs) if begin <= line["ended"] < end and "error" not in line]
    if not answered:
        raise RuntimeError(f"no request was answered in {plan.capacity_s:g} s; the logs are in {cluster.folder}")
    return len(answered) * VERDICTS / (end - begin)


@contextmanager
def training_runs(
    url: str, folder: Path, senders: int, period_s: float, first: int, keys: Mapping[int, str] | None = None
) -> Iterator[list[Path]]:
    """Score on a service within the block, with one process per run; yield the log files of the runs.

    At the end of the block, wait until requests in flight are answered. `keys` are the runs' API keys, if the service
    requires keys.
    """
    logs = [folder / f"run-{run}-{first}.jsonl" for run in RUNS]
    processes = []
    try:
        for run, log in zip(RUNS, logs, strict=True):
            options = ["--number", run, "--first", first + 1, "--senders", senders, "--period", period_s]
            command = [sys.executable, "-m", "benchmarks.soak.trainer", url, str(log), *map(str, options)]
            key = {} if keys is None else {"ADJUDGE_API_KEY": keys[run]}
            processes.append(
                subprocess.Popen([*command, *(["--inline"] if run == 1 else [])], env={**os.environ, **key})
            )
        yield logs
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            if process.wait(_ANSWERED_WITHIN_S):
                raise RuntimeError(f"a training run ended with exit status {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _ledger_problems(cluster: Cluster) -> list[str]:
    """Wait until every api has written its ledger; report apis that did not finish or lost entries."""
    states = {api.name: written_ledger(api.url) for api in cluster.apis.values()}
    return [
        f"the ledger of {name}: {state}"
        for name, state in states.items()
        if state["waiting"] or state["lost"] or state["spool_bytes"]
    ]


def written_ledger(url: str, api_key: str = "") -> dict[str, Any]:
    """Wait until a service has written its ledger, or has not in time; return the ledger's state."""
    until = time.monotonic() + _WRITTEN_WITHIN_S
    with httpx2.Client(timeout=60.0, headers={"Authorization": f"Bearer {api_key}"} if api_key else {}) as http:
        while True:
            state: dict[str, Any] = http.get(f"{url}/v1/ledger").json()
            if not (state["waiting"] or state["spool_bytes"]) or time.monotonic() > until:
                return state
            time.sleep(0.2)


def read_lines(*logs: Path) -> Lines:
    """Read the lines of JSONL logs."""
    return [json.loads(line) for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
