"""The ledger has each group of an operation once, with the operation's own answer, however often it is retried."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adjudge_services import judges, wiring
from adjudge_services.settings import Settings
from judge_server.engines.scripted import ScriptedEngine, always
from judge_server.ledger import Recorder
from judge_server.operations.handlers.base import OperationHandler, RetryableChunkError
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.ports.operations import WILL_RETRY_HEADER
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store.operations.rows import MAX_ATTEMPTS, ChunkRef, LeasedChunk
from tests.fixtures.migrated import NewSQLite
from tests.services.operations.cluster import CRITERIA, groups
from tests.services.operations.in_process import recorded, serving_within

VERDICTS = 2 * 8 * len(CRITERIA)

pytestmark = pytest.mark.parametrize("name", ["score", "evaluate_judge"])


class Script:
    """An engine that says yes; while it is `broken`, it fails for one response of sixteen."""

    broken = True

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        if self.broken and "Answer 1.3" in batch.shared + call.question:
            return CallFailure("engine", "not now")
        return always(True)(batch, call)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """The answers of the service's engine."""
    made = Script()
    monkeypatch.setattr(judges, "build_engine", lambda *_: ScriptedEngine(made))
    return made


@pytest.fixture
async def transport(script: Script, data_dir: Path, new_sqlite: NewSQLite) -> AsyncIterator[httpx2.ASGITransport]:
    """A service that records what it judges, as a transport."""
    new_sqlite(data_dir / "adjudge.db")
    async with serving_within("scripted://yes") as made:
        yield made


@pytest.fixture
async def http(transport: httpx2.ASGITransport) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def kind(transport: httpx2.ASGITransport, name: Any) -> OperationHandler:
    """The handler that a worker uses for chunks."""
    client_factory = wiring.client_factory("http://localhost", Settings(), transport=transport)
    return wiring.build_handlers(client_factory, None, None, None, None)[name]  # type: ignore[arg-type]


def work(name: Any, attempt: int, **request: Any) -> LeasedChunk:
    """Return an attempt at a chunk of two groups."""
    labels = {"labels": [{"right": True}] * 8} if name == "evaluate_judge" else {}
    body = {"first": 0, "groups": [group | labels for group in groups(2)]}
    asked = {"rubric": {"criteria": CRITERIA}, "run": "r", **request}
    return LeasedChunk(ChunkRef(PROJECT_ID, "op-1", 0), name, asked, body, 2, attempt, "w")


async def tried(kind: OperationHandler, name: str, attempts: int, **request: Any) -> None:
    """Make this many attempts, each of which leaves its chunk undone."""
    for attempt in range(1, attempts + 1):
        with pytest.raises(RetryableChunkError):
            await kind.run(work(name, attempt, **request))


async def test_failed_attempts_and_answers_lost_by_a_killed_worker_are_recorded_once(
    http: httpx2.AsyncClient, kind: OperationHandler, name: str, script: Script
) -> None:
    await tried(kind, name, 2)
    script.broken = False
    for attempt in (3, 4):  # the first dies before it stores its results
        assert len((await kind.run(work(name, attempt))).results) == 2
    run = await recorded(http, 2 * VERDICTS)
    assert (run["requests"], run["responses"], run["verdicts"], run["failed"]) == (1, 16, VERDICTS, 0)


async def test_failures_after_the_last_attempt_are_recorded_as_in_the_operation(
    http: httpx2.AsyncClient, kind: OperationHandler, name: str
) -> None:
    await tried(kind, name, MAX_ATTEMPTS - 1)
    assert (await kind.run(work(name, MAX_ATTEMPTS))).counts == {"failed": 1}
    run = await recorded(http, VERDICTS)
    assert (run["requests"], run["verdicts"], run["failed"]) == (1, VERDICTS, 2)


async def test_a_chunk_without_an_answer_is_recorded_when_it_gets_one(
    http: httpx2.AsyncClient, kind: OperationHandler, name: str, script: Script
) -> None:
    refuses = {"on_failure": "error"} if name == "score" else {}
    await tried(kind, name, MAX_ATTEMPTS if refuses else 1, **refuses)
    script.broken = False
    await kind.run(work(name, 1, **refuses))  # as after a requested retry
    run = await recorded(http, VERDICTS)
    assert (run["requests"], run["verdicts"], run["failed"]) == (1, VERDICTS, 0)


async def test_a_chunk_is_answered_once_its_verdicts_are_spooled(
    http: httpx2.AsyncClient, kind: OperationHandler, name: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.broken, spooled, asked = False, asyncio.Event(), asyncio.Event()

    async def hold(_: Recorder) -> None:
        asked.set()
        await spooled.wait()

    monkeypatch.setattr(Recorder, "spooled", hold)
    path = "/v1/rewards" if name == "score" else "/v1/verdicts"
    body = {"rubric": {"criteria": CRITERIA}, "run": "r", "groups": groups(2)}
    assert (await http.post(path, json=body)).status_code == 200  # of somebody else, who does not wait
    assert not asked.is_set()
    chunk = asyncio.create_task(kind.run(work(name, 1)))
    await asked.wait()
    assert not chunk.done()
    spooled.set()
    assert len((await chunk).results) == 2


async def test_only_a_worker_keeps_failures_out_of_the_ledger(http: httpx2.AsyncClient, name: str) -> None:
    path = "/v1/rewards" if name == "score" else "/v1/verdicts"
    body = {"rubric": {"criteria": CRITERIA}, "run": "r", "groups": groups(2)}
    assert (await http.post(path, json=body, headers={WILL_RETRY_HEADER: "true"})).status_code == 200
    assert (await recorded(http, VERDICTS))["failed"] == 2
