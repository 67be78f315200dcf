"""The contenders and their configuration: as documented by each, with the same calls in flight and timeout."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.driving import DriverConfig
from benchmarks.peers.install import python
from benchmarks.peers.processes import Driver, driver
from benchmarks.peers.replies import Form
from benchmarks.peers.scripted_server import BATCHED
from benchmarks.server import running_service

ADJUDGE = "Adjudge"


@dataclass(frozen=True)
class PeerConfig:
    """A module of `drivers`, the form of reply that its prompt asks for, and its options.

    The option `in_flight` overrides the common number of calls in flight. `service` contains settings of the
    `adjudge serve` in front of the server; None if the contender has no service. `path` is that of the API without
    `/v1`.
    """

    name: str
    module: str
    form: Form
    options: Mapping[str, Any] = field(default_factory=dict)
    service: Mapping[str, str] | None = None
    path: str = ""


@dataclass(frozen=True)
class Terms:
    """Conditions common to all contenders. With `adjudge_in_flight` 0, Adjudge chooses the number itself."""

    root: str
    criteria: int
    in_flight: int
    adjudge_in_flight: int
    timeout_s: float
    deadline_s: float


HAND = PeerConfig("openai + gather", "gather", "yes-no", {"shape": "careful", "order": "last"})
HAND_FIRST = PeerConfig("… criterion first", "gather", "yes-no", {"shape": "careful", "order": "first"})
HAND_PLAIN = PeerConfig("… nothing caught", "gather", "yes-no", {"shape": "plain", "order": "last"})
HAND_ALONE = PeerConfig("openai, a call at a time", "gather", "yes-no", {**HAND.options, "in_flight": 1})
VERIFIERS = PeerConfig("verifiers", "verifiers", "verdicts")
INSPECT = PeerConfig("inspect_ai", "inspect_ai", "grade")
INSPECT_CACHE = PeerConfig("… its cache on", "inspect_ai", "grade", {"cache": True})
DEEPEVAL = PeerConfig("deepeval", "deepeval", "score")
AUTORUBRIC = PeerConfig("autorubric", "autorubric", "status")
OPENJUDGE = PeerConfig("OpenJudge", "openjudge", "score")
BATCHES = PeerConfig("… batch route", "adjudge", "yes-no", service={}, path=BATCHED)

SPEED = (
    PeerConfig(ADJUDGE, "adjudge", "yes-no", service={}),
    PeerConfig("… ledger off", "adjudge", "yes-no", service={"ADJUDGE_LEDGER": "off"}),
    BATCHES,
    HAND,
    HAND_FIRST,
    VERIFIERS,
    INSPECT,
    INSPECT_CACHE,
    DEEPEVAL,
    AUTORUBRIC,
    OPENJUDGE,
)
REAL = (SPEED[0], HAND_ALONE, HAND, HAND_FIRST, VERIFIERS, INSPECT, DEEPEVAL, AUTORUBRIC, OPENJUDGE)
FAULTS = (SPEED[0], BATCHES, HAND, HAND_PLAIN, VERIFIERS, INSPECT, DEEPEVAL, AUTORUBRIC, OPENJUDGE)


@asynccontextmanager
async def started(contender: PeerConfig, terms: Terms) -> AsyncIterator[Driver]:
    """Run the contender's processes within the block. Raises `PeerUnavailable`."""
    options = {"in_flight": terms.in_flight, **contender.options}
    in_flight = options.pop("in_flight")
    with ExitStack() as stack:
        interpreter = python(contender.module)
        if contender.service is not None:
            engine = f"openai+{terms.root}{contender.path}/v1?timeout_s={terms.timeout_s:g}"
            if terms.adjudge_in_flight:
                engine += f"&concurrency={terms.adjudge_in_flight}"
            service, process = stack.enter_context(running_service(engine, **contender.service))
            options |= {"service": service, "pids": [process.pid], "deadline_s": terms.deadline_s}
            interpreter = sys.executable
        setting = DriverConfig(f"{terms.root}/v1", contender.form, terms.criteria, in_flight, terms.timeout_s, options)
        async with driver(interpreter, contender.module, setting) as running:
            yield running
