"""The recorder never blocks requests, writes nothing twice and counts every loss, whatever the ledger does."""

import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from judge_server.ledger import Recorder, RecorderLimits, RecorderTimes
from judge_server.scoring.planner import JudgedRequest
from rubric_store.ledger.rows import LedgerRows, RefusedRows
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.fixtures.waiting import wait_until
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import request

USES = 7


class FakeLedger:
    """A ledger that accepts rows, is unreachable, refuses some rows, or hangs, as the test sets."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.tries = 0
        self.away = False
        self.refuses: set[str] = set()
        self.goes_on = threading.Event()
        self.goes_on.set()

    def write(self, rows: LedgerRows) -> None:
        """As `Ledger.write`; keeps the ids of the requests."""
        self.tries += 1
        self.goes_on.wait(60)
        ids = [row.request_id for row in rows.requests]
        if self.away:
            raise ConnectionError("nobody there")
        if self.refuses.intersection(ids):
            raise ValueError("not these")
        self.written += ids

    def has_written(self, requests: int) -> bool:
        """Whether it has so many requests."""
        return len(self.written) == requests

    def salvage(self, rows: LedgerRows) -> list[RefusedRows]:
        """As `Ledger.salvage`; refuses whole requests."""
        kept, refused = [], []
        for row in rows.requests:
            (refused if row.request_id in self.refuses else kept).append(row)
        self.written += [row.request_id for row in kept]
        return [
            RefusedRows(
                LedgerRows(
                    [],
                    [verdict for verdict in rows.verdicts if verdict.request == row.request],
                    [row],
                    [response for response in rows.responses if response.request == row.request],
                    [use for use in rows.uses if use.request == row.request],
                ),
                "not this one",
            )
            for row in refused
        ]

    async def ready(self) -> bool:
        """Not used."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to do."""


@pytest.fixture
def ledger() -> Iterator[FakeLedger]:
    fake = FakeLedger()
    yield fake
    fake.goes_on.set()


@pytest.fixture
async def judged() -> Callable[[str], Any]:
    """Make a judged request with this id."""
    kept = SynchronousRecorder()
    made = await scorer(kept)

    async def make(request_id: str) -> JudgedRequest:
        await score(made, request(request_id), request_id)
        return kept.judged.pop()

    return make


QUICK = replace(RECORDER_TIMES, watch_interval_s=0.005, retry_delays_s=(0.005,), close_timeout_s=0.2)


@contextmanager
def recording(ledger: FakeLedger, spool: Path, times: RecorderTimes = QUICK, **limits: int) -> Iterator[Recorder]:
    running = Recorder(ledger, spool, limits=RecorderLimits(**limits), times=times)
    try:
        yield running
    finally:
        running.close()


async def test_recorded_requests_are_written_in_order(ledger: FakeLedger, tmp_path: Path, judged: Any) -> None:
    ids = [f"req_{n}" for n in range(20)]
    with recording(ledger, tmp_path) as running:
        for each in ids:
            running.record(await judged(each))
        wait_until(lambda: running.state().written == 20 * USES)
        assert running.state().model_dump() == {
            "keeps": "all", "recorded": 140, "written": 140, "waiting": 0, "lost": 0, "refused": 0, "refused_files": 0,
            "spool_bytes": 0, "memory_bytes": 0, "lag_s": 0.0, "restarts": 0, "problem": None, "spool_problem": None,
        }  # fmt: skip
    assert ledger.written == ids


async def test_a_graceful_stop_writes_the_latest_requests(ledger: FakeLedger, tmp_path: Path, judged: Any) -> None:
    with recording(ledger, tmp_path, replace(QUICK, close_timeout_s=60.0)) as running:
        running.record(await judged("req_1"))
    assert ledger.written == ["req_1"]
    assert os.listdir(tmp_path) == []


async def test_while_the_ledger_is_unreachable_rows_wait_and_are_then_written_once_and_in_order(
    ledger: FakeLedger, tmp_path: Path, judged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.away = True
    with recording(ledger, tmp_path) as running, caplog.at_level("INFO", logger="adjudge"):
        for number in range(5):
            running.record(await judged(f"req_{number}"))
            wait_until(lambda n=number: running.state().spool_bytes > 0 and ledger.tries > n)  # type: ignore[misc]
        state = running.state()
        assert (state.waiting, state.written, state.lost) == (5 * USES, 0, 0)
        assert state.problem == "the ledger cannot be written: nobody there"
        ledger.away = False
        wait_until(lambda: running.state().waiting == 0)
        assert running.state().problem is None
    assert ledger.written == [f"req_{n}" for n in range(5)]
    said = [record.message for record in caplog.records]
    assert sum("cannot be written" in line for line in said) == 1
    assert sum("can be written again" in line for line in said) == 1


async def test_what_was_spooled_survives_a_process_that_is_killed(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.away = True
    with recording(ledger, tmp_path / "spool") as running:
        for number in range(20):
            running.record(await judged(f"req_{number}"))
            await running.spooled()
            shutil.copytree(tmp_path / "spool", tmp_path / f"killed-{number}")
    ledger.away = False
    for requests in (1, 20):
        ledger.written.clear()
        with recording(ledger, tmp_path / f"killed-{requests - 1}"):
            wait_until(partial(ledger.has_written, requests))


async def test_a_ledger_that_hangs_blocks_neither_requests_nor_the_spool_nor_a_stop(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.goes_on.clear()
    with recording(ledger, tmp_path, replace(QUICK, close_timeout_s=0.01)) as running:
        running.record(await judged("req_1"))
        wait_until(lambda: ledger.tries == 1)
        before = running.state().spool_bytes
        running.record(await judged("req_2"))
        wait_until(lambda: running.state().spool_bytes > before)
    healthy = FakeLedger()
    with recording(healthy, tmp_path) as running:
        wait_until(lambda: running.state().written == 2 * USES)
    assert healthy.written == ["req_1", "req_2"]


async def test_refused_rows_are_quarantined_and_do_not_block_those_behind_them(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.goes_on.clear()
    ledger.refuses = {"req_1"}
    with recording(ledger, tmp_path) as running:
        running.record(await judged("req_0"))
        wait_until(lambda: ledger.tries == 1)
        for each in ("req_1", "req_2"):
            before = running.state().spool_bytes
            running.record(await judged(each))
            wait_until(lambda b=before: running.state().spool_bytes > b)  # type: ignore[misc]
        ledger.goes_on.set()
        wait_until(lambda: running.state().waiting == 0)
        state = running.state()
        assert (state.written, state.refused, state.lost, state.refused_files) == (2 * USES, USES, 0, 1)
    assert ledger.written == ["req_0", "req_2"]


async def test_requests_that_do_not_fit_in_memory_are_lost_and_counted(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    times = replace(QUICK, spool_interval_s=60.0, close_timeout_s=60.0)  # spools only when it is closed
    with recording(ledger, tmp_path, times, waiting_uses=2 * USES) as running:
        for number in range(4):
            running.record(await judged(f"req_{number}"))
        assert running.state().lost == 2 * USES
    assert sorted(ledger.written) == ["req_0", "req_1"]


async def test_a_request_larger_than_the_memory_bound_is_accepted_where_nothing_else_waits(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    with recording(ledger, tmp_path, waiting_uses=1) as running:
        running.record(await judged("req_1"))
        wait_until(lambda: running.state().written == USES)


async def test_rows_that_do_not_fit_in_the_spool_are_lost_and_counted(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    with recording(ledger, tmp_path, spool_bytes=100) as running:
        running.record(await judged("req_1"))
        wait_until(lambda: running.state().lost == USES)
        assert running.state().waiting == 0
    assert ledger.written == []


async def test_requests_within_the_batch_window_are_written_together(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    with recording(ledger, tmp_path, replace(QUICK, batch_window_s=60.0), batch_uses=3 * USES) as running:
        for number in range(3):
            before = running.state().spool_bytes
            running.record(await judged(f"req_{number}"))
            wait_until(lambda b=before: running.state().spool_bytes != b)  # type: ignore[misc]
        wait_until(lambda: running.state().written == 3 * USES)
        assert ledger.tries == 1
        running.record(await judged("req_3"))
    assert ledger.written == [f"req_{n}" for n in range(4)]
    assert ledger.tries == 2  # a stop does not wait for the batch window


async def test_written_rows_are_released_from_memory(ledger: FakeLedger, tmp_path: Path, judged: Any) -> None:
    entry = await judged("req_let_go")
    with recording(ledger, tmp_path) as running:
        running.record(entry)
        wait_until(lambda: running.state().written == USES)
        rows = [kept for kept in gc.get_objects() if type(kept) is LedgerRows]
    assert "req_let_go" not in [row.request_id for some in rows for row in some.requests]
