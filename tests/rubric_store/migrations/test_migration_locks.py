"""A migration blocked by a long transaction lets other clients pass, and completes afterwards."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from rubric_store import migrations
from rubric_store.migrations import LockRetry
from tests.rubric_store.newer import NEXT, release, running

pytestmark = pytest.mark.postgres

ADDS = 'op.add_column("rubrics", sa.Column("note", sa.Text))'


def conninfo(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
def bounded_url(postgres_url: str) -> str:
    """A migrated database; statements of connections to this URL time out."""
    migrations.upgrade(postgres_url)
    bounded = make_url(postgres_url).update_query_dict({"options": "-cstatement_timeout=20s"})
    return bounded.render_as_string(hide_password=False)


@contextmanager
def long_transaction(url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection that has read the rubrics and not ended its transaction."""
    with psycopg.connect(conninfo(url)) as connection:
        connection.execute("SELECT count(*) FROM rubrics")
        yield connection


@pytest.fixture
def gave_way() -> Iterator[threading.Event]:
    """Set when a migration logs that it retries."""
    said = threading.Event()

    class RetryCounter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "retrying the migration" in record.getMessage():
                said.set()

    heard, log = RetryCounter(), logging.getLogger("adjudge")
    log.addHandler(heard)
    yield said
    log.removeHandler(heard)


def test_a_migration_that_cannot_lock_a_table_gives_up_and_changes_nothing(bounded_url: str, tmp_path: Path) -> None:
    with running(release(tmp_path / "next", ADDS)), long_transaction(bounded_url):
        with pytest.raises(migrations.TablesInUseError, match=r"through 2 attempts; nothing was changed\. End"):
            migrations.upgrade(bounded_url, lock_retry=LockRetry(lock_timeout_s=0.05, attempts=2, pause_s=0.01))
        assert migrations.current(bounded_url) != NEXT


def test_a_waiting_migration_blocks_no_other_client_and_completes_after_the_long_transaction(
    bounded_url: str, tmp_path: Path, gave_way: threading.Event
) -> None:
    patient = LockRetry(lock_timeout_s=0.2, attempts=1000, pause_s=0.05)
    with running(release(tmp_path / "next", ADDS)), ThreadPoolExecutor() as threads:
        with long_transaction(bounded_url):
            migrating = threads.submit(migrations.upgrade, bounded_url, lock_retry=patient)
            assert gave_way.wait(30)
            with psycopg.connect(conninfo(bounded_url)) as another:
                another.execute("SELECT count(*) FROM rubrics")
            assert not migrating.done()
        migrating.result(30)
        assert migrations.current(bounded_url) == NEXT
