"""The ledger of a real service: stopped, killed, without a database."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, make_url

from rubric_store import migrations
from tests.fixtures.postgres import scratch_database
from tests.fixtures.waiting import wait_until
from tests.services.processes import get, scoring
from trainer_client import Client
from trainer_client.wire import RewardAnswer

RUBRIC = {
    "criteria": [
        {"id": "short", "description": "Is short.", "weight": 3},
        {"id": "right", "description": "Is right."},
        {"id": "kind", "description": "Is kind.", "weight": 2},
    ]
}


def score(client: Client, text: str, **options: object) -> RewardAnswer:
    """Score two responses; a new text makes them new to the service."""
    group = {"id": "g", "prompt": "?", "responses": [f"{text}, yes.", f"{text}, no."]}
    return client.rewards([group], RUBRIC, "points", **options)  # type: ignore[arg-type]


def rewards(client: Client) -> dict[str, list[float | None]]:
    """Recompute the rewards in the same mode; return them by request."""
    groups = [line.group for line in client.recompute(mode="points") if line.group]
    return {group.request_id: [response.reward for response in group.responses] for group in groups}


def answered(*answers: RewardAnswer) -> dict[str, list[float | None]]:
    return {answer.request_id: [r.reward for r in answer.groups[0].responses] for answer in answers}


@pytest.mark.processes
def test_a_graceful_stop_loses_nothing_and_recomputing_gives_the_same_rewards(data_dir: Path) -> None:
    with scoring() as (service, client):
        answers = [score(client, f"number {n}", step=n) for n in range(5)]
        service.stop()
    with scoring() as (_, client):
        assert rewards(client) == answered(*answers)
        recorded_verdicts = list(client.recorded_verdicts(step=3, status="ok"))
        assert [each.verdict for each in recorded_verdicts] == [
            v for r in answers[3].groups[0].responses for v in r.verdicts
        ]


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock a SQLite file against writes."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.processes
def test_a_killed_service_loses_nothing_from_its_spool(data_dir: Path) -> None:
    with scoring() as (service, client):
        first = score(client, "first")
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 6)
        with locked(data_dir / "adjudge.db"):
            second = score(client, "second")
            wait_until(lambda: get(service, "/v1/ledger").json()["spool_bytes"] > 0)
            service.process.kill()
            service.process.wait()
    with scoring() as (service, client):
        third = score(client, "third")
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 12)
        assert rewards(client) == answered(first, second, third)
    assert list((data_dir / "ledger-spool").rglob("*.rows")) == []


@pytest.fixture
def database(postgres_server: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[URL]:
    """A migrated PostgreSQL database, set in the environment."""
    with scratch_database(postgres_server) as url:
        shown = url.render_as_string(hide_password=False)
        migrations.upgrade(shown)
        monkeypatch.setenv("ADJUDGE_DATABASE_URL", shown)
        yield url


@contextmanager
def away(server: URL, database: URL) -> Iterator[None]:
    """Refuse new connections and end the existing ones."""
    name = sql.Identifier(make_url(database).database or "")
    conninfo = server.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database.database,)
        )
        yield
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


@pytest.mark.processes
@pytest.mark.postgres
@pytest.mark.slow
def test_without_a_database_rewards_are_served_and_the_ledger_catches_up_later(
    postgres_server: URL, database: URL
) -> None:
    with scoring() as (service, client):
        answers = [score(client, "before")]
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 6)
        with away(postgres_server, database):
            for number in range(10):
                answers.append(score(client, f"during {number}"))
            wait_until(lambda: get(service, "/v1/ledger").json()["problem"] is not None)
            state = get(service, "/v1/ledger").json()
            assert (state["written"], state["waiting"], state["lost"]) == (6, 60, 0)
            assert get(service, "/v1/verdicts?run=r").status_code == 503
            assert all(response.reward is not None for answer in answers for response in answer.groups[0].responses)
        wait_until(lambda: get(service, "/v1/ledger").json()["waiting"] == 0)
        assert get(service, "/v1/ledger").json()["problem"] is None
        answers.append(score(client, "after"))
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 72)
        assert rewards(client) == answered(*answers)
    assert "Traceback" not in "".join(service.said)


@pytest.mark.processes
def test_a_service_with_the_ledger_off_stores_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_LEDGER", "off")
    with scoring() as (service, client):
        score(client, "unseen")
        assert get(service, "/v1/ledger").json()["keeps"] == "nothing"
        service.stop()
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_requests").fetchone() == (0,)


@pytest.mark.processes
@pytest.mark.slow
def test_a_service_that_stores_no_texts_stores_verdicts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_LEDGER", "verdicts")
    with scoring() as (service, client):
        answer = score(client, "secret")
        service.stop()
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_texts").fetchone() == (1,)
    with scoring() as (_, client):
        assert rewards(client) == answered(answer)
        assert {each.text for each in client.recorded_verdicts(texts=True)} == {None}
