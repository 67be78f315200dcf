"""Failures of the recorder's file system and threads: within its bounds nothing is lost, and failures are reported."""

import errno
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judge_server.ledger import Recorder
from judge_server.ledger.spool import Quarantine, Spool
from rubric_store import SQLLedger
from rubric_store.ledger.rows import LedgerRows, UseFilter
from tests.fixtures.migrated import NewSQLite
from tests.fixtures.waiting import wait_until
from tests.judge_server.ledger.test_recorder import QUICK, USES, FakeLedger, judged, ledger, recording
from tests.judge_server.ledger.test_spool import no_space
from tests.rubric_store.ledger_rows import request

__all__ = ["judged", "ledger"]


async def record(running: Recorder, judged: Any, *ids: str) -> None:
    for each in ids:
        running.record(await judged(each))


async def test_while_the_spool_cannot_be_written_the_ledger_is_written_from_memory(
    ledger: FakeLedger, tmp_path: Path, judged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(ledger, tmp_path) as running, caplog.at_level("INFO", logger="adjudge"):
        with no_space():
            await record(running, judged, "req_0", "req_1")
            wait_until(lambda: running.state().written == 2 * USES)
            wait_until(lambda: running.failure_reason is not None)
            assert "No space left" in (running.state().spool_problem or "")
        await record(running, judged, "req_2")
        wait_until(lambda: running.state().written == 3 * USES)
        wait_until(lambda: running.failure_reason is None)
        assert running.state().lost == 0
    said = [line.message for line in caplog.records]
    assert sum("spool cannot be written" in line for line in said) == 1
    assert sum("spool can be written again" in line for line in said) == 1


async def test_without_spool_and_database_rows_wait_in_memory_and_are_lost_only_beyond_its_bound(
    ledger: FakeLedger, tmp_path: Path, judged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.away = True
    with recording(ledger, tmp_path, memory_bytes=6000) as running:
        with no_space():
            for number in range(9):
                before = running.state()
                await record(running, judged, f"req_{number}")
                wait_until(
                    lambda b=before: running.state().memory_bytes > b.memory_bytes or running.state().lost > b.lost
                )  # type: ignore[misc]
        state = running.state()
        assert state.memory_bytes <= 6000
        assert state.lost > 0
        assert state.waiting == 9 * USES - state.lost > 0
        ledger.away = False
        wait_until(lambda: running.state().written == 9 * USES - state.lost)
    assert any(line.levelname == "ERROR" and "memory is full" in line.message for line in caplog.records)


async def test_rows_in_memory_when_the_process_ends_count_as_lost(
    ledger: FakeLedger, tmp_path: Path, judged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.away = True
    with no_space(), recording(ledger, tmp_path) as running:
        await record(running, judged, "req_0")
        wait_until(lambda: running.state().memory_bytes > 0)
    assert running.state().lost == USES
    assert any(line.levelname == "ERROR" and f"{USES} verdicts are lost" in line.message for line in caplog.records)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.faults
async def test_a_full_disk_loses_nothing(ledger: FakeLedger, small_disk: Path, judged: Any) -> None:
    ledger.away = True
    filler = small_disk / "filler"
    with recording(ledger, small_disk / "spool") as running:
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(b"x" * 2**20)
        await record(running, judged, *(f"req_{n}" for n in range(30)))
        wait_until(lambda: running.state().memory_bytes > 0 and running.failure_reason is not None)
        filler.unlink()
        wait_until(lambda: running.state().memory_bytes == 0 and running.failure_reason is None)
        assert running.state().spool_bytes > 0
        ledger.away = False
        wait_until(lambda: running.state().written == 30 * USES)
        assert running.state().lost == 0


async def test_a_file_that_cannot_be_removed_blocks_nothing(ledger: FakeLedger, tmp_path: Path, judged: Any) -> None:
    with recording(ledger, tmp_path) as running:
        with no_space(name="unlink", number=errno.EPERM):
            await record(running, judged, "req_0")
            wait_until(lambda: running.state().written == USES)
            await record(running, judged, "req_1")
            wait_until(lambda: running.state().written == 2 * USES)
        wait_until(lambda: running.state().spool_bytes == 0)
        assert running.state().restarts == 0


async def test_a_file_that_cannot_be_read_now_waits_and_blocks_no_other(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.away = True
    with recording(ledger, tmp_path) as before:
        await record(before, judged, "req_0")
        wait_until(lambda: before.state().spool_bytes > 0)
    ledger.away = False
    with no_space(name="read_bytes", number=errno.EMFILE), recording(ledger, tmp_path) as running:
        await record(running, judged, "req_1")
        wait_until(lambda: running.state().written == USES)
    with recording(ledger, tmp_path) as after:
        wait_until(lambda: after.state().written == USES)
        assert after.state().lost == 0
    assert sorted(ledger.written) == ["req_0", "req_1"]


class EndingLedger(FakeLedger):
    """A ledger that ends the thread which writes to it, as often as `ends` says."""

    ends = 0

    def write(self, rows: LedgerRows) -> None:
        """As `FakeLedger.write`, once no thread has to end."""
        if self.ends > 0:
            self.ends -= 1
            raise SystemExit
        super().write(rows)


class EndingOutcomes(dict[bytes, Any]):
    """Outcomes that end the first thread which reads one."""

    has_ended = False

    def __getitem__(self, digest: bytes) -> Any:
        """The outcome, from the second time on."""
        if not self.has_ended:
            self.has_ended = True
            raise SystemExit
        return super().__getitem__(digest)


@pytest.mark.parametrize("thread", ["ledger", "spooler"])
async def test_a_thread_that_ends_is_restarted_and_the_restart_is_logged(
    tmp_path: Path, judged: Any, caplog: pytest.LogCaptureFixture, thread: str
) -> None:
    ledger, entry = EndingLedger(), await judged("req_0")
    if thread == "ledger":
        ledger.ends = 1
    else:
        entry.outcomes.by_digest = EndingOutcomes(entry.outcomes.by_digest)
    with recording(ledger, tmp_path) as running:
        running.record(entry)
        wait_until(lambda: running.state().written == USES)
        wait_until(lambda: running.state().restarts == 1)
        assert running.failure_reason is None
    assert any(f"thread '{thread}' crashed and was started again" in line.message for line in caplog.records)


async def test_a_dead_thread_is_reported_as_a_failure(tmp_path: Path, judged: Any) -> None:
    ledger = EndingLedger()
    ledger.ends = 10**6
    with recording(ledger, tmp_path, replace(QUICK, watch_interval_s=0.2)) as running:
        await record(running, judged, "req_0")
        wait_until(lambda: "'ledger' crashed" in (running.failure_reason or ""))
        ledger.ends = 0
        wait_until(lambda: running.state().written == USES)
        assert running.failure_reason is None


async def test_a_request_that_cannot_be_turned_into_rows_does_not_lose_others_of_its_batch(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    entries = [await judged(f"req_{n}") for n in range(5)]
    entries[2].outcomes.by_digest.clear()
    with recording(ledger, tmp_path, replace(QUICK, spool_interval_s=0.3)) as running:
        for entry in entries:
            running.record(entry)
        wait_until(lambda: running.state().waiting == 0)
        assert running.state().lost == USES
    assert ledger.written == ["req_0", "req_1", "req_3", "req_4"]


async def test_a_spool_file_without_rows_is_quarantined(ledger: FakeLedger, tmp_path: Path, judged: Any) -> None:
    dead = tmp_path / "1-1"
    dead.mkdir()
    (dead / "000000000000.rows").write_bytes(b'[["half')
    with recording(ledger, tmp_path) as running:
        await record(running, judged, "req_0")
        wait_until(lambda: running.state().refused_files == 1 and running.state().written == USES)
    (quarantined,) = Quarantine(tmp_path / "refused").quarantined()
    assert quarantined.rows is None
    assert "cannot be read" in quarantined.reason


async def test_refused_rows_beyond_the_bound_are_lost_and_counted(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.refuses = {f"req_{n}" for n in range(9)}
    with recording(ledger, tmp_path, quarantine_bytes=6000) as running:
        await record(running, judged, *sorted(ledger.refuses), "req_9")
        wait_until(lambda: running.state().waiting == 0)
        state = running.state()
        assert (state.refused + state.lost, state.written) == (9 * USES, USES)
        assert state.refused > 0
        assert state.lost > 0


async def test_refused_rows_are_retried_while_they_cannot_be_quarantined(
    ledger: FakeLedger, tmp_path: Path, judged: Any
) -> None:
    ledger.refuses = {"req_0"}
    (tmp_path / "refused").write_text("not a folder")
    with recording(ledger, tmp_path) as running:
        await record(running, judged, "req_0")
        wait_until(lambda: ledger.tries > 2)
        assert running.state().lost == 0
        (tmp_path / "refused").unlink()
        wait_until(lambda: running.state().refused == USES)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite) -> str:
    """The URL of a migrated database of either kind."""
    if request.param == "sqlite":
        return new_sqlite(tmp_path / "database" / "adjudge.db")
    url: str = request.getfixturevalue("migrated_postgres_url")
    return url


async def test_a_request_that_the_database_refuses_loses_no_row_of_another_project(
    tmp_path: Path, database: str
) -> None:
    folder = tmp_path / "spool"
    left = Spool(folder, 2**30)  # written by a version that accepted any number as a reward
    attack = request(60, [["bad"]], project="attacker")
    attack = attack._replace(responses=[attack.responses[0]._replace(reward=-1e200)])
    for number in range(0, 60, 20):
        victims = [request(n, [[f"v{n}"]], project="victim") for n in range(number, number + 20)]
        left.add(LedgerRows.concat([*victims, attack] if number == 20 else victims))
    left.close()
    store = SQLLedger(database)
    with recording(store, folder) as running:  # type: ignore[arg-type]
        wait_until(lambda: running.state().written == 60 and running.state().refused == 1)
        assert (running.state().lost, running.state().refused_files, running.state().spool_bytes) == (0, 1, 0)
    assert len(await store.uses(UseFilter("victim", "run", limit=100))) == 60
    await store.close()
    (quarantined,) = Quarantine(folder / "refused").quarantined()
    assert quarantined.rows is not None
    assert [sorted(kind) for kind in quarantined.rows] == [sorted(kind) for kind in attack]  # type: ignore[type-var]
