"""Measure whether a service's memory and open files stay constant over many judgements, with the ledger on.

New requests of 64 responses x 12 criteria go to `adjudge serve` with the scripted engine, a few at a time, under a few
runs. At regular intervals, a row records resident memory, private memory, open file descriptors, threads, and entries
waiting for the ledger. Memory grows until the verdict cache is full (100,000 entries) and should then stay constant.
"""

import argparse
import asyncio
import json
import random
from typing import Any

import httpx2
import psutil
from rich.progress import Progress

from benchmarks.http_overhead import PER_REQUEST, body
from benchmarks.report import publish
from benchmarks.server import running_service

IN_FLIGHT = 4
RUNS = 8
TIMEOUT_S = 120.0


async def send(client: httpx2.AsyncClient, number: int) -> None:
    """Send a new request, and wait if the ledger is far behind."""
    request = json.loads(body(random.getrandbits(60))) | {"run": f"run {number % RUNS}", "step": number // RUNS}
    answer = await client.post("/v1/rewards", json=request)
    if answer.status_code != 200 or b'"status":"failed"' in answer.content:
        raise RuntimeError(f"HTTP {answer.status_code}: {answer.text[:300]}")
    while number % 50 == 0 and (await ledger(client))["waiting"] > 50 * PER_REQUEST:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


async def ledger(client: httpx2.AsyncClient) -> dict[str, Any]:
    """Return the ledger's state; fail if it lost verdicts."""
    state: dict[str, Any] = (await client.get("/v1/ledger")).raise_for_status().json()
    if state["lost"]:
        raise RuntimeError(f"the ledger lost {state['lost']} verdicts")
    return state


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
    """Send judgements, and record a row after every `every` of them."""
    rows: list[dict[str, Any]] = []
    numbers = iter(range(1, judgements // PER_REQUEST + 1))
    done = 0
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        with Progress(transient=True) as bar:
            task = bar.add_task("judging", total=judgements)

            async def sender() -> None:
                nonlocal done
                for number in numbers:
                    await send(client, number)
                    before, done = done, done + PER_REQUEST
                    bar.advance(task, PER_REQUEST)
                    if done // every > before // every:
                        rows.append(figures(process, done, await ledger(client)))

            await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))
            while (state := await ledger(client))["waiting"]:  # noqa: ASYNC110 - the ledger is in another process
                await asyncio.sleep(0.2)
        rows.append(figures(process, done, state))
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
