"""Measure fairness between runs, and deadlines on an overloaded engine.

First, a light run requests 4 responses x 12 criteria at a time, alone and then while another run has 100,000 calls in
the queue. Both are repeated with a limit of three quarters of the engine per run. Then many small requests with
deadlines go to an engine that can answer only a fraction of them; the result is the share that is answered within the
deadline plus 200 ms. The scripted engine takes a fixed time per call. *Sender's lag* is the delay of this process's
event loop: if it is tens of milliseconds, the machine was busy with other work and the figures are not reliable.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from rich.progress import Progress

from benchmarks.load import CRITERIA, TIMEOUT_S, judged, keep_in_flight, p99, request
from benchmarks.report import publish
from benchmarks.server import running_service

ENGINE = "scripted://hash?delay_s=0.02&concurrency=16"
FLOOD_CALLS = 100_000
SHARED = 12
"""Three quarters of the engine's 16 calls."""

FLOOD_RESPONSES = 64
LIGHT_RESPONSES = 4
BUSY_ENGINE = "scripted://hash?delay_s=0.1&concurrency=4"
SENDERS = 16
GRACE_S = 0.2


def small_request(run: str, responses: int, criteria: int, deadline_s: float) -> dict[str, Any]:
    """Build a new request of a run, whose responses have 800 characters."""
    return request(responses, criteria, 800, run=run, deadline_s=deadline_s)


async def light_run(client: httpx2.AsyncClient, requests: int, what: str) -> list[float]:
    """Send the light run's requests one after another and return the seconds of each."""
    seconds = []
    with Progress(transient=True) as bar:
        for _ in bar.track(range(requests), description=what):
            seconds.append(await judged(client, small_request("light", LIGHT_RESPONSES, CRITERIA, 60.0)))
    return seconds


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[list[float]]:
    """Sample the lag of this process's event loop, in milliseconds, some hundred times a second within the block."""
    late: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            late.append((time.perf_counter() - began - 0.005) * 1000)

    watcher = asyncio.create_task(watch())
    try:
        yield late
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def waiting(client: httpx2.AsyncClient) -> float:
    """Return the number of calls that wait for the engine."""
    page = (await client.get("/metrics")).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith("adjudge_calls_waiting "))


async def neighbours(url: str, requests: int, share: str) -> list[dict[str, Any]]:
    """Measure the light run alone and beside the flood; `share` is the label of a run's limit on the engine."""
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client, watching() as late:
        await light_run(client, 5, "warming up")
        alone = await light_run(client, requests, "the light run alone")
        flood = [
            asyncio.create_task(
                client.post("/v1/rewards", json=small_request("flood", FLOOD_RESPONSES, CRITERIA, TIMEOUT_S))
            )
            for _ in range(FLOOD_CALLS // (FLOOD_RESPONSES * CRITERIA) + 1)
        ]
        before, queued = -1.0, 0.0
        while queued > before or not queued:  # until the whole flood is queued
            await asyncio.sleep(2.0)
            before, queued = queued, await waiting(client)
        late.clear()
        beside = await light_run(client, requests, "the light run beside the flood")
        lag = p99(late)
        left = await waiting(client)
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    rows = []
    for name, seconds, before, after in (("alone", alone, 0.0, 0.0), ("beside a flood", beside, queued, left)):
        rows.append(
            {
                "light run": name,
                "a run's share": share,
                "requests": len(seconds),
                "p50 ms": statistics.median(seconds) * 1000,
                "p99 ms": p99(seconds) * 1000,
                "p50 to alone": statistics.median(seconds) / statistics.median(alone),
                "p99 to alone": p99(seconds) / p99(alone),
                "sender's lag p99 ms": lag,
                "others' calls waiting": f"{before:,.0f} to {after:,.0f}",
            }
        )
    return rows


async def deadlines(url: str, requests: int) -> list[dict[str, Any]]:
    """Measure far too many small requests, each with its own deadline."""
    over: list[float] = []
    judgements = failed = 0
    async with httpx2.AsyncClient(base_url=url, timeout=60.0) as client, watching() as lag:

        async def send(number: int) -> None:
            nonlocal judgements, failed
            deadline_s = random.uniform(0.2, 1.0)
            content = small_request(f"run {number % 4}", 2, 6, deadline_s)
            began = time.perf_counter()
            answer = (await client.post("/v1/rewards", json=content)).raise_for_status().json()
            over.append(time.perf_counter() - began - deadline_s)
            failed += answer["usage"]["failed"]
            judgements += 12 - answer["usage"]["failed"]

        await keep_in_flight(requests, SENDERS, "requests with deadlines", send)
    return [
        {
            "requests": requests,
            "within deadline + 200 ms": f"{sum(late <= GRACE_S for late in over) / len(over):.3%}",
            "p99 over the deadline, ms": p99(over) * 1000,
            "most over, ms": max(over) * 1000,
            "verdicts judged": judgements,
            "cut off": failed,
            "sender's lag p99 ms": p99(lag),
        }
    ]


def main() -> None:
    """Run both benchmarks from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--light", type=int, default=150, help="requests of the light run per measurement")
    parser.add_argument("--deadlines", type=int, default=3000, help="requests with deadlines")
    given = parser.parse_args()
    rows = []
    for share, chosen in (("all", {}), ("three quarters", {"ADJUDGE_RUN_ENGINE_CALLS": str(SHARED)})):
        with running_service(ENGINE, ADJUDGE_QUEUE_CALLS=str(2 * FLOOD_CALLS), **chosen) as (url, _):
            rows += asyncio.run(neighbours(url, given.light, share))
    publish("fairness", f"A light run alone, and beside another that sends {FLOOD_CALLS:,} calls at once", rows)
    with running_service(BUSY_ENGINE) as (url, _):
        rows = asyncio.run(deadlines(url, given.deadlines))
    publish("deadlines", f"{SENDERS} senders at once on an engine that is too slow for them", rows)


if __name__ == "__main__":
    main()
