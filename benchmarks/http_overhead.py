"""Measure the overhead around the model: judgements per second over HTTP with the scripted engine.

Each request has 64 new responses of 2 KB under 12 criteria, so that every judgement is planned, hashed, looked up,
queued, answered, stored and rewarded. The service runs in one process, so one core does all its work.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from typing import Any

import httpx2
from rich.progress import Progress

from benchmarks.report import publish
from benchmarks.server import running_service

RESPONSES, CRITERIA, RESPONSE_BYTES = 64, 12, 2048
PER_REQUEST = RESPONSES * CRITERIA
WORDS = ("both", "sides", "sum", "divide", "x", "y", "so", "three", "holds", "then", "therefore", "answer")


def body(seed: int, responses: int = RESPONSES) -> bytes:
    """Build the body of a new, unique request."""
    draw = random.Random(seed)
    criteria = [
        {"id": f"c{i}", "description": f"The response carries out part {i} of the argument and says why it holds."}
        for i in range(CRITERIA)
    ]
    base = " ".join(draw.choices(WORDS, k=RESPONSE_BYTES // 4))
    texts = [f"{seed}-{i} {base}"[:RESPONSE_BYTES] for i in range(responses)]
    groups = [{"id": "g", "prompt": "Prove it.", "responses": texts}]
    return json.dumps({"rubric": {"criteria": criteria}, "groups": groups}).encode()


async def drive(url: str, process: Any, requests: int, in_flight: int) -> tuple[dict[str, Any], list[float]]:
    """Send requests, `in_flight` at a time; return a row of figures, and the memory at ten points on the way."""
    latencies: list[float] = []
    memory: list[float] = []
    numbers = iter(range(requests))
    async with httpx2.AsyncClient(base_url=url, timeout=60.0) as client:

        async def sender(bar: Progress, task: Any) -> None:
            for number in numbers:
                content = body(random.getrandbits(60))
                started = time.perf_counter()
                answer = await client.post("/v1/rewards", content=content, headers={"Content-Type": "application/json"})
                latencies.append(time.perf_counter() - started)
                if answer.status_code != 200 or b'"status":"failed"' in answer.content:
                    raise RuntimeError(f"HTTP {answer.status_code}: {answer.text[:300]}")
                if number % max(1, requests // 10) == 0:
                    memory.append(process.memory_info().rss / 2**20)
                bar.advance(task)

        with Progress(transient=True) as bar:
            task = bar.add_task("sending requests", total=requests)
            cpu_before, started = sum(process.cpu_times()[:2]), time.perf_counter()
            await asyncio.gather(*(sender(bar, task) for _ in range(in_flight)))
            seconds = time.perf_counter() - started
            cpu = sum(process.cpu_times()[:2]) - cpu_before
    quantiles = statistics.quantiles(latencies, n=100)
    row = {
        "in flight": in_flight,
        "judgements": requests * PER_REQUEST,
        "judgements/s": requests * PER_REQUEST / seconds,
        "per core second": requests * PER_REQUEST / cpu,
        "p50 ms": quantiles[49] * 1000,
        "p99 ms": quantiles[98] * 1000,
    }
    return row, memory


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgements", type=int, default=500_000)
    requests = max(20, parser.parse_args().judgements // PER_REQUEST)
    with running_service("scripted://hash") as (url, process):
        asyncio.run(drive(url, process, 20, 1))  # warm-up
        rows, memory = [], []
        for in_flight, share in ((1, 0.1), (4, 0.9)):
            row, seen = asyncio.run(drive(url, process, max(20, int(requests * share)), in_flight))
            rows.append(row)
            memory = seen
    publish(
        "http_overhead",
        "Over HTTP with the scripted engine: 64 responses of 2 KB x 12 criteria per request",
        rows,
        [f"memory of the service during the last row, MB: {', '.join(f'{m:.0f}' for m in memory)}"],
    )


if __name__ == "__main__":
    main()
