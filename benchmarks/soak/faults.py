"""Faults of a cluster: kills, pauses, partitions and restarts, in an order determined by a seed.

A fault ends when its victim works as before: links are healed, processes ready again.
"""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

from tests.fixtures.postgres_process import PostgresProcess
from tests.fixtures.redis_process import RedisProcess

from benchmarks.server import AdjudgeProcess
from benchmarks.soak.cluster import NUMBERS, Cluster
from benchmarks.soak.links import State

SLOW_S = 0.15
"""Delay that a slow link adds to each chunk of data."""


class Fault(NamedTuple):
    """A fault that occurred: its kind, its victim, and its start and end in seconds since 1970."""

    kind: str
    victim: str
    began: float
    ended: float


@contextmanager
def killed(host: AdjudgeProcess) -> Iterator[None]:
    """Kill a host, and start it again at the end of the block."""
    host.kill()
    yield
    host.start()
    host.wait_until_ready()


@contextmanager
def held(host: AdjudgeProcess) -> Iterator[None]:
    """Pause a host with SIGSTOP; its connections stay open."""
    host.send(signal.SIGSTOP)
    yield
    host.send(signal.SIGCONT)


@contextmanager
def lost(store: PostgresProcess | RedisProcess) -> Iterator[None]:
    """Kill a store, and start it again with the data that it persists."""
    store.kill()
    yield
    store.start()


@contextmanager
def parted(cluster: Cluster, link: str, state: State, delay_s: float = 0.0, *, forget: bool = False) -> Iterator[None]:
    """Change the state of a link, then reopen it: for all connections, or with `forget` only for new ones."""
    cluster.network.become(link, state, delay_s)
    yield
    cluster.network.become(link, "open", forget=forget)


@contextmanager
def replaced(hosts: Sequence[AdjudgeProcess]) -> Iterator[None]:
    """Restart all hosts one after another, each when the previous one is ready."""
    for host in hosts:
        host.stop()
        host.start()
        host.wait_until_ready()
    yield


FaultFactory = Callable[[Cluster, int], tuple[str, AbstractContextManager[None]]]
"""Takes a cluster and the number (1 or 2) of the host to hit; returns the victim's name and the fault."""


def _link(state: State, name: str, delay_s: float = 0.0, *, forget: bool = False) -> FaultFactory:
    def begin(cluster: Cluster, n: int) -> tuple[str, AbstractContextManager[None]]:
        link = name.format(n=n)
        return link, parted(cluster, link, state, delay_s, forget=forget)

    return begin


def _host(what: Callable[[AdjudgeProcess], AbstractContextManager[None]], role: str) -> FaultFactory:
    def begin(cluster: Cluster, n: int) -> tuple[str, AbstractContextManager[None]]:
        hosts: dict[int, AdjudgeProcess] = getattr(cluster, role)
        return hosts[n].name, what(hosts[n])

    return begin


_CUT, _FROZEN = partial(_link, "cut"), partial(_link, "frozen")
_LOST = partial(_link, "frozen", forget=True)

NOTHING = "nothing"
"""A control: counted like a fault, but nothing is done."""

FAULTS: dict[str, FaultFactory] = {
    NOTHING: lambda _, __: ("nobody", nullcontext()),
    "a judge killed": _host(killed, "judges"),
    "an api killed": _host(killed, "apis"),
    "a worker killed": _host(killed, "workers"),
    "a judge held": _host(held, "judges"),
    "an api held": _host(held, "apis"),
    "a worker held": _host(held, "workers"),
    "Redis killed": lambda cluster, _: ("redis", lost(cluster.stores.redis)),
    "PostgreSQL killed": lambda cluster, _: ("postgres", lost(cluster.stores.postgres)),
    "a judge cut off": _CUT("apis to judge-{n}"),
    "a judge behind a frozen link": _FROZEN("apis to judge-{n}"),
    "a judge behind a slow link": _link("open", "apis to judge-{n}", SLOW_S),
    "an api cut off from PostgreSQL": _CUT("api-{n} to postgres"),
    "an api, PostgreSQL frozen": _FROZEN("api-{n} to postgres"),
    "an api, Redis frozen": _FROZEN("api-{n} to redis"),
    "a judge, Redis frozen": _FROZEN("judge-{n} to redis"),
    "a worker cut off from the apis": _CUT("worker-{n} to apis"),
    "a worker, apis frozen": _FROZEN("worker-{n} to apis"),
    "a worker, PostgreSQL frozen": _FROZEN("worker-{n} to postgres"),
    "a worker cut off from Redis": _CUT("worker-{n} to redis"),
    "a worker, Redis frozen": _FROZEN("worker-{n} to redis"),
    "a judge, connections lost": _LOST("apis to judge-{n}"),
    "an api, those to PostgreSQL lost": _LOST("api-{n} to postgres"),
    "an api, those to Redis lost": _LOST("api-{n} to redis"),
    "a worker, those to PostgreSQL lost": _LOST("worker-{n} to postgres"),
    "a worker, those to Redis lost": _LOST("worker-{n} to redis"),
    "the trainers cut off": _CUT("trainers to apis"),
    "the trainers behind a frozen link": _FROZEN("trainers to apis"),
    "a rolling restart": lambda cluster, _: ("all", replaced(cluster.hosts)),
}


def judges_gone(faults: Sequence[Fault]) -> int:
    """Count the faults that made a judge unavailable to all or some apis."""
    return sum("judge" in fault.kind or fault.victim == "all" for fault in faults)


def order(seed: int, kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield endless (kind, host number) pairs: each kind once in random order, then again in another order."""
    draw = random.Random(seed)
    while True:
        for kind in draw.sample(kinds, len(kinds)):
            yield kind, draw.choice(NUMBERS)


def strike(cluster: Cluster, kind: str, n: int, for_s: float) -> Fault:
    """Inject a fault of this kind for some seconds."""
    began = time.time()
    victim, fault = FAULTS[kind](cluster, n)
    with fault:
        time.sleep(for_s)
    return Fault(kind, victim, began, time.time())
