"""An unreachable database: requests that do not need it are judged, and the ledger catches up afterwards."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL

from rubric_store import migrations
from tests.fixtures.postgres import scratch_database
from tests.judge_server.faults.stores import (
    PARTS,
    RUBRIC,
    ConsistencyChecker,
    running_service,
    until_written,
)
from tests.services.processes import Service, get, without_settings
from trainer_client import AdjudgeError, AsyncClient

pytestmark = [pytest.mark.postgres, pytest.mark.faults]

Run = tuple[ConsistencyChecker, AsyncClient, Service, URL]


@pytest.fixture
async def run(
    postgres_server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ConsistencyChecker, AsyncClient, Service, URL]]:
    """A run at a service whose rubrics and ledger are in PostgreSQL."""
    without_settings(monkeypatch)
    with scratch_database(postgres_server) as database:
        shown = database.render_as_string(hide_password=False)
        await asyncio.to_thread(migrations.upgrade, shown)
        with running_service("scripted://hash", tmp_path, database_url=shown) as service:
            async with AsyncClient(service.url, run="r", retries=0) as client:
                yield ConsistencyChecker(client), client, service, database


@contextmanager
def away(server: URL, database: URL) -> Iterator[None]:
    """Refuse new connections and end the existing ones."""
    name = sql.Identifier(database.database or "")
    conninfo = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database.database,)
        )
        yield
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


async def test_while_the_database_is_unreachable_known_versions_still_judge_and_each_use_is_recorded_once(
    postgres_server: URL, run: Run
) -> None:
    checker, client, service, database = run
    published = await client.publish_rubric("team/parts", RUBRIC["criteria"])
    for reference in ("team/parts@1", published.digest):
        await checker.score("Before.", rubric=reference)
    await checker.score("Before.")
    with away(postgres_server, database):
        for number in range(5):
            for reference in ("team/parts@1", published.digest, RUBRIC):
                await checker.score("Before.", f"Response {number}.", rubric=reference)
        state = get(service, "/v1/ledger").json()
        assert state["written"] + state["waiting"] == (3 + 5 * 3 * 2) * PARTS
        assert state["lost"] == 0
    await until_written(service, (3 + 5 * 3 * 2) * PARTS)
    with psycopg.connect(database.set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        uses, kinds, verdicts = connection.execute(
            "SELECT (SELECT count(*) FROM ledger_uses),"
            " (SELECT count(DISTINCT (request, place, slot)) FROM ledger_uses),"
            " (SELECT count(*) FROM ledger_verdicts)"
        ).fetchone()  # type: ignore[misc]
    assert (uses, kinds) == ((3 + 5 * 3 * 2) * PARTS,) * 2
    assert verdicts == 6 * PARTS


async def test_while_the_database_is_unreachable_references_are_not_guessed(postgres_server: URL, run: Run) -> None:
    checker, client, _, database = run
    await client.publish_rubric("team/parts", RUBRIC["criteria"])
    await checker.score("Before.", rubric="team/parts")
    with away(postgres_server, database):
        for reference in ("team/parts", "team/parts@1", "team/parts@latest", "sha256:" + "0" * 64):
            with pytest.raises(AdjudgeError, match="store cannot be read") as refused:
                await checker.score("Before.", rubric=reference)
            assert refused.value.retryable
            assert refused.value.retry_after_s
    await checker.score("Before.", rubric="team/parts")
