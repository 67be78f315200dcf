"""A PostgreSQL that hangs with open connections: calls time out, and it is used again later."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import event, make_url

from rubric_store import RubricStore, SQLLedger, SQLOperations, migrations, open_engine
from rubric_store.database import libpq_timeouts, statement_timeout
from rubric_store.ledger.rows import LedgerRows
from tests.fixtures.postgres import scratch_database
from tests.fixtures.postgres_process import PostgresProcess, running_postgres_process
from trainer_client.wire import Criterion, RubricContent

LIMIT_S = 0.5
Parts = tuple[RubricStore, SQLOperations, SQLLedger]
CONTENT = RubricContent(criteria=(Criterion(id="a", description="Is right."),))


def test_a_connections_time_limits_are_those_of_its_url_if_given() -> None:
    ours = libpq_timeouts(make_url("postgresql+psycopg://host/x"))
    assert ours["connect_timeout"] == 5
    assert "connect_timeout" not in libpq_timeouts(make_url("postgresql+psycopg://host/x?connect_timeout=2"))
    assert libpq_timeouts(make_url("postgresql+psycopg://host/x?tcp_user_timeout=1")).keys() == ours.keys() - {
        "tcp_user_timeout"
    }


# With a real server whose processes are stopped


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresProcess]:
    """A server for this module only."""
    with running_postgres_process() as running:
        yield running


@pytest.fixture
def url(postgres: PostgresProcess) -> Iterator[str]:
    """A migrated database, to which clients connect within two seconds."""
    with scratch_database(postgres.url) as database, ExitStack() as closing:
        closing.callback(postgres.go_on)
        shown = database.update_query_dict({"connect_timeout": "2"}).render_as_string(hide_password=False)
        migrations.upgrade(shown)
        yield shown


@pytest.fixture
async def parts(url: str) -> AsyncIterator[Parts]:
    """A store, operations and a ledger, each with a connection already used."""
    made = RubricStore(url), SQLOperations(url), SQLLedger(url)
    rubrics, operations, ledger = made
    await rubrics.publish("p", "team/parts", CONTENT)
    await rubrics.find("p", "team/parts@1")
    await operations.list("p", 10)
    await ledger.runs("p")
    yield made
    for part in made:
        await part.close()


@pytest.mark.postgres
@pytest.mark.faults
async def test_calls_to_a_database_that_hangs_fail_as_unreachable(postgres: PostgresProcess, parts: Parts) -> None:
    rubrics, operations, ledger = parts
    asks: dict[str, Callable[[], Awaitable[object]]] = {
        "find": lambda: rubrics.find("p", "team/parts"),
        "publish": lambda: rubrics.publish("p", "team/others", CONTENT),
        "operations": lambda: operations.list("p", 10),
        "runs": lambda: ledger.runs("p"),
        "write": lambda: asyncio.to_thread(ledger.write, LedgerRows([], [], [], [], [])),
    }
    postgres.send(signal.SIGSTOP)
    async with asyncio.timeout(60):
        with statement_timeout(LIMIT_S):
            for ask in asks.values():
                with pytest.raises(ConnectionError):
                    await ask()
            assert not await rubrics.ready()
            remembered = await rubrics.find("p", "team/parts@1")
    assert remembered is not None
    postgres.send(signal.SIGCONT)
    assert await rubrics.find("p", "team/parts@1") == remembered
    for ask in asks.values():
        await ask()


@pytest.mark.postgres
@pytest.mark.faults
async def test_a_read_whose_end_is_not_acknowledged_times_out_like_one_without_an_answer(
    postgres: PostgresProcess, url: str
) -> None:
    engine = open_engine(url)
    rubrics = RubricStore(engine)
    await rubrics.publish("p", "team/parts", CONTENT)

    @event.listens_for(engine.sync_engine, "after_cursor_execute", once=True)
    def stop(*_: object) -> None:
        postgres.send(signal.SIGSTOP)

    with statement_timeout(LIMIT_S):
        reading = asyncio.create_task(rubrics.find("p", "team/parts"))
    done, _ = await asyncio.wait({reading}, timeout=20)
    assert done
    assert isinstance(reading.exception(), ConnectionError)
    postgres.send(signal.SIGCONT)
    assert await rubrics.find("p", "team/parts") is not None
    await engine.dispose()


@pytest.mark.postgres
@pytest.mark.faults
async def test_a_call_cancelled_while_the_database_hangs_ends_at_once(postgres: PostgresProcess, parts: Parts) -> None:
    rubrics, _, _ = parts
    postgres.send(signal.SIGSTOP)
    asking = asyncio.create_task(rubrics.aliases("p", "team/parts"))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, 4)
    postgres.send(signal.SIGCONT)
    assert (await rubrics.aliases("p", "team/parts")).aliases == {}
