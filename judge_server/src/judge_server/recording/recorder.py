"""The recorder: takes judged requests, and brings them into the ledger by two threads; a request never waits for it.

One thread makes rows of what came in and puts them into the spool, five times a second. The other writes them to the
ledger, what came within half a second in one transaction, since a transaction costs it more than the rows do; and it
waits where the ledger is away. Both are daemons, so that a database that hangs does not keep a process from
stopping: what is in the spool by then is written by the next process.
"""

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from judge_server.ports import Ledger
from judge_server.recording.entry import Judged
from judge_server.recording.rows import rows_of
from judge_server.recording.spool import Spool, Spooled, SpoolFull, read_rows
from judge_server.telemetry.redaction import reason
from judge_server.telemetry.spans import span
from trainer_client.wire.ledger import LedgerState
from trainer_client.wire.ledger_rows import LedgerRows

log = logging.getLogger("adjudge")

_EVERY_S = 0.2
_TOGETHER_S = 0.5
_USES_AT_ONCE = 20_000
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_LAST_WRITES_S = 10.0
_TELL_EVERY_S = 10.0


class Recorder:
    """Records what is judged.

    Args:
        ledger: where it is kept.
        spool: the folder of the spool, made if need be.
        max_waiting: uses that may wait in memory; what comes beyond is lost, and counted.
        max_spool_bytes: what the spool may hold; the same.
        keep_texts: keep prompts, responses and groundings too.

    Raises:
        OSError: the spool's folder cannot be made.
    """

    def __init__(
        self,
        ledger: Ledger,
        spool: Path,
        *,
        max_waiting: int = 200_000,
        max_spool_bytes: int = 2**30,
        keep_texts: bool = True,
    ) -> None:
        self.ledger = ledger
        self._keep_texts = keep_texts
        self._max_waiting = max_waiting
        self._spool = Spool(spool, max_spool_bytes)
        self._state = threading.Condition()
        self._entries: deque[Judged] = deque()
        self._fresh: dict[Spooled, LedgerRows] = {}  # spares the writer from reading what it can have at once
        self._in_memory = 0
        self._recorded = self._written = self._lost = 0
        self._problem: str | None = None
        self._tell_again = 0.0
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"adjudge-{name}", daemon=True)
            for name, work in (("spooler", self._fill_spool), ("ledger", self._empty_spool))
        ]
        for thread in self._threads:
            thread.start()

    def record(self, judged: Judged) -> None:
        """Take a judged request over; where too many wait it is lost, which `state` counts. Never blocks."""
        uses = judged.uses
        with self._state:
            self._recorded += uses
            if self._in_memory + uses > self._max_waiting and self._in_memory:
                self._lose(uses, "too many verdicts wait in memory")
                return
            self._in_memory += uses
            self._entries.append(judged)

    def state(self) -> LedgerState:
        """How it stands."""
        with self._state:
            return LedgerState(
                keeps="all" if self._keep_texts else "verdicts",
                recorded=self._recorded,
                written=self._written,
                waiting=self._recorded - self._written - self._lost,
                lost=self._lost,
                spool_bytes=self._spool.bytes,
                lag_s=self._lag(),
                problem=self._problem,
            )

    def close(self) -> None:
        """Put everything into the spool, and what can be written in ten seconds into the ledger; blocks."""
        self._closing.set()
        spooler, writer = self._threads
        spooler.join()
        with self._state:
            self._state.notify_all()
        writer.join(_LAST_WRITES_S)
        self._stop.set()
        writer.join(1.0)
        with self._state:
            if self._spool.bytes:
                log.warning("%d bytes of the ledger stay in its spool until the next start", self._spool.bytes)
            self._spool.close()

    def _lag(self) -> float:
        """How long what waits longest has waited, in seconds; a spooled file since it was written."""
        file = self._spool.first()
        since = [self._entries[0].at.timestamp()] if self._entries else []
        with suppress(FileNotFoundError):  # the writer has just done with it
            since += [file.path.stat().st_mtime] if file is not None else []
        return max(0.0, time.time() - min(since)) if since else 0.0

    def _fill_spool(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_EVERY_S)
            while taken := self._take():
                self._spool_entries(taken)

    def _take(self) -> list[Judged]:
        taken, uses = [], 0
        with self._state:
            while self._entries and uses < _USES_AT_ONCE:
                taken.append(self._entries.popleft())
                uses += taken[-1].uses
        return taken

    def _spool_entries(self, entries: list[Judged]) -> None:
        uses = sum(entry.uses for entry in entries)
        try:
            rows = rows_of(entries, keep_texts=self._keep_texts)
            file = self._spool.add(rows)
        except SpoolFull:
            problem: str | None = "the spool is full"
        except Exception as error:  # what cannot be recorded must not end the thread that records
            log.exception("%d verdicts could not be recorded", uses)
            problem = reason(error)
        else:
            problem = None
        with self._state:
            self._in_memory -= uses
            if problem is not None:
                self._lose(uses, problem)
                return
            if sum(fresh.uses or 0 for fresh in self._fresh) + uses <= _USES_AT_ONCE or not self._fresh:
                self._fresh[file] = rows
            self._state.notify_all()

    def _empty_spool(self) -> None:
        failures = alone = 0
        while files := self._next(alone=alone > 0):
            alone = max(0, alone - 1)
            try:
                written = self._write(files)
            except ConnectionError as error:
                self._say(f"the ledger cannot be written: {error}")
                self._stop.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                failures += 1
                continue
            except Exception:  # rows that nobody can write must not hold up those beside and behind them
                if len(files) > 1:
                    alone = len(files)
                    continue
                log.exception("the ledger refused %s, which is given up", files[0].path.name)
                self._done(files, lost=files[0].uses or 0)
            else:
                self._done(files, written=written)
            failures = 0

    def _write(self, files: list[Spooled]) -> int:
        """Write them together; how many uses they hold. Their rows are let go of before the next are waited for."""
        rows = _together([self._rows_of(file) for file in files])
        with span("ledger write", verdicts=len(rows.uses)):
            self.ledger.write(rows)
        return len(rows.uses)

    def _rows_of(self, file: Spooled) -> LedgerRows:
        fresh = self._fresh.get(file)
        return read_rows(file) if fresh is None else fresh

    def _next(self, *, alone: bool) -> list[Spooled]:
        """The oldest files, to be written together, or the oldest one; waited for. None when there is no more to do."""
        with self._state:
            while self._spool.first() is None:
                if self._closing.is_set() and not self._threads[0].is_alive():
                    return []
                self._state.wait(_EVERY_S)
            until = time.monotonic() + (0.0 if alone else _TOGETHER_S)
            while sum(file.uses or _USES_AT_ONCE for file in self._spool.oldest(_USES_AT_ONCE)) < _USES_AT_ONCE:
                left = until - time.monotonic()
                if self._closing.is_set() or left <= 0:
                    break
                self._state.wait(left)
            return [] if self._stop.is_set() else self._spool.oldest(1 if alone else _USES_AT_ONCE)

    def _done(self, files: list[Spooled], *, written: int = 0, lost: int = 0) -> None:
        for _ in files:
            self._spool.remove_first()
        with self._state:
            for file in files:
                self._fresh.pop(file, None)
            self._recorded += written if files[0].uses is None else 0  # another process had counted those it left
            self._written += written
            self._lost += lost
        self._say(None)

    def _say(self, problem: str | None) -> None:
        with self._state:
            before, self._problem = self._problem, problem
        if problem is not None and before is None:
            log.warning("%s; what is judged waits in the spool", problem)
        elif problem is None and before is not None:
            log.info("the ledger can be written again")

    def _lose(self, uses: int, why: str) -> None:
        self._lost += uses
        if time.monotonic() >= self._tell_again:
            self._tell_again = time.monotonic() + _TELL_EVERY_S
            log.warning("the ledger lost %d verdicts so far: %s", self._lost, why)


def _together(some: list[LedgerRows]) -> LedgerRows:
    if len(some) == 1:
        return some[0]
    return LedgerRows(*([row for rows in of_a_kind for row in rows] for of_a_kind in zip(*some, strict=True)))
