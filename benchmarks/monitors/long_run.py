"""Time the monitors on a run of a million verdicts: `python -m benchmarks.monitors.long_run [--url POSTGRESQL]`.

The ledger is given the rows of as many requests as such a run has, without their verdicts, which monitors do not read.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime

from judge_server.monitoring.monitors import monitor_run
from rubric_store import SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, RequestRow, ResponseRow, SignalRow
from trainer_client.wire.monitors import MonitorThresholds

STEPS, RESPONSES, CRITERIA = 1302, 64, 12
PROJECT, RUN = "default", "long"


def request(step: int) -> LedgerRows:
    """The rows of one step: 64 responses under 12 criteria."""
    key, at = step.to_bytes(16, "big"), datetime.now(UTC)
    uses = RESPONSES * CRITERIA
    asked = RequestRow(
        PROJECT, RUN, key, f"r{step}", step, "weighted_mean", "binary", "sha256:f", "m", 1, uses, 1, 1, 1, 1, 1.0, at
    )
    responses = [
        ResponseRow(
            PROJECT,
            RUN,
            key,
            n,
            f"g{n // 8}",
            n % 8,
            None,
            key + key,
            key + key,
            None,
            100,
            True,
            False,
            None,
            0.5,
            "scored",
        )
        for n in range(RESPONSES)
    ]
    names = [("criterion", f"c{n}") for n in range(CRITERIA - 2)] + [("shadow", "s1"), ("shadow", "s2")]
    names += [("length", "tokens"), ("overlap", "")]
    sums = (64, 32.0, 32.0, 30.0 + step % 3, 20.0, 10.0, 56, 12.0, 8.0, 1.0)
    signals = [SignalRow(PROJECT, RUN, key, signal, name, step, *sums) for signal, name in names]
    return LedgerRows([], [], [asked], responses, [], signals)


def main() -> None:
    """Fill a ledger and time the monitors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="an empty database; a temporary SQLite file by default")
    parser.add_argument("--repeat", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite+aiosqlite:///{folder}/ledger.db"
        migrations.upgrade(url)
        ledger = SQLLedger(url)
        for start in range(0, STEPS, 100):
            ledger.write(LedgerRows.concat([request(step) for step in range(start, min(STEPS, start + 100))]))
        asyncio.run(measure(ledger, given.repeat))


async def measure(ledger: SQLLedger, repeat: int) -> None:
    """Print the time of a report, by clock and by this process's processor."""
    clock, cpu = [], []
    for _ in range(repeat):
        began, began_cpu = time.perf_counter(), time.process_time()
        report = await monitor_run(ledger, PROJECT, RUN, MonitorThresholds())
        clock.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
        assert report is not None
    print(
        f"{STEPS * RESPONSES * CRITERIA:,} verdicts in {STEPS:,} steps: "
        f"{1000 * statistics.median(clock):.0f} ms by clock, "
        f"{1000 * statistics.median(cpu):.0f} ms of this process's processor time (medians of {repeat})"
    )
    await ledger.close()


if __name__ == "__main__":
    main()
