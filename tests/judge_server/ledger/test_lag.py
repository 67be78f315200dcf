"""The lag of the ledger, as the recorder reports it and metrics show it."""

import os
import time
from pathlib import Path
from typing import Any

from judge_server.observability.metrics import LedgerMetrics
from judge_server.ports.stores import LedgerState
from tests.fixtures.waiting import wait_until
from tests.judge_server.ledger.test_recorder import USES, FakeLedger, judged, ledger, recording
from tests.judge_server.ledger.test_spool import files

__all__ = ["judged", "ledger"]


async def test_the_lag_is_the_age_of_the_oldest_waiting_entry_and_zero_once_it_is_written(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.away = True
    with recording(ledger, tmp_path) as before:
        assert before.state().lag_s == 0
        before.record(await judged("req_0"))
        wait_until(lambda: before.state().problem is not None)
    [waiting] = files(tmp_path)
    os.utime(waiting, (time.time() - 100, time.time() - 100))
    with recording(ledger, tmp_path) as running:
        running.record(await judged("req_1"))
        assert 100 <= running.state().lag_s < 200
        ledger.away = False
        wait_until(lambda: running.state().written == 2 * USES)
        assert running.state().lag_s == 0


def samples(state: LedgerState) -> dict[str, float]:
    """Every metric sample of this state, by name and label."""
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for metric in LedgerMetrics(lambda: state).collect()
        for sample in metric.samples
    }


def test_metrics_agree_with_the_state() -> None:
    state = LedgerState(
        keeps="all", recorded=10, written=5, waiting=1, lost=2, refused=2, refused_files=1, spool_bytes=77,
        memory_bytes=33, lag_s=1.5, restarts=4, problem="not there", spool_problem="no space",
    )  # fmt: skip
    assert samples(state) == {
        "adjudge_ledger_verdicts_total recorded": 10,
        "adjudge_ledger_verdicts_total written": 5,
        "adjudge_ledger_verdicts_total refused": 2,
        "adjudge_ledger_verdicts_total lost": 2,
        "adjudge_ledger_waiting": 1,
        "adjudge_ledger_spool_bytes": 77,
        "adjudge_ledger_memory_bytes": 33,
        "adjudge_ledger_refused_files": 1,
        "adjudge_ledger_thread_restarts_total": 4,
        "adjudge_ledger_spool_writable": 0,
        "adjudge_ledger_lag_seconds": 1.5,
        "adjudge_ledger_writable": 0,
    }
    well = samples(state.model_copy(update={"problem": None, "spool_problem": None}))
    assert (well["adjudge_ledger_writable"], well["adjudge_ledger_spool_writable"]) == (1, 1)
