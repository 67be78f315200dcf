"""Measure the cost of the ledger: requests per second with the ledger on and off, on both databases.

Each request has 64 new responses of 2 KB under 12 criteria, as in `benchmarks.http_overhead`. All services run at the
same time and are measured in turns, so that a slowdown of the machine affects them alike; ratios are per turn. The
processor time of a turn is that of the service until its ledger has caught up, without PostgreSQL's own processes.
"""

import argparse
import asyncio
import statistics
from contextlib import ExitStack
from typing import Any

from tests.fixtures.postgres import running_postgres, scratch_database

from benchmarks.http_overhead import PER_REQUEST, caught_up, drive
from benchmarks.report import publish
from benchmarks.server import running_service
from rubric_store import migrations

IN_FLIGHT = 4
OFF = "off"


def settings(stack: ExitStack) -> dict[str, dict[str, str]]:
    """Return the settings of each service, by name."""
    server = stack.enter_context(running_postgres())
    database = stack.enter_context(scratch_database(server)).render_as_string(hide_password=False)
    migrations.upgrade(database)
    return {
        OFF: {"ADJUDGE_LEDGER": "off"},
        "SQLite": {"ADJUDGE_LEDGER": "all"},
        "SQLite, no texts": {"ADJUDGE_LEDGER": "verdicts"},
        "PostgreSQL": {"ADJUDGE_LEDGER": "all", "ADJUDGE_DATABASE_URL": database},
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60, help="requests per turn and service")
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    behind: dict[str, list[float]] = {}
    with ExitStack() as stack:
        services = {
            name: stack.enter_context(running_service("scripted://hash", **chosen))
            for name, chosen in settings(stack).items()
        }
        for turn in range(arguments.turns + 1):
            for name, (url, process) in services.items():
                before = sum(process.cpu_times()[:2])
                row, _ = asyncio.run(drive(url, process, arguments.requests, IN_FLIGHT))
                late = caught_up(url)
                row["core ms"] = (sum(process.cpu_times()[:2]) - before) * 1e6 / row["judgements"]
                if turn:  # the first turn is a warm-up
                    rows.setdefault(name, []).append(row)
                    behind.setdefault(name, []).append(late)
    table = []
    for name, turns in rows.items():
        ratios = [turn["judgements/s"] / off["judgements/s"] for turn, off in zip(turns, rows[OFF], strict=True)]
        table.append(
            {
                "ledger": name,
                "judgements/s": statistics.median(turn["judgements/s"] for turn in turns),
                "of off: median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
                "core ms per 1,000": statistics.median(turn["core ms"] for turn in turns),
                "times off": statistics.median(
                    turn["core ms"] / off["core ms"] for turn, off in zip(turns, rows[OFF], strict=True)
                ),
                "p50 ms": statistics.median(turn["p50 ms"] for turn in turns),
                "p99 ms": statistics.median(turn["p99 ms"] for turn in turns),
                "caught up after s": statistics.median(behind[name]),
            }
        )
    publish(
        "ledger_overhead",
        f"The ledger's cost: {arguments.requests * PER_REQUEST:,} judgements a turn, {IN_FLIGHT} requests in flight",
        table,
    )


if __name__ == "__main__":
    main()
