"""Measure the overhead around the model: judgements per second over HTTP with the scripted engine.

Each request has 64 new responses of 2 KB under 12 criteria, so that every judgement is planned, hashed, looked up,
queued, answered, stored and rewarded. One service records in the ledger and one does not. Each runs in one process, and
they take turns, so that a slowdown of the machine affects both. The processor time of a turn lasts until the ledger has
caught up.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from contextlib import ExitStack
from typing import Any

import httpx2
from rich.progress import Progress

from benchmarks.report import publish
from benchmarks.server import running_service

RESPONSES, CRITERIA, RESPONSE_BYTES = 64, 12, 2048
PER_REQUEST = RESPONSES * CRITERIA
TURNS = 5
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


def caught_up(url: str) -> float:
    """Wait until a service's ledger has caught up; return the seconds that this took."""
    started = time.perf_counter()
    while (state := httpx2.get(f"{url}/v1/ledger").json())["waiting"]:
        time.sleep(0.1)  # each question costs the service a millisecond
    if state["lost"]:
        raise RuntimeError(f"the ledger lost {state['lost']} verdicts")
    return time.perf_counter() - started


def measure_turn(url: str, process: Any, requests: int, in_flight: int, ledger: str) -> dict[str, Any]:
    """Drive a service for a turn, and measure its processor time until its ledger has caught up."""
    before = sum(process.cpu_times()[:2])
    row, memory = asyncio.run(drive(url, process, requests, in_flight))
    if ledger != "off":
        caught_up(url)
    return row | {"cpu": sum(process.cpu_times()[:2]) - before, "memory": memory[-1]}


def summary(ledger: str, in_flight: int, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the turns of a service in a row."""
    per_core_second = [turn["judgements"] / turn["cpu"] for turn in turns]
    return {
        "ledger": ledger,
        "in flight": in_flight,
        "judgements": sum(turn["judgements"] for turn in turns),
        "judgements/s": statistics.median(turn["judgements/s"] for turn in turns),
        "per core second: median": statistics.median(per_core_second),
        "min": min(per_core_second),
        "max": max(per_core_second),
        "p50 ms": statistics.median(turn["p50 ms"] for turn in turns),
        "p99 ms": statistics.median(turn["p99 ms"] for turn in turns),
        "memory MB": max(turn["memory"] for turn in turns),
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--judgements", type=int, default=500_000, help="judgements of each service")
    requests = parser.parse_args().judgements // PER_REQUEST
    rows = []
    with ExitStack() as stack:
        services = {
            ledger: stack.enter_context(running_service("scripted://hash", ADJUDGE_LEDGER=ledger))
            for ledger in ("off", "all")
        }
        for url, process in services.values():
            asyncio.run(drive(url, process, 20, 1))  # warm-up
        for in_flight, share in ((1, 0.1), (4, 0.9)):
            turns: dict[str, list[dict[str, Any]]] = {ledger: [] for ledger in services}
            for _ in range(TURNS):
                for ledger, (url, process) in services.items():
                    part = max(10, int(requests * share / TURNS))
                    turns[ledger].append(measure_turn(url, process, part, in_flight, ledger))
            rows += [summary(ledger, in_flight, each) for ledger, each in turns.items()]
    publish("http_overhead", "Over HTTP with the scripted engine: 64 responses of 2 KB x 12 criteria per request", rows)


if __name__ == "__main__":
    main()
