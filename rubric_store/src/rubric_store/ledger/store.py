"""`SQLLedger`: append rows, read pages and runs, purge runs, on SQLite or PostgreSQL.

No method blocks the event loop: coroutines work in threads of their own, and `write`, `salvage` and `purge` must be
called from a thread.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rubric_store.database import (
    POSTGRESQL,
    WRITES,
    TimeoutConnection,
    configure_engine,
    describe_error,
    libpq_timeouts,
    read_url,
    statement_timeout,
)
from rubric_store.ledger import charts, monitoring, purging, reading, writing
from rubric_store.ledger import labels as labelling
from rubric_store.ledger import runs as figures
from rubric_store.ledger.purging import REQUESTS_PER_BATCH
from rubric_store.ledger.rows import LedgerRows, PurgeCounts, RefusedRows
from rubric_store.ledger.runs import do_not_rest
from rubric_store.ledger.tables import requests

_READY_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_WRITE_TIMEOUT_S = 60.0
_READERS = 8
_RETRYABLE_SQLSTATE_CLASSES = frozenset({"08", "25", "40", "42", "53", "55", "57", "58"})
"""Classes of PostgreSQL's error codes about the connection, the transaction, the server, its locks or its schema."""

T = TypeVar("T")
P = ParamSpec("P")
_Method = Callable[Concatenate["SQLLedger", P], Coroutine[Any, Any, T]]


def _in_thread(work: Callable[Concatenate[Connection, P], T], *, writes: bool = False) -> "_Method[P, T]":
    """A method that does some work in one transaction, in a thread.

    It raises `ConnectionError` if the database cannot be reached, or written, and what `work` raises.
    """

    async def method(self: "SQLLedger", /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine = self._writer if writes else self._reader
        return await self._run(engine, lambda connection: work(connection, *args, **kwargs))

    method.__doc__ = work.__doc__
    return method


class SQLLedger:
    """The ledger in the database at a URL, separate for each project.

    Args:
        url: the database.
        rest: called every few rows while many are written to PostgreSQL, so that a thread that shares a process with
            other work can let that work run.

    Raises:
        DatabaseURLError: the store cannot use the URL.
    """

    def __init__(self, url: str, *, rest: Callable[[], None] = do_not_rest) -> None:
        self._rest = rest
        parsed = read_url(url)
        server = parsed.drivername == POSTGRESQL
        self._engine = create_engine(
            parsed if server else parsed.set(drivername="sqlite"),
            pool_pre_ping=server,
            connect_args=libpq_timeouts(parsed) if server else {},
        )
        configure_engine(self._engine)
        if server:
            event.listen(self._engine, "do_connect", _connect_with_timeout)
        event.listen(self._engine, "connect", _silence_notices if server else _set_sqlite_pragmas)
        self._writer = self._engine.execution_options(**{WRITES: True})
        self._readers = ThreadPoolExecutor(_READERS, "adjudge-ledger-reads")  # reads that hang block nothing else
        self._reader = self._engine.execution_options(isolation_level="REPEATABLE READ") if server else self._engine

    def write(self, rows: LedgerRows) -> None:
        """Write rows, all or none; existing rows stay as they are.

        Raises:
            ConnectionError: the database cannot be written; the same rows may be written later.
            ValueError: the database refuses these rows.
        """
        with self._transaction() as connection:
            writing.write(connection, rows, self._rest)

    def salvage(self, rows: LedgerRows) -> list[RefusedRows]:
        """Write refused rows request by request, and return those that the database still refuses.

        Rows that depend on a refused row are refused with it: the uses of a response, everything of a request. Calling
        this again with the same rows is safe.

        Raises:
            ConnectionError: the database cannot be written.
        """
        refused: list[RefusedRows] = []
        for one in writing.split_by_request(rows):
            try:
                self.write(one)
            except ValueError:
                try:
                    with self._transaction() as connection:
                        rest = writing.write_row_by_row(connection, one, self._refusal_reason)
                    refused += [rest] if rest is not None else []
                except ValueError as error:
                    refused.append(RefusedRows(one, str(error)))
        return refused

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Open a transaction for writing; raises `ConnectionError` and `ValueError` as `write` does."""
        try:
            with statement_timeout(_WRITE_TIMEOUT_S), self._writer.begin() as connection:
                yield connection
        except Exception as error:
            message, unavailable = self._classify_error(error)
            raise (ConnectionError(message) if unavailable else ValueError(message)) from error

    uses = _in_thread(reading.page)
    texts = _in_thread(reading.texts_of)
    short_texts = _in_thread(reading.short_texts_of)
    verdicts = _in_thread(reading.verdicts_of)
    judged_run = _in_thread(reading.judged_run)
    judged_responses = _in_thread(reading.judged_responses)
    responses = _in_thread(reading.responses_of)
    runs = _in_thread(figures.run_page)
    run = _in_thread(figures.run_report)
    monitored_run = _in_thread(monitoring.monitored_run)
    step_requests = _in_thread(monitoring.step_requests)
    criterion_groups = _in_thread(monitoring.criterion_groups)
    run_curves = _in_thread(charts.run_curves)
    run_charts = _in_thread(charts.run_charts)
    rubric_use = _in_thread(charts.rubric_use)
    set_measures = _in_thread(charts.set_measures, writes=True)
    set_label = _in_thread(labelling.set_label, writes=True)
    set_labels = _in_thread(labelling.set_labels, writes=True)
    labels = _in_thread(labelling.labels_of)
    label_counts = _in_thread(labelling.label_counts)
    labelled_uses = _in_thread(labelling.labelled_uses)
    recent_uses = _in_thread(labelling.recent_uses)

    def purge(
        self,
        project_id: str,
        *,
        run: str | None = None,
        before: datetime | None = None,
        advance: Callable[[int], None] = lambda _: None,
        requests_per_batch: int = REQUESTS_PER_BATCH,
    ) -> PurgeCounts:
        """Delete a run, or what is older than a time, or what is both; then unreferenced verdicts and texts.

        Each transaction deletes at most `requests_per_batch` requests. A run's figures are deleted with the last of its
        requests.

        Raises:
            ValueError: neither `run` nor `before` is given, which would delete everything.
        """
        if run is None and before is None:
            raise ValueError("say what to delete: a run, a time before which to delete, or both")
        return purging.purge(self._writer, project_id, run, before, advance, requests_per_batch)

    async def ready(self) -> bool:
        """Whether the ledger can be read: the database answers within five seconds and has the tables."""
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await self._run(
                    self._reader, lambda connection: connection.execute(select(requests.c.uses).limit(1)).all()
                )
        except OSError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._engine.dispose)

    async def _run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        """Run one transaction in a thread of the reads."""

        def run() -> T:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                message, unavailable = self._classify_error(error)
                if unavailable:
                    raise ConnectionError(message) from error
                raise

        with statement_timeout(_READ_TIMEOUT_S) as limit_s:
            reading = asyncio.get_running_loop().run_in_executor(self._readers, copy_context().run, run)
        try:
            async with asyncio.timeout(limit_s):
                return await reading
        except TimeoutError as error:
            raise ConnectionError(f"the database did not answer within {limit_s:g} s") from error

    def _refusal_reason(self, error: Exception) -> str:
        """Why a row is refused; re-raises an error that is not about the row."""
        message, unavailable = self._classify_error(error)
        if unavailable:
            raise error
        return message

    def _classify_error(self, error: Exception) -> tuple[str, bool]:
        """An error in one line, and whether it is about the database rather than the rows or the query."""
        cause = getattr(error, "orig", None) or error
        unavailable = isinstance(cause, PoolTimeout | OSError | self._engine.dialect.loaded_dbapi.OperationalError)
        unavailable = unavailable or (getattr(cause, "sqlstate", None) or "")[:2] in _RETRYABLE_SQLSTATE_CLASSES
        return describe_error(error), unavailable


def _connect_with_timeout(
    _dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]
) -> TimeoutConnection:
    return TimeoutConnection.connect(*arguments, **options)


def _silence_notices(connection: Any, _record: object) -> None:
    """Silence PostgreSQL's notice that a temporary table exists already."""
    with connection.cursor() as cursor:
        cursor.execute("SET client_min_messages = warning")
    connection.commit()


def _set_sqlite_pragmas(connection: Any, _record: object) -> None:
    """Cache 32 MB of pages, since digests come in random order; sync at checkpoints, which survives a kill.

    A checkpoint copies each changed page to the database once. It is due after 32 MB of the log: after SQLite's own
    4 MB, every transaction would end with one.
    """
    connection.execute("PRAGMA cache_size = -32000")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 8000")
