"""An upgrade of the schema and its downgrade while processes of the previous version run, and one of them restarts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL

from rubric_store import migrations
from tests.fixtures.postgres import scratch_database
from tests.rubric_store.newer import FROM_EVERY_TABLE, NEXT, TO_EVERY_TABLE, release, running
from tests.services.one_host import SECRET, RestartableService
from tests.services.operations.cluster import score
from tests.services.processes import listening
from tests.services.trainers import USES, Trainer, expected, training
from trainer_client import Client

pytestmark = [pytest.mark.postgres, pytest.mark.faults, pytest.mark.slow]

ENGINE = "scripted://hash?delay_s=0.005&concurrency=8"
MORE = 15


@pytest.fixture
def database(postgres_server: URL) -> Iterator[URL]:
    """A PostgreSQL database with this version's schema."""
    with scratch_database(postgres_server) as url:
        migrations.upgrade(url.render_as_string(hide_password=False))
        yield url


@pytest.fixture
def hosts(database: URL, tmp_path: Path) -> Iterator[tuple[RestartableService, ...]]:
    """Two services on one database."""
    shown = database.render_as_string(hide_password=False)
    both = tuple([RestartableService(tmp_path / name, ENGINE, ADJUDGE_DATABASE_URL=shown) for name in ("a", "b")])
    for host in both:
        host.start()
    yield both
    for host in both:
        host.kill()


def test_an_upgrade_and_a_downgrade_under_load_fail_no_request_and_change_no_reward(
    hosts: tuple[RestartableService, ...], database: URL, tmp_path: Path
) -> None:
    url = database.render_as_string(hide_password=False)
    ours = migrations.head()
    newer = release(tmp_path / "next", TO_EVERY_TABLE, downgrade=FROM_EVERY_TABLE)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(host.url, run=run, retries=30, retry_budget_s=60.0))
            for host, run in zip(hosts, ("one", "two"), strict=True)
        ]
        trainers = [Trainer(client) for client in clients]
        bulk = clients[1].submit(score(24)).id

        def all_go_on() -> None:
            for trainer in trainers:
                trainer.wait_for_more(MORE)

        with training(*trainers):
            all_go_on()
            with running(newer):
                migrations.upgrade(url)
            assert migrations.current(url) == NEXT
            all_go_on()
            hosts[0].stop()
            hosts[0].start()
            assert f"revision {NEXT}, from a newer version" in "".join(hosts[0].service.said)
            all_go_on()
            with running(newer):
                migrations.downgrade(url, ours)
            assert migrations.current(url) == ours
            all_go_on()
        *_, ended = clients[1].follow(bulk)
        assert (ended.state, ended.progress.done, ended.progress.failed) == ("done", 24, 0)
        for host in hosts:
            host.stop()
    undisturbed = {"ADJUDGE_DATA_DIR": str(tmp_path / "own"), **SECRET}
    with (
        listening("serve", "--port", "0", "--engine", "scripted://hash", **undisturbed) as service,
        Client(service.url) as client,
    ):
        service.wait_until_ready(client)
        for trainer in trainers:
            assert list(trainer.rewards().values()) == expected(trainer, client)
    for trainer in trainers:
        assert recorded(database, trainer.name) == dict.fromkeys(trainer.rewards(), USES)


def recorded(database: URL, run: str) -> dict[str, int]:
    """Return how many uses the ledger has of each request of a run; fail if it has a request twice."""
    with psycopg.connect(database.set(drivername="postgresql").render_as_string(hide_password=False)) as connection:
        rows = connection.execute(
            "SELECT q.request_id, count(*) FROM ledger_requests q JOIN ledger_uses u USING (project_id, run, request)"
            " WHERE q.run = %s GROUP BY q.project_id, q.run, q.request, q.request_id",
            (run,),
        ).fetchall()
    assert len({name for name, _ in rows}) == len(rows)
    return dict(rows)
