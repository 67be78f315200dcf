"""The attack scenario: PostgreSQL, Redis, one `adjudge serve` with keys, two honest runs, and the attackers.

Each cycle has a calm window, an attacked one, and one as long as the calm one beside burners, which use as much of the
processors as everything but the service did under attack, from second to second. A probe requests `/healthz`
throughout, from a thread of an otherwise idle process.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import psycopg

from benchmarks.attacks.attacker import ATTACKS, KEYS_VARIABLE, READY
from benchmarks.attacks.burners import burning, seconds_beside
from benchmarks.server import AdjudgeProcess, running_service
from benchmarks.soak.background import Background
from benchmarks.soak.cluster import SIGNING_KEY
from benchmarks.soak.expected_answers import ExpectedAnswer, ask_for_answers
from benchmarks.soak.process_monitor import ProcessMonitor, ProcessSample
from benchmarks.soak.runner import RUNS, Lines, read_lines, training_runs, written_ledger
from benchmarks.soak.stores import Stores
from benchmarks.soak.workload import RUBRIC, RULES
from judge_server.auth.keys import make_key
from rubric_store import TenantStore, migrations
from trainer_client import Client

Window = tuple[float, float]
"""Begin and end, in seconds since 1970."""

HONEST = {run: f"honest-{run}" for run in RUNS}
ATTACKERS = ("attack-1", "attack-2", "attack-3")
DESCRIPTORS = 512
"""Limit of the service's open files and connections; it allows fewer connections than one attack opens idly."""

ENGINE_CALLS = 32
"""Calls of one run that may be at the engine: half of its places, as "See why the queue is long" advises."""

_SMALL_DISK = "256m"
_CALM_DATABASE = "calm"
_PROBE_INTERVAL_S = 0.1
_PROBE_TIMEOUT_S = 30.0
_OTHERS_INTERVAL_S = 2.0
_LOAD_INTERVAL_S = 1.0


@dataclass(frozen=True)
class Plan:
    """Parameters of an attack; times in seconds.

    Attributes:
        windows: pairs of (calm, attacked) seconds, in order.
        slot_s: duration of one attack before the next ones start.
        settle_s: time after an attacked window, and after one beside burners, that counts as neither.
        senders, period_s: number of senders of each run; each sends a group of 32 verdicts per period.
    """

    windows: Sequence[tuple[float, float]]
    slot_s: float = 10.0
    settle_s: float = 10.0
    seed: int = 1
    kinds: Sequence[str] = tuple(ATTACKS)
    senders: int = 4
    period_s: float = 1.0
    engine: str = "scripted://hash?delay_s=0.02"
    settings: dict[str, str] = field(default_factory=dict)


class Probed(NamedTuple):
    """One request to `/healthz`: its time, the seconds until the answer, and the problem, if any."""

    at: float
    took: float
    problem: str | None


@dataclass
class Attacked:
    """Results of an attack: the logs of trainers and attackers, the windows, and the service's state at the end.

    `burned` holds the mean number of processors that the burners of each window used.
    """

    calm: list[Window]
    attacked: list[Window]
    loaded: list[Window]
    burned: list[float]
    lines: Lines
    attacks: Lines
    probed: list[Probed]
    others: list[tuple[float, float]]
    looks: list[ProcessSample]
    ledger: dict[str, Any]
    ended_by_itself: bool
    tracebacks: int
    small_disk: bool
    database: str
    known: Callable[[Iterable[int]], dict[int, ExpectedAnswer]]


class OtherWork(Background):
    """Measures the processor time of other programs on the machine, every two seconds until it is stopped."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        """Times, in seconds since 1970, with the number of processors busy with other work since the previous one."""
        self._before, self._at = _seconds_of_others(), time.time()
        super().__init__("other work", _OTHERS_INTERVAL_S)

    def _act(self) -> None:
        now, now_at = _seconds_of_others(), time.time()
        took = sum(max(0.0, seconds - self._before.get(pid, 0.0)) for pid, seconds in now.items())
        self.seen.append((now_at, took / (now_at - self._at)))
        self._before, self._at = now, now_at


def _seconds_of_others() -> dict[int, float]:
    """Return the processor seconds of every process other than this one and its descendants."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    seconds = {}
    for process in psutil.process_iter(["cpu_times"]):
        cpu_times = process.info["cpu_times"]
        if process.pid not in own and cpu_times is not None:
            seconds[process.pid] = cpu_times.user + cpu_times.system
    return seconds


class Probe(Background):
    """Requests `/healthz` ten times a second until it is stopped."""

    def __init__(self, url: str) -> None:
        self.probed: list[Probed] = []
        self._http = httpx2.Client(base_url=url, timeout=_PROBE_TIMEOUT_S)
        super().__init__("probe", _PROBE_INTERVAL_S)

    def stop(self) -> None:
        """Stop, and close the connection."""
        super().stop()
        self._http.close()

    def _act(self) -> None:
        at, began, problem = time.time(), time.monotonic(), None
        try:
            answer = self._http.get("/healthz")
            problem = None if answer.status_code == 200 else str(answer.status_code)
        except httpx2.HTTPError as error:
            problem = type(error).__name__
        self.probed.append(Probed(at, time.monotonic() - began, problem))


@contextmanager
def small_file_system(folder: Path) -> Iterator[bool]:
    """Mount a small tmpfs in a folder; yield whether the machine allows it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK},mode=0700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


class Service:
    """The attacked service with its stores and projects; `keys` maps projects to API keys."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.keys: dict[str, str] = {}
        self.stores = Stores(folder)
        settings = {
            "ADJUDGE_DATABASE_URL": self.stores.store_url(),
            "ADJUDGE_CACHE_URL": self.stores.redis_url(0),
            "ADJUDGE_SIGNING_SECRET": SIGNING_KEY,
            "ADJUDGE_KEYS": "required",
            "ADJUDGE_CLIENT_TIMEOUT_S": "5",
            "ADJUDGE_RUN_ENGINE_CALLS": str(ENGINE_CALLS),
        }
        arguments = ("serve", "--engine", plan.engine)
        self.host = AdjudgeProcess("service", folder, arguments, settings | plan.settings, descriptors=DESCRIPTORS)

    @property
    def spool(self) -> Path:
        """The folder of the service's ledger spool."""
        return self.folder / "service" / "ledger-spool"

    def start(self) -> None:
        """Start the stores and the service, and create projects, keys and rubrics."""
        self.stores.start()
        self.keys = asyncio.run(_create_keys(self.stores.store_url(), [*HONEST.values(), *ATTACKERS]))
        self.host.start()
        self.host.wait_until_ready()
        for project in HONEST.values():
            with Client(self.host.url, api_key=self.keys[project]) as client:
                client.publish_rubric(RUBRIC, RULES)

    def close(self) -> None:
        """Kill the service and its stores."""
        self.host.close()
        self.stores.close()

    def known(self, subjects: Iterable[int]) -> dict[int, ExpectedAnswer]:
        """Return the expected answers about honest groups: those of the same projects without attackers."""
        with psycopg.connect(self.stores.database, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {_CALM_DATABASE}")
        url = self.stores.store_url(database=_CALM_DATABASE)
        migrations.upgrade(url)
        keys = asyncio.run(_create_keys(url, HONEST.values()))
        expected: dict[int, ExpectedAnswer] = {}
        settings = {
            "ADJUDGE_DATABASE_URL": url,
            "ADJUDGE_SIGNING_SECRET": SIGNING_KEY,
            "ADJUDGE_KEYS": "required",
            "ADJUDGE_LEDGER": "off",
        }
        every = set(subjects)
        with running_service("scripted://hash", **settings) as (address, _):
            for run, project in HONEST.items():
                own = [subject for subject in every if subject // 1_000_000 == run]
                expected |= ask_for_answers(address, own, keys[project])
        return expected


async def _create_keys(url: str, projects: Iterable[str]) -> dict[str, str]:
    tenants, keys = TenantStore(url, actor=lambda: "benchmark"), {}
    try:
        for project in projects:
            key = make_key()
            await tenants.create_project(project)
            await tenants.add_key(project, key.id, key.digest, scopes=["admin"])
            keys[project] = key.text
    finally:
        await tenants.close()
    return keys


class _Attackers:
    """The process of the attackers, which waits for the windows to attack in."""

    def __init__(self, service: Service, plan: Plan, *, small_disk: bool) -> None:
        self.log = service.folder / "attacks.jsonl"
        self._plan = plan
        command = [sys.executable, "-m", "benchmarks.attacks.attacker", service.host.url, str(self.log)]
        command += ["--slot", str(plan.slot_s), "--seed", str(plan.seed), "--spool", str(service.spool)]
        command += [*(["--small-disk"] if small_disk else []), "--only", *plan.kinds]
        keys = json.dumps([service.keys[project] for project in ATTACKERS])
        environment = {**os.environ, KEYS_VARIABLE: keys}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise RuntimeError("the attackers did not start")

    def begin(self, windows: Sequence[Window]) -> None:
        """Send the attackers the windows to attack in."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(windows) + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Wait until the attackers end."""
        if self._process.wait(2 * self._plan.slot_s + 60.0):
            raise RuntimeError(f"the attackers ended with exit status {self._process.returncode}")

    def close(self) -> None:
        """Kill the attackers if they are running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


def _processors_beside(service_pid: int | None, window: Window) -> list[float]:
    """Wait until a window is over; return how many processors all but the service used in each second of it."""
    _sleep_until(window[0])
    measured: list[float] = []
    before, at = seconds_beside(service_pid), time.time()
    while at < window[1]:
        _sleep_until(min(window[1], at + _LOAD_INTERVAL_S))
        now, now_at = seconds_beside(service_pid), time.time()
        measured.append(max(0.0, now - before) / max(1e-3, now_at - at))
        before, at = now, now_at
    return measured


@contextmanager
def attack(plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[Attacked]:
    """Run an attack and yield its results while the stores still run. `say` receives progress messages."""
    with ExitStack() as closing:
        service = Service(folder, plan)
        small_disk = closing.enter_context(small_file_system(service.spool))
        closing.callback(service.close)
        say("starting PostgreSQL, Redis and the service")
        service.start()
        attackers = _Attackers(service, plan, small_disk=small_disk)
        closing.callback(attackers.close)
        calm, attacked, loaded, at = [], [], [], time.time() + plan.settle_s
        for calm_s, attacked_s in plan.windows:
            calm.append((at, at + calm_s))
            attacked.append((at + calm_s, at + calm_s + attacked_s))
            at += calm_s + attacked_s + plan.settle_s
            loaded.append((at, at + calm_s))
            at += calm_s + plan.settle_s
        probe, monitor, others = Probe(service.host.url), ProcessMonitor([service.host]), OtherWork()
        honest = {run: service.keys[project] for run, project in HONEST.items()}
        runs = training_runs(service.host.url, folder, plan.senders, plan.period_s, 0, honest)
        burned: list[float] = []
        attackers.begin(attacked)
        with runs as logs:
            for of_calm, of_attack, of_load in zip(calm, attacked, loaded, strict=True):
                calm_rate = statistics.mean(_processors_beside(service.host.pid, of_calm))
                say("attackers begin")
                busy = [max(0.0, rate - calm_rate) for rate in _processors_beside(service.host.pid, of_attack)]
                burned.append(statistics.mean(busy))
                say(f"attackers end; burners will use {burned[-1]:.2f} processors, at most {max(busy):.2f}")
                _sleep_until(of_load[0])
                with burning(busy, of_load[1] - of_load[0]):
                    _sleep_until(of_load[1])
            attackers.wait()
        probe.stop()
        monitor.stop()
        others.stop()
        alive = service.host.pid is not None
        say("waiting for the ledger")
        yield Attacked(
            calm=calm,
            attacked=attacked,
            loaded=loaded,
            burned=burned,
            lines=read_lines(*logs),
            attacks=read_lines(attackers.log),
            probed=probe.probed,
            others=others.seen,
            looks=monitor.samples,
            ledger=written_ledger(service.host.url, service.keys[ATTACKERS[0]]) if alive else {},
            ended_by_itself=not alive,
            tracebacks=service.host.log.read_text(errors="replace").count("Traceback"),
            small_disk=small_disk,
            database=service.stores.database,
            known=service.known,
        )
