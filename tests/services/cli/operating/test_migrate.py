"""`adjudge migrate`, its `check` and its `down`, and processes that start on the schema of another version."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from judge_server.auth.keys import make_key
from rubric_store import migrations
from tests.rubric_store.newer import NEXT, TO_EVERY_TABLE, release, running
from tests.services.command import adjudge, failure_of
from tests.services.processes import serving
from trainer_client import Client
from trainer_client.wire.tenants import SCOPES


def checked(*options: str) -> tuple[int, dict[str, object]]:
    """Run a check; return its exit status and report."""
    result = adjudge("migrate", "check", "--json", *options)
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def url(data_dir: Path) -> str:
    """The URL of the SQLite file that every command uses here; it does not exist yet."""
    data_dir.mkdir()
    return f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def either(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database, of each kind, that every command uses."""
    if request.param == "sqlite":
        return url
    server: str = request.getfixturevalue("postgres_url")
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", server)
    return server


def test_a_check_lists_pending_migrations_and_none_after_migrating(either: str) -> None:
    head = migrations.head()
    status, said = checked()
    assert (status, said["state"], said["database"]) == (1, "behind", None)
    assert len(said["pending"]) == len(migrations.revisions())  # type: ignore[arg-type]
    assert adjudge("migrate").exit_code == 0
    status, said = checked("--contents")
    assert (status, said["state"], said["database"], said["this_version"]) == (0, "current", head, head)
    assert said["pending"] == []
    assert said["contents"] == {"versions": 0, "requests": 0, "problem_count": 0, "problems": []}
    assert head in adjudge("migrate", "check").stdout


def test_a_migration_stores_the_bootstrap_key_once_and_leaves_a_revoked_one_revoked(
    either: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key()
    monkeypatch.setenv("ADJUDGE_BOOTSTRAP_KEY", key.text)
    assert f"bootstrap key {key.id} is stored" in adjudge("migrate").stdout
    assert f"bootstrap key {key.id} was stored before, and is usable" in adjudge("migrate").stdout
    listed = json.loads(adjudge("keys", "list", "--json").stdout)
    assert [(one["id"], one["project_id"], one["label"]) for one in listed] == [(key.id, "default", "bootstrap")]
    assert set(listed[0]["scopes"]) == set(SCOPES)
    assert adjudge("keys", "revoke", key.id).exit_code == 0
    assert "is revoked" in adjudge("migrate").stdout


@pytest.mark.parametrize("wrong", ["adj_short", "change-me", "adj_" + "a" * 16 + "_" + "b" * 44])
def test_an_invalid_bootstrap_key_fails_the_migration_without_being_shown(
    url: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_BOOTSTRAP_KEY", wrong)
    result = adjudge("migrate")
    assert result.exit_code == 1
    assert "does not have the form of a key" in " ".join(result.stderr.split())
    assert wrong not in result.output
    monkeypatch.delenv("ADJUDGE_BOOTSTRAP_KEY")
    assert "no keys" in adjudge("keys", "list").stdout


def test_a_check_of_an_older_database_says_whether_older_processes_can_run_and_what_a_downgrade_loses(
    url: str,
) -> None:
    migrations.upgrade(url, "0006")
    status, said = checked()
    assert (status, said["supports_rolling_upgrade"]) == (1, False)
    assert {"from": "0007", "loses": migrations.revisions()[6].loses} in said["back"]  # type: ignore[operator]
    shown = adjudge("migrate", "check").stdout
    assert "must be stopped first" in shown
    assert "figures of runs" in shown


def test_a_check_of_an_additive_release_says_that_older_processes_keep_working(either: str, tmp_path: Path) -> None:
    migrations.upgrade(either)
    with running(release(tmp_path / "next", TO_EVERY_TABLE)):
        status, said = checked()
        assert (status, said["supports_rolling_upgrade"], said["database"]) == (
            1,
            True,
            migrations.revisions()[-2].revision,
        )
        assert "keep working and may restart" in " ".join(adjudge("migrate", "check").stdout.split())


@pytest.fixture
def newer(either: str, tmp_path: Path) -> Path:
    """A release folder whose additive migration the database already has."""
    migrations.upgrade(either)
    folder = release(tmp_path / "next", TO_EVERY_TABLE)
    with running(folder):
        migrations.upgrade(either)
    return folder


@pytest.mark.processes
def test_an_older_process_runs_on_a_newer_additive_schema_and_its_migration_does_nothing(
    newer: Path, tmp_path: Path
) -> None:
    status, said = checked()
    assert (status, said["state"], said["database"]) == (0, "ahead", NEXT)
    migrated = adjudge("migrate")
    assert (migrated.exit_code, NEXT in migrated.stdout) == (0, True)
    with serving("scripted://hash") as service, Client(service.url, run="r") as client:
        service.wait_until_ready(client)
        client.publish_rubric("team/a", [{"id": "a", "description": "Is right."}])
        group = {"id": "g", "prompt": "p", "responses": ["x", "y"]}
        answer = client.rewards([group], "team/a")
        assert None not in [response.reward for response in answer.groups[0].responses]
        service.stop()
        assert f"revision {NEXT}, from a newer version" in "".join(service.said)
    assert adjudge("recompute", "r", "--output", str(tmp_path / "again.jsonl")).exit_code == 0
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 1


def test_a_process_refuses_to_start_on_an_incompatible_newer_schema_and_names_the_remedies(
    either: str, tmp_path: Path
) -> None:
    migrations.upgrade(either)
    with running(release(tmp_path / "next", 'op.drop_table("rubric_words")', works_from=NEXT)):
        migrations.upgrade(either)
    status, said = checked()
    assert (status, said["state"]) == (2, "too new")
    for command in (["rubrics", "list"], ["serve", "--port", "0", "--engine", "scripted://yes"]):
        refused = adjudge(*command)
        assert refused.exit_code == 1
        words = " ".join(refused.stderr.split())
        assert f"revision {NEXT}, from a newer version" in words
        assert f"adjudge migrate down {migrations.head()}" in words
    assert adjudge("migrate").exit_code == 1


def test_a_downgrade_that_loses_data_must_be_confirmed(either: str) -> None:
    migrations.upgrade(either)
    refused = adjudge("migrate", "down", "0005")
    assert refused.exit_code == 1
    assert "downgrading from 0006 loses every operation and its results" in refused.stderr
    assert "add --yes" in refused.stderr
    assert migrations.read_status(either).state == "current"
    assert adjudge("migrate", "down", "0005", "--yes").exit_code == 0
    assert migrations.current(either) == "0005"
    for where in ("0005", "0007", "nowhere"):
        assert "could not be downgraded" in adjudge("migrate", "down", where, "--yes").stderr


NOT_WHOLE = {
    "UPDATE rubric_versions SET criteria = replace(criteria, 'right', 'wrong')": "team/a@1 of project default",
    "UPDATE rubric_versions SET criteria = '[{}]'": "does not match its digest",
    "DELETE FROM ledger_uses WHERE place = 1": "has 2 of 4 uses",
    "DELETE FROM ledger_verdicts": "has 3 uses without a verdict",
}
ONE_FAILED = "UPDATE ledger_uses SET failed = 1, failure = 'engine', digest = x'00' WHERE slot = 1 AND place = 1"


@pytest.mark.processes
def test_a_check_of_the_contents_finds_damage(
    url: str, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("scripted://hash") as service, Client(service.url, run="r") as client:
        service.wait_until_ready(client)
        client.publish_rubric("team/a", [{"id": name, "description": f"Is {name}."} for name in ("right", "kind")])
        client.rewards([{"id": "g", "prompt": "p", "responses": ["x", "y"]}], "team/a")
        service.stop()
    with closing(sqlite3.connect(data_dir / "adjudge.db")) as database, database:
        database.execute(ONE_FAILED)
    status, said = checked("--contents")
    assert (status, said["contents"]) == (0, {"versions": 1, "requests": 1, "problem_count": 0, "problems": []})
    for number, (statement, says) in enumerate(NOT_WHOLE.items()):
        copy = tmp_path / str(number)
        shutil.copytree(data_dir, copy)
        with closing(sqlite3.connect(copy / "adjudge.db")) as database, database:
            database.execute(statement)
        monkeypatch.setenv("ADJUDGE_DATA_DIR", str(copy))
        status, said = checked("--contents")
        assert (status, said["contents"]["problem_count"]) == (2, 1)  # type: ignore[index]
        assert says in said["contents"]["problems"][0]  # type: ignore[index]


def test_a_check_of_an_unreachable_database_gives_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", "postgresql+psycopg://u:hunter2@127.0.0.1:9/x?connect_timeout=2")
    result = adjudge("migrate", "check")
    assert result.exit_code == 2
    assert "ADJUDGE_DATABASE_URL" in result.stderr
    assert "hunter2" not in result.output


@pytest.mark.postgres
def test_postgres_is_migrated_by_hand_and_no_command_runs_before_that(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", postgres_url)
    assert "adjudge migrate" in failure_of(adjudge("rubrics", "list"))
    adjudge("migrate", exit_code=0)
    adjudge("rubrics", "list", exit_code=0)
