"""The ledger of a real service: stopped, killed, without a database; and the commands that read and purge it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, make_url

from judge_server.ledger.spool import Quarantine
from rubric_store import migrations
from rubric_store.ledger.rows import RefusedRows
from tests.fixtures.postgres import scratch_database
from tests.fixtures.waiting import wait_until
from tests.rubric_store.ledger_rows import request
from tests.services.command import adjudge
from tests.services.processes import Service, get, serving
from trainer_client import Client, InvalidRequest
from trainer_client.wire import RewardAnswer

ENGINE = "scripted://hash"
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


@contextmanager
def running() -> Iterator[tuple[Service, Client]]:
    with serving(ENGINE) as service, Client(service.url, run="r") as client:
        service.wait_until_ready(client)
        yield service, client


def rewards(client: Client) -> dict[str, list[float | None]]:
    """Recompute the rewards in the same mode; return them by request."""
    groups = [line.group for line in client.recompute(mode="points") if line.group]
    return {group.request_id: [response.reward for response in group.responses] for group in groups}


def answered(*answers: RewardAnswer) -> dict[str, list[float | None]]:
    return {answer.request_id: [r.reward for r in answer.groups[0].responses] for answer in answers}


@pytest.mark.processes
def test_a_graceful_stop_loses_nothing_and_recomputing_gives_the_same_rewards(data_dir: Path) -> None:
    with running() as (service, client):
        answers = [score(client, f"number {n}", step=n) for n in range(5)]
        service.stop()
    with running() as (_, client):
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
    with running() as (service, client):
        first = score(client, "first")
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 6)
        with locked(data_dir / "adjudge.db"):
            second = score(client, "second")
            wait_until(lambda: get(service, "/v1/ledger").json()["spool_bytes"] > 0)
            service.process.kill()
            service.process.wait()
    with running() as (service, client):
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
    with running() as (service, client):
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
    with running() as (service, client):
        score(client, "unseen")
        assert get(service, "/v1/ledger").json()["keeps"] == "nothing"
        service.stop()
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_requests").fetchone() == (0,)


@pytest.mark.processes
@pytest.mark.slow
def test_a_service_that_stores_no_texts_stores_verdicts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_LEDGER", "verdicts")
    with running() as (service, client):
        answer = score(client, "secret")
        service.stop()
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_texts").fetchone() == (1,)
    with running() as (_, client):
        assert rewards(client) == answered(answer)
        assert {each.text for each in client.recorded_verdicts(texts=True)} == {None}


def command(*arguments: str) -> tuple[int, str]:
    """Run a command; return its status and output."""
    result = adjudge(*arguments)
    return result.exit_code, result.output


@pytest.mark.processes
def test_commands_recompute_and_purge_a_run(data_dir: Path, tmp_path: Path) -> None:
    with running() as (service, client):
        answers = [score(client, f"number {n}") for n in range(3)]
        wait_until(lambda: get(service, "/v1/ledger").json()["written"] == 18)
        over_http = tmp_path / "http.jsonl"
        assert command("recompute", "r", "--mode", "points", "--output", str(over_http), "--url", service.url)[0] == 0
        with pytest.raises(InvalidRequest, match="cannot feed"):
            list(client.recompute(mode="likert"))
        service.stop()
    from_file = tmp_path / "file.jsonl"
    status, said = command("recompute", "r", "--mode", "points", "--output", str(from_file))
    assert status == 0, said
    assert "mean reward" in said
    assert from_file.read_text() == over_http.read_text()
    groups = [json.loads(line) for line in from_file.read_text().splitlines()]
    assert {g["request_id"]: [r["reward"] for r in g["responses"]] for g in groups} == answered(*answers)

    weights = tmp_path / "weights.json"
    weights.write_text('{"short": 0, "right": 1, "kind": 0}')
    status, said = command("recompute", "r", "--weights", str(weights), "--output", str(from_file))
    assert status == 0, said
    only = {r["reward"] for line in from_file.read_text().splitlines() for r in json.loads(line)["responses"]}
    assert only <= {0.0, 1.0}

    assert command("recompute", "r", "--mode", "likert")[0] == 1
    assert command("ledger", "purge")[0] == 1
    assert "deleted 0 requests" in command("ledger", "purge", "--run", "r", "--older-than", "1", "--yes")[1]
    assert "deleted 3 requests with 18 uses, and 18 verdicts" in command("ledger", "purge", "--run", "r", "--yes")[1]
    status, said = command("recompute", "r")
    assert (status, "has no records of run" in said) == (1, True)


@pytest.mark.usefixtures("migrated")
def test_commands_list_refused_rows_and_write_them_again(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert "0 files are kept aside" in command("ledger", "refused")[1]
    kept = Quarantine(data_dir / "ledger-spool" / "refused")
    good, bad = request(1, [["a", "b"]], run="good [run]"), request(2, [["c", "d"]], run="bad")
    kept.add(RefusedRows(good, "the column is too short"))
    kept.add(RefusedRows(request(3, [["e"]], run="good [run]"), "the column is too short"))
    uses = [bad.uses[0], bad.uses[1]._replace(slot=2**70)]
    file = kept.add(RefusedRows(bad._replace(uses=uses), "it is too large"))
    kept.add_unreadable(b"[[", "the file cannot be read")
    status, said = command("ledger", "refused")
    assert status == 0
    assert [word for word in ("good [run]", "req_1", "the column is too short", file.stem) if word not in said] == []
    assert "4 files are kept aside" in said
    assert command("ledger", "retry", "nothing")[0] == 1
    status, said = command("ledger", "retry")
    assert (status, "2 of 4 files were written; 2 are still refused" in said) == (1, True)
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as connection:
        counted = connection.execute("SELECT run, count(*) FROM ledger_uses GROUP BY run ORDER BY run").fetchall()
    assert counted == [("bad", 1), ("good [run]", 3)]
    (left,) = [one for one in kept.quarantined() if one.rows is not None]
    assert left.rows is not None
    assert (left.path, left.rows.uses) == (file, uses[1:])
    assert command("ledger", "retry", file.stem)[0] == 1
