"""The recorder: takes judged requests and writes them to the ledger in the background.

A request never waits for the recorder. One thread converts requests to rows and adds them to the spool, five times a
second. Another writes the spool to the ledger: the rows of half a second in one transaction, or of two seconds under
load, since a transaction costs more than its rows; it retries while the ledger cannot be reached. A third restarts the
other two if they crash. All are daemon threads, so that a hanging database does not keep the process from stopping; the
next process writes what is left in the spool.

For operations, `AttemptRecorder` records only the attempt at a chunk whose response the operation keeps, so the ledger
has each group once, as in its result. docs/reference/ledger.md lists the exceptions.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from judge_server.judging.replies import combine_votes
from judge_server.ledger.rows import rows_of
from judge_server.ledger.spool import (
    MAX_MEMORY_BYTES,
    MAX_QUARANTINE_BYTES,
    QUARANTINE_FOLDER,
    Quarantine,
    QuarantineFull,
    Spool,
    SpoolEntry,
    SpoolFull,
    decode,
)
from judge_server.observability.logs import describe_error
from judge_server.observability.tracing import span
from judge_server.ports import CallFailure, Ledger
from judge_server.ports.stores import LedgerState
from judge_server.scheduling.time_sharing import throttle_thread
from judge_server.scoring.planner import JudgedRequest, RecordSink
from rubric_store.ledger.rows import LedgerRows, RefusedRows

log = logging.getLogger("adjudge")

SPOOL_INTERVAL_S = 0.2
"""Interval at which judged requests are written to the spool. A killed process loses the verdicts of this time."""

BATCH_WINDOW_S = 0.5
"""Time in which rows are collected for one transaction. If it is shorter, the database writes more transactions; if it
is longer, verdicts appear later in the ledger and the console."""

_BUSY_WINDOW_S, _BUSY_USES = 2.0, 2_000
"""The window of a batch that has this many uses already. Digests come in random order, so a transaction rewrites a page
of the database for almost every verdict; fewer and larger ones rewrite fewer pages."""
_BACKLOG_SHARE = 0.4
"""The threads are throttled while fewer uses wait to be written than this share of those that may wait in memory."""
_LOG_INTERVAL_S = 10.0

TRANSIENT_FAILURES = frozenset({"timeout", "engine", "overloaded"})
"""The kinds of failed verdicts that may succeed in another attempt."""


@dataclass(frozen=True, slots=True)
class RecorderTimes:
    """The recorder's intervals in seconds.

    Attributes:
        spool_interval_s: the interval at which judged requests are written to the spool.
        batch_window_s: the time in which rows are collected for one transaction.
        watch_interval_s: the interval at which threads that crashed are looked for.
        retry_delays_s: the pauses before further attempts to write; the last one is repeated.
        close_timeout_s: how long `close` writes to the ledger what is in the spool.
    """

    spool_interval_s: float = SPOOL_INTERVAL_S
    batch_window_s: float = BATCH_WINDOW_S
    watch_interval_s: float = 1.0
    retry_delays_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0)
    close_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RecorderLimits:
    """How much the recorder holds. Rows above a limit are counted as lost, except for `batch_uses`.

    Attributes:
        waiting_uses: the maximum number of uses in memory that are not in the spool yet.
        spool_bytes: the maximum size of the spool.
        memory_bytes: the maximum size of rows in memory while the spool cannot be written.
        quarantine_bytes: the maximum size of the quarantine.
        batch_uses: the number of uses that are written in one transaction.
    """

    waiting_uses: int = 200_000
    spool_bytes: int = 2**30
    memory_bytes: int = MAX_MEMORY_BYTES
    quarantine_bytes: int = MAX_QUARANTINE_BYTES
    batch_uses: int = 20_000


class _BatchRefusedError(Exception):
    """The ledger refused a batch of several files; they must be written one by one."""


class Recorder:
    """Records judged requests in a ledger.

    Args:
        ledger: the ledger to write to.
        spool: the folder of the spool, created if it does not exist.
        keep_texts: also keep prompts, responses and groundings.
        limits: how much it holds.
        times: its intervals.

    Raises:
        OSError: the folder of the spool cannot be created.
    """

    def __init__(
        self,
        ledger: Ledger,
        spool: Path,
        *,
        keep_texts: bool = True,
        limits: RecorderLimits = RecorderLimits(),
        times: RecorderTimes = RecorderTimes(),
    ) -> None:
        self.ledger = ledger
        self._keep_texts = keep_texts
        self._limits = limits
        self._times = times
        self._spool = Spool(spool, limits.spool_bytes, limits.memory_bytes)
        self._quarantine = Quarantine(spool / QUARANTINE_FOLDER, limits.quarantine_bytes)
        self._state = threading.Condition()
        self._entries: deque[JudgedRequest] = deque()
        self._spooling: list[JudgedRequest] = []  # kept here for a spooler that is restarted
        self._unwritten_rows: dict[SpoolEntry, LedgerRows] = {}  # saves the writer from reading the files
        self._accepted = self._in_memory = 0
        self._recorded = self._written = self._lost = self._refused = self._restarts = 0
        self._problem: str | None = None
        self._spool_problem: str | None = None
        self._next_log_at = 0.0
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._spooler = _WorkerThread("spooler", self._spool_loop)
        self._writer = _WorkerThread("ledger", self._write_loop)
        threading.Thread(target=self._watch, name="adjudge-ledger-watch", daemon=True).start()

    def record(self, judged: JudgedRequest) -> None:
        """Add a judged request. If too many wait in memory, it is lost, which `state` counts. Never blocks."""
        uses = judged.use_rows
        with self._state:
            self._recorded += uses
            if self._in_memory + uses > self._limits.waiting_uses and self._in_memory:
                self._count_lost(uses, "too many verdicts wait in memory")
                return
            self._accepted += uses
            self._in_memory += uses
            self._entries.append(judged)

    async def spooled(self) -> None:
        """Wait until everything recorded so far is in the spool or counted as lost."""
        with self._state:
            accepted = self._accepted
        while self._accepted - self._in_memory < accepted:  # noqa: ASYNC110 - another thread spools
            await asyncio.sleep(self._times.spool_interval_s / 4)

    def state(self) -> LedgerState:
        """The current state of recording."""
        with self._state:
            return LedgerState(
                keeps="all" if self._keep_texts else "verdicts",
                recorded=self._recorded,
                written=self._written,
                waiting=self._waiting,
                lost=self._lost,
                refused=self._refused,
                refused_files=self._quarantine.files,
                spool_bytes=self._spool.bytes,
                memory_bytes=self._spool.memory_bytes,
                lag_s=self._lag(),
                restarts=self._restarts,
                problem=self._problem,
                spool_problem=self._spool_problem,
            )

    @property
    def failure_reason(self) -> str | None:
        """Why requests cannot be recorded safely; None if they can. An unreachable database is not a reason."""
        crashed = [worker.name for worker in (self._spooler, self._writer) if worker.crashed]
        if crashed:
            return f"its thread {crashed[0]!r} crashed and is being restarted"
        return None if self._spool_problem is None else f"its spool cannot be written: {self._spool_problem}"

    def close(self) -> None:
        """Write everything to the spool, and to the ledger what can be written in `close_timeout_s`. Blocks."""
        self._closing.set()
        self._spooler.done.wait()
        with self._state:
            self._state.notify_all()
        self._writer.done.wait(self._times.close_timeout_s)
        self._stop.set()
        self._writer.done.wait(1.0)
        with self._state:
            if self._spool.bytes:
                log.warning("%d bytes of the ledger stay in its spool until the next start", self._spool.bytes)
            if lost := self._spool.close():
                self._lost += lost
                log.error("%d verdicts are lost: the process ends, and the ledger's spool cannot be written", lost)

    def _watch(self) -> None:
        """Restart threads that have crashed."""
        while not self._stop.wait(self._times.watch_interval_s):
            try:
                self._quarantine.refresh()
                for worker in (self._spooler, self._writer):
                    if worker.crashed:
                        worker.start()
                        self._restarts += 1
                        log.error("the ledger's thread %r crashed and was started again", worker.name)
            except Exception:  # such as no memory for a thread, or no file descriptor
                log.exception("the ledger's threads cannot be checked; trying again")

    def _lag(self) -> float:
        """The age in seconds of the oldest waiting entry; in the spool, the time since it was spooled."""
        file = self._spool.first()
        since = [self._entries[0].at.timestamp()] if self._entries else []
        since += [file.since] if file is not None else []
        return max(0.0, time.time() - min(since)) if since else 0.0

    def _is_behind(self) -> bool:
        """Whether writing is more urgent than the requests of this process: there is a backlog, or the process ends."""
        return self._closing.is_set() or self._waiting > _BACKLOG_SHARE * self._limits.waiting_uses

    @property
    def _waiting(self) -> int:
        """The number of uses that are not in the database yet."""
        return self._recorded - self._written - self._lost - self._refused

    def _spool_loop(self) -> None:
        throttle_thread(self._is_behind)
        closing = False
        while not closing:
            closing = self._closing.wait(self._times.spool_interval_s)
            self._spool.flush_pending()
            while self._spooling or self._take_entries():
                self._spool_entries()
            self._set_spool_problem(self._spool.problem)

    def _take_entries(self) -> bool:
        """Move waiting requests to `_spooling`, up to the batch size; return whether there are any."""
        uses = 0
        with self._state:
            while self._entries and uses < self._limits.batch_uses:
                self._spooling.append(self._entries.popleft())
                uses += self._spooling[-1].use_rows
        return bool(self._spooling)

    def _spool_entries(self) -> None:
        batch_size = len(self._spooling)
        while self._spooling:
            entries = self._spooling[:batch_size]
            uses = sum(entry.use_rows for entry in entries)
            file = rows = problem = None
            try:
                rows = rows_of(entries, keep_texts=self._keep_texts)
                file = self._spool.add(rows)
            except SpoolFull as error:
                problem = str(error)
            except Exception as error:
                if len(entries) > 1:  # one of them is at fault and must not affect the others
                    batch_size = 1
                    continue
                log.exception("%d verdicts could not be recorded", uses)
                problem = describe_error(error)
            with self._state:
                del self._spooling[: len(entries)]
                self._in_memory -= uses
                if file is None or rows is None:
                    self._count_lost(uses, problem or "")
                    continue
                in_memory = sum(cached_rows.uses or 0 for cached_rows in self._unwritten_rows)
                if in_memory + uses <= self._limits.batch_uses or not self._unwritten_rows:
                    self._unwritten_rows[file] = rows
                self._state.notify_all()

    def _write_loop(self) -> None:
        throttle_thread(self._is_behind)
        failures = one_by_one = 0
        while files := self._next_files(one_by_one=one_by_one > 0):
            one_by_one = max(0, one_by_one - 1)
            try:
                self._finish_files(*self._write(files))
            except _BatchRefusedError:
                one_by_one = len(files)
                continue
            except ConnectionError as error:
                self._set_problem(f"the ledger cannot be written: {error}")
            except Exception:  # such as a file that cannot be read now, or no space for refused rows
                log.exception("%s of the ledger's spool cannot be processed now; trying again", files[0].name)
                self._spool.requeue(files[0])
            else:
                failures = 0
                continue
            delays_s = self._times.retry_delays_s
            self._stop.wait(delays_s[min(failures, len(delays_s) - 1)])
            failures += 1

    def _write(self, files: list[SpoolEntry]) -> tuple[list[SpoolEntry], int, int, int]:
        """Write files together; returns the finished files, and the numbers of uses written, refused and lost.

        Returning frees the rows before the next files are waited for.
        """
        files, rows_by_file = self._read(files)
        if not files:
            return [], 0, 0, 0
        rows = LedgerRows.concat(rows_by_file)
        del rows_by_file
        with span("ledger write", verdicts=len(rows.uses)):
            try:
                self.ledger.write(rows)
            except ConnectionError:
                raise
            except Exception as error:
                if len(files) > 1:
                    raise _BatchRefusedError from error
                return files, *self._salvage(files[0], rows, error)
        return files, len(rows.uses), 0, 0

    def _read(self, files: list[SpoolEntry]) -> tuple[list[SpoolEntry], list[LedgerRows]]:
        """Read files; returns the readable ones and their rows. Raises `OSError` if none can be read now."""
        readable, rows, problem = [], [], None
        for file in files:
            try:
                cached_rows = self._unwritten_rows.get(file)
                rows.append(decode(file.read()) if cached_rows is None else cached_rows)
                readable.append(file)
            except FileNotFoundError:
                log.exception("another program removed %s from the ledger's spool", file.name)
                self._finish_files([file], 0, 0, file.uses or 0)
            except OSError as error:
                problem = error
                if len(files) > 1:
                    self._spool.requeue(file)
            except ValueError as error:
                self._set_aside_unreadable(file, error)
        if problem is not None and not readable:
            raise problem
        return readable, rows

    def _salvage(self, file: SpoolEntry, rows: LedgerRows, error: Exception) -> tuple[int, int, int]:
        """Write the rows that the ledger accepts one by one, and quarantine the others.

        Returns the numbers of uses written, refused and lost.
        """
        try:
            refused = self.ledger.salvage(rows)
        except ConnectionError:
            raise
        except Exception:
            log.exception("no row of %s could be salvaged", file.name)
            refused = [RefusedRows(rows, describe_error(error))]
        lost = 0
        for item in refused:
            try:
                self._quarantine.add(item)
            except QuarantineFull:
                lost += len(item.rows.uses)
        uses = sum(len(item.rows.uses) for item in refused)
        if refused:
            log.error(
                "the ledger refused rows of %d requests, with %d verdicts, and %d of these verdicts are in "
                "quarantine; see `adjudge ledger refused`",
                len(refused), uses, uses - lost,
            )  # fmt: skip
        return len(rows.uses) - uses, uses - lost, lost

    def _set_aside_unreadable(self, file: SpoolEntry, error: ValueError) -> None:
        """Quarantine a file whose rows this version cannot read."""
        log.error("%s of the ledger's spool cannot be read and is quarantined", file.name, exc_info=error)
        try:
            self._quarantine.add_unreadable(file.read(), f"the file cannot be read: {error}")
        except QuarantineFull:
            self._finish_files([file], 0, 0, file.uses or 0)
        else:
            self._finish_files([file], 0, file.uses or 0, 0)

    def _next_files(self, *, one_by_one: bool) -> list[SpoolEntry]:
        """Wait for the next batch of files, or the next single file; empty if the recorder is closed."""
        batch_uses, window_s = self._limits.batch_uses, self._times.batch_window_s
        with self._state:
            while self._spool.first() is None:
                if self._spooler.done.is_set():
                    return []
                self._state.wait(self._times.spool_interval_s)
            began = time.monotonic()
            while (uses := self._uses_to_write()) < batch_uses:
                window = window_s if uses < _BUSY_USES else max(window_s, _BUSY_WINDOW_S)
                left = began + window - time.monotonic()
                if one_by_one or self._closing.is_set() or left <= 0:
                    break
                self._state.wait(left)
            return [] if self._stop.is_set() else self._spool.oldest(1 if one_by_one else batch_uses)

    def _uses_to_write(self) -> int:
        """The uses of the next batch as it is now."""
        batch_uses = self._limits.batch_uses
        return sum(file.uses or batch_uses for file in self._spool.oldest(batch_uses))

    def _finish_files(self, files: list[SpoolEntry], written: int, refused: int, lost: int) -> None:
        for file in files:
            self._spool.remove(file)
        with self._state:
            for file in files:
                self._unwritten_rows.pop(file, None)
                if file.uses is None:  # a file of an earlier process, which is written alone
                    self._recorded += written + refused + lost
            self._written += written
            self._refused += refused
            if lost:
                self._count_lost(lost, "a file of its spool was removed, or the quarantine is full")
        if files:
            self._set_problem(None)

    def _set_problem(self, problem: str | None) -> None:
        with self._state:
            before, self._problem = self._problem, problem
        if problem is not None and before is None:
            log.warning("%s; judged requests wait in the spool", problem)
        elif problem is None and before is not None:
            log.info("the ledger can be written again")

    def _set_spool_problem(self, problem: str | None) -> None:
        before, self._spool_problem = self._spool_problem, problem
        if problem is not None and before is None:
            log.error("the ledger's spool cannot be written: %s; judged requests wait in memory", problem)
        elif problem is None and before is not None:
            log.info("the ledger's spool can be written again")

    def _count_lost(self, uses: int, why: str) -> None:
        self._lost += uses
        if time.monotonic() >= self._next_log_at:
            self._next_log_at = time.monotonic() + _LOG_INTERVAL_S
            log.error("the ledger has lost %d verdicts so far: %s", self._lost, why)


class _WorkerThread:
    """A thread that runs until its work returns; `start` runs it again after a crash."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self._work = work
        self.done = threading.Event()
        self.start()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"adjudge-{self.name}", daemon=True)
        self._thread.start()

    @property
    def crashed(self) -> bool:
        """Whether the thread ended before its work was done."""
        return not self._thread.is_alive() and not self.done.is_set()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException:  # the watching thread restarts this one
            log.exception("the ledger's thread %r crashed with an unexpected error", self.name)
        else:
            self.done.set()


class AttemptRecorder:
    """Records an attempt at a chunk unless the attempt got no response, or failed and will be retried."""

    def __init__(self, records: RecordSink, *, will_retry: bool) -> None:
        self._records = records
        self._will_retry = will_retry

    def record(self, judged: JudgedRequest) -> None:
        """Record a judged request, unless its attempt does not count."""
        was_answered = judged.reward_rules is None or bool(judged.rewards)
        if was_answered and not (self._will_retry and _has_transient_failure(judged)):
            self._records.record(judged)


def _has_transient_failure(judged: JudgedRequest) -> bool:
    """Whether a verdict failed that may succeed in another attempt."""
    plans = [response.plan for group in judged.groups for response in group.responses]
    verdicts = [
        combine_votes([judged.outcomes.by_digest[d] for d in one.digests])
        for plan in plans
        for one in plan.pending
        if one.digests  # rubric dropout left the others out
    ]
    return any(isinstance(verdict, CallFailure) and verdict.kind in TRANSIENT_FAILURES for verdict in verdicts)
