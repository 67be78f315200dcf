"""`SQLLedger`: append rows, read pages and runs, purge runs, on SQLite or PostgreSQL.

No method blocks the event loop: coroutines work in threads of their own, and `write`, `salvage` and `purge` must be
called from a thread.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rubric_store.database import (
    POSTGRESQL,
    WRITES,
    TimeoutConnection,
    configure_engine,
    libpq_timeouts,
    read_url,
    statement_timeout,
)
from rubric_store.ledger import charts, labels, monitoring, purging, reading, writing
from rubric_store.ledger import runs as runs_reading
from rubric_store.ledger.rows import (
    JudgedResponse,
    JudgedRun,
    LabelCount,
    LabelFilter,
    LabelledUse,
    LabelRow,
    LedgerRows,
    MonitoredRun,
    MonitorQuery,
    PurgeCounts,
    RecentFilter,
    RefusedRows,
    ResponseFilter,
    ResponseRecord,
    RubricUse,
    RunChartQuery,
    RunCharts,
    RunRange,
    RunReportQuery,
    UseFilter,
    UseRecord,
    VerdictKey,
)
from rubric_store.ledger.runs import do_not_rest
from rubric_store.ledger.tables import requests
from trainer_client.wire.ledger import RunPage, RunReport

_READY_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_WRITE_TIMEOUT_S = 60.0
_READERS = 8
_RETRYABLE_SQLSTATE_CLASSES = frozenset({"08", "25", "40", "42", "53", "55", "57", "58"})
"""Classes of PostgreSQL's error codes about the connection, the transaction, the server, its locks or its schema."""

T = TypeVar("T")


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

    async def uses(self, wanted: UseFilter) -> list[UseRecord]:
        """A page of a run's uses that match a filter, in order, with all their votes."""
        return await self._read(lambda connection: reading.page(connection, wanted))

    async def texts(self, project_id: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Texts by digest, as JSON, without those that the ledger does not keep."""
        return await self._read(lambda connection: reading.texts_of(connection, project_id, digests))

    async def judged_run(self, part: RunRange) -> JudgedRun:
        """The number of requests and uses in a part of a run, its protocols and its rubrics."""
        return await self._read(lambda connection: reading.judged_run(connection, part))

    async def judged_responses(
        self, part: RunRange, after: bytes | None, count: int
    ) -> tuple[list[JudgedResponse], bytes | None]:
        """Responses of a part of a run, with about `count` uses, and the key to continue after; None at the end."""
        return await self._read(lambda connection: reading.judged_responses(connection, part, after, count))

    async def runs(self, project_id: str, *, text: str = "", after: str | None = None, limit: int = 100) -> RunPage:
        """A page of a project's runs, the most recently judged first, whose names contain a text.

        Raises:
            CursorError: the cursor is invalid.
        """
        return await self._read(lambda connection: runs_reading.run_page(connection, project_id, text, after, limit))

    async def run(self, view: RunReportQuery) -> RunReport | None:
        """A run's figures with a page of its steps; None if the run does not exist.

        Raises:
            CursorError: the cursor is invalid.
        """
        return await self._read(lambda connection: runs_reading.run_report(connection, view))

    async def monitored_run(self, query: MonitorQuery) -> MonitoredRun:
        """What monitors read of a run; no steps if the run does not exist."""
        return await self._read(lambda connection: monitoring.monitored_run(connection, query))

    async def run_curves(
        self, project_id: str, runs: Sequence[str], buckets: int
    ) -> dict[str, tuple[float | None, ...]]:
        """The mean reward of each run by bucket of steps; runs without a step are absent."""
        return await self._read(lambda connection: charts.run_curves(connection, project_id, runs, buckets))

    async def run_charts(self, wanted: RunChartQuery) -> RunCharts:
        """What the charts of a run show."""
        return await self._read(lambda connection: charts.run_charts(connection, wanted))

    async def rubric_use(self, project_id: str, digests: Sequence[bytes], limit: int) -> RubricUse:
        """The latest runs that used one of some rubrics, and the verdicts in them by rubric and criterion."""
        return await self._read(lambda connection: charts.rubric_use(connection, project_id, digests, limit))

    async def responses(self, wanted: ResponseFilter) -> list[ResponseRecord]:
        """The selected responses of a run, oldest first, with all their votes."""
        return await self._read(lambda connection: reading.responses_of(connection, wanted))

    async def set_measures(self, project_id: str, run: str, step: int, values: Mapping[str, float]) -> None:
        """Set what a trainer reports of a step; those of other names stay.

        Raises:
            ConnectionError: the database cannot be written.
        """
        await self._in_thread(
            self._writer, lambda connection: charts.set_measures(connection, project_id, run, step, values)
        )

    async def set_label(self, project_id: str, verdict: VerdictKey, labeller: str, met: bool | None) -> LabelRow | None:
        """Set a person's label of a verdict, or remove it if `met` is None; a person has one label per verdict.

        Raises:
            LookupError: the verdict does not exist.
            ConnectionError: the database cannot be written.
        """
        return await self._in_thread(
            self._writer, lambda connection: labels.set_label(connection, project_id, verdict, labeller, met)
        )

    async def set_labels(self, project_id: str, given: Mapping[VerdictKey, bool | None], labeller: str) -> None:
        """Set or remove a person's labels of several verdicts, all or none; raises as `set_label` does."""

        def work(connection: Connection) -> None:
            for verdict, met in sorted(given.items(), key=lambda one: one[0]):  # so that two writers cannot deadlock
                labels.set_label(connection, project_id, verdict, labeller, met)

        await self._in_thread(self._writer, work)

    async def labels(self, wanted: LabelFilter) -> list[LabelRow]:
        """The labels of a run that match a filter, by verdict and person."""
        return await self._read(lambda connection: labels.labels_of(connection, wanted))

    async def label_counts(self, project_id: str) -> list[LabelCount]:
        """How many labels each person gave in each run, the most recently labelled first."""
        return await self._read(lambda connection: labels.label_counts(connection, project_id))

    async def labelled_uses(self, wanted: LabelFilter) -> list[LabelledUse]:
        """The labelled verdicts of a run that match a filter, oldest first, with their labels."""
        return await self._read(lambda connection: labels.labelled_uses(connection, wanted))

    async def recent_uses(self, wanted: RecentFilter) -> list[UseRecord]:
        """The verdicts of judges in the latest requests of a run, with all their votes."""
        return await self._read(lambda connection: labels.recent_uses(connection, wanted))

    def purge(
        self,
        project_id: str,
        *,
        run: str | None = None,
        before: datetime | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> PurgeCounts:
        """Delete a run, or what is older than a time, or what is both; then unreferenced verdicts and texts.

        A run's figures are deleted with the last of its requests.

        Raises:
            ValueError: neither `run` nor `before` is given, which would delete everything.
        """
        if run is None and before is None:
            raise ValueError("say what to delete: a run, a time before which to delete, or both")
        return purging.purge(self._writer, project_id, run, before, advance)

    async def ready(self) -> bool:
        """Whether the ledger can be read: the database answers within five seconds and has the tables."""
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await self._read(lambda connection: connection.execute(select(requests.c.uses).limit(1)).all())
        except OSError:
            return False
        return True

    async def close(self) -> None:
        """Close the connections."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._engine.dispose)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._in_thread(self._reader, work)

    async def _in_thread(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        """Run one transaction in a thread of the reads."""

        def run() -> T:
            try:
                with statement_timeout(_READ_TIMEOUT_S), engine.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                message, unavailable = self._classify_error(error)
                if unavailable:
                    raise ConnectionError(message) from error
                raise

        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._readers, run)
        except TimeoutError as error:
            raise ConnectionError(f"the database did not answer within {_READ_TIMEOUT_S:g} s") from error

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
        return f"{type(cause).__name__}: {(str(cause).strip() or 'no reason given').splitlines()[0]}", unavailable


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
