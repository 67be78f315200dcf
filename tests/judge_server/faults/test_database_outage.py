"""A PostgreSQL that is down or hangs during a run: rewards are returned, and the ledger catches up."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL

from rubric_store import migrations
from tests.fixtures.postgres import THROW_OUT_OTHERS, execute, scratch_database
from tests.fixtures.postgres_process import PostgresProcess, running_postgres_process
from tests.judge_server.faults.stores import (
    PARTS,
    RUBRIC,
    ConsistencyChecker,
    running_service,
    until_written,
)
from tests.services.processes import Service, get, without_settings
from trainer_client import AsyncClient

pytestmark = [pytest.mark.postgres, pytest.mark.faults, pytest.mark.slow]

OUTAGE_S = 10.0
HANGS_S = 4.0
NAMED = "team/parts@1"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    """A server for this module only."""
    with running_postgres_process() as running:
        yield running


class Run:
    """A run that keeps scoring, with rubrics by version, by digest and inline."""

    def __init__(self, checker: ConsistencyChecker, client: AsyncClient, service: Service, database: URL) -> None:
        self.checker = checker
        self.client = client
        self.service = service
        self.database = database
        self._rubrics: list[object] = [NAMED, RUBRIC]
        self._asked = 0

    async def begin(self) -> None:
        """Publish the rubric, and use each of its references once."""
        published = await self.client.publish_rubric("team/parts", RUBRIC["criteria"])
        self._rubrics.append(published.digest)
        for _ in self._rubrics:
            await self.step()

    async def step(self) -> None:
        """Score one known and one new text; every other request has an idempotency key."""
        rubric = self._rubrics[self._asked % len(self._rubrics)]
        key = f"step {self._asked}" if self._asked % 2 else None
        await self.checker.score("Before.", f"Response {self._asked}.", rubric=rubric, idempotency_key=key)
        self._asked += 1

    async def go_on(self, seconds: float) -> None:
        """Score for this many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self.step()
            await asyncio.sleep(0.1)

    async def all_written(self) -> None:
        """Wait until the ledger has every use of this run exactly once."""
        uses = self._asked * 2 * PARTS
        await until_written(self.service, uses)
        with psycopg.connect(
            self.database.set(drivername="postgresql").render_as_string(hide_password=False)
        ) as connection:
            assert connection.execute(
                "SELECT count(*), count(DISTINCT (request, place, slot)) FROM ledger_uses"
            ).fetchone() == (uses, uses)


@pytest.fixture
async def run(postgres: PostgresProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """A run at a service whose rubrics and ledger are in PostgreSQL."""
    without_settings(monkeypatch)
    with scratch_database(postgres.url) as database, ExitStack() as closing:
        closing.callback(postgres.go_on)
        shown = database.render_as_string(hide_password=False)
        await asyncio.to_thread(migrations.upgrade, shown)
        with running_service("scripted://hash", tmp_path, database_url=shown) as service:
            async with AsyncClient(service.url, run="r", retries=0) as client:
                made = Run(ConsistencyChecker(client), client, service, database)
                await made.begin()
                yield made


async def test_a_database_that_is_down_loses_no_reward_and_no_row(postgres: PostgresProcess, run: Run) -> None:
    await asyncio.to_thread(postgres.stop)
    await run.go_on(OUTAGE_S)
    state = get(run.service, "/v1/ledger").json()
    assert state["waiting"] > 0
    assert state["spool_bytes"] > 0
    assert "cannot be written" in state["problem"]
    await asyncio.to_thread(postgres.start)
    await run.all_written()
    assert get(run.service, "/readyz").status_code == 200


async def test_a_database_that_hangs_delays_only_requests_that_need_it_and_these_get_an_error(
    postgres: PostgresProcess, run: Run
) -> None:
    postgres.send(signal.SIGSTOP)
    await run.go_on(HANGS_S)
    asked = {"rubric": "team/parts", "groups": [{"id": "g", "prompt": "?", "responses": ["Yes!"]}]}
    async with httpx2.AsyncClient(base_url=run.service.url, timeout=60.0) as http:
        answers = await asyncio.gather(
            http.post("/v1/rewards", json=asked | {"deadline_s": 1}),
            http.post("/v1/rewards", json=asked),
            http.post("/v1/rewards", json=asked | {"rubric": "team/parts@latest"}),
            http.post("/v1/rewards", json=asked | {"rubric": "team/other@1"}),
            http.get("/v1/rubrics"),
            http.get("/v1/rubrics/team/parts"),
            http.get("/readyz"),
        )
    for answer in answers:
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert answer.json()["retryable"]
        assert answer.headers["retry-after"]
    assert "within the request's deadline" in answers[0].json()["detail"]
    await run.step()
    postgres.send(signal.SIGCONT)
    await run.all_written()


async def test_a_database_that_becomes_read_only_loses_no_reward_and_no_row(
    postgres: PostgresProcess, run: Run
) -> None:
    database, server = run.database, postgres.url
    of = sql.Identifier(database.database or "")
    execute(server, sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(of))
    execute(database, THROW_OUT_OTHERS)
    for _ in range(6):
        await run.step()
    criteria = {"criteria": [{"id": "a", "description": "d"}]}
    async with httpx2.AsyncClient(base_url=run.service.url, timeout=60.0) as http:
        refused = [
            await http.post("/v1/rubrics/team/other/versions", json=criteria),
            await http.post("/v1/rubrics/team/other/versions", json=criteria, headers={"Idempotency-Key": "a"}),
            await http.put("/v1/rubrics/team/parts/tags", json={"tags": ["a"]}),
            await http.get("/readyz"),
        ]
        for answer in refused:
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert "store" in refused[-1].json()["detail"]
        assert (await http.get("/readyz", params={"only": "replica"})).status_code == 200
        assert (await http.get("/v1/rubrics/team/parts")).status_code == 200
    state = get(run.service, "/v1/ledger").json()
    assert state["refused"] == state["lost"] == 0
    execute(server, sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(of))
    execute(database, THROW_OUT_OTHERS)
    await run.all_written()
    assert get(run.service, "/readyz").status_code == 200
    assert get(run.service, "/v1/ledger").json()["refused"] == 0
