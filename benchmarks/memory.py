"""Measure whether a service's memory and open files stay constant over many judgements, with the ledger on.

New requests of 64 responses x 12 criteria go to `adjudge serve` with the scripted engine, a few at a time, under a few
runs. At regular intervals, a row records resident memory, private memory, open file descriptors, threads, and entries
waiting for the ledger. Memory grows until the verdict cache is full (100,000 entries) and should then stay constant.
"""

import argparse
import asyncio
from typing import Any

import httpx2
import psutil

from benchmarks.load import PER_REQUEST, TIMEOUT_S, caught_up, judged, keep_in_flight, ledger_state, request
from benchmarks.report import publish
from benchmarks.server import running_service

IN_FLIGHT = 4
RUNS = 8


def figures(process: psutil.Process, judged: int, state: dict[str, Any]) -> dict[str, Any]:
    """Build a row of figures."""
    memory = process.memory_full_info()
    return {
        "judgements": judged,
        "resident MB": memory.rss / 2**20,
        "private MB": memory.uss / 2**20,
        "file descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "waits for the ledger": state["waiting"],
    }


async def drive(url: str, process: psutil.Process, judgements: int, every: int) -> list[dict[str, Any]]:
    """Send judgements, and record a row after every `every` of them. Wait where the ledger is far behind."""
    rows: list[dict[str, Any]] = []
    done = 0
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:

        async def send(number: int) -> None:
            nonlocal done
            await judged(client, request(run=f"run {number % RUNS}", step=number // RUNS))
            while number % 50 == 0 and (await ledger_state(client))["waiting"] > 50 * PER_REQUEST:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            before, done = done, done + PER_REQUEST
            if done // every > before // every:
                rows.append(figures(process, done, await ledger_state(client)))

        await keep_in_flight(judgements // PER_REQUEST, IN_FLIGHT, "judging", send)
        await caught_up(client)
        rows.append(figures(process, done, await ledger_state(client)))
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgements", type=int, default=2_000_000)
    parser.add_argument("--every", type=int, default=100_000)
    given = parser.parse_args()
    with running_service("scripted://hash") as (url, process):
        rows = asyncio.run(drive(url, process, given.judgements, given.every))
    full = [row for row in rows if row["judgements"] >= given.judgements / 4]
    publish(
        "memory",
        f"Memory of a service over {given.judgements:,} judgements, with the ledger on",
        rows,
        [
            f"resident, from a quarter of the way on: {min(row['resident MB'] for row in full):.0f} to "
            f"{max(row['resident MB'] for row in full):.0f} MB"
        ],
    )


if __name__ == "__main__":
    main()
