"""Requests of ordinary size for the HTTP benchmarks, and senders that keep a number of them in flight."""

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
import psutil
from rich.progress import Progress

RESPONSES, CRITERIA, RESPONSE_BYTES = 64, 12, 2048
PER_REQUEST = RESPONSES * CRITERIA
TIMEOUT_S = 600.0
_WORDS = ("both", "sides", "sum", "divide", "x", "y", "so", "three", "holds", "then", "therefore", "answer")


def request(
    responses: int = RESPONSES, criteria: int = CRITERIA, characters: int = RESPONSE_BYTES, **fields: Any
) -> dict[str, Any]:
    """Build a request for rewards with texts that no other request has; `fields` are further fields, such as `run`."""
    number = random.getrandbits(60)
    base = " ".join(random.choices(_WORDS, k=characters // 4))
    texts = [f"{number}-{n} {base}"[:characters] for n in range(responses)]
    rubric = {
        "criteria": [
            {"id": f"c{n}", "description": f"The response carries out part {n} of the argument and says why it holds."}
            for n in range(criteria)
        ]
    }
    return {"rubric": rubric, "groups": [{"id": "g", "prompt": "Prove it.", "responses": texts}], **fields}


async def judged(client: httpx2.AsyncClient, body: dict[str, Any]) -> float:
    """Send a request for rewards; return the seconds until the answer. Raises `RuntimeError` if a verdict failed."""
    content = json.dumps(body).encode()
    began = time.perf_counter()
    answer = await client.post("/v1/rewards", content=content, headers={"Content-Type": "application/json"})
    seconds = time.perf_counter() - began
    if answer.status_code != 200 or b'"status":"failed"' in answer.content:
        raise RuntimeError(f"HTTP {answer.status_code}: {answer.text[:300]}")
    return seconds


async def keep_in_flight(count: int, in_flight: int, what: str, send: Callable[[int], Awaitable[object]]) -> float:
    """Call `send` with the numbers below `count`, `in_flight` at a time, with a progress bar; return the seconds."""
    numbers = iter(range(count))
    with Progress(transient=True) as bar:
        task = bar.add_task(what, total=count)

        async def sender() -> None:
            for number in numbers:
                await send(number)
                bar.advance(task)

        began = time.perf_counter()
        await asyncio.gather(*(sender() for _ in range(in_flight)))
        return time.perf_counter() - began


def processor_seconds(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far, in user and kernel mode."""
    return float(sum(process.cpu_times()[:2]))


async def caught_up(client: httpx2.AsyncClient) -> float:
    """Wait until a service's ledger has caught up; return the seconds. Raises `RuntimeError` if it lost verdicts."""
    began = time.perf_counter()
    while True:
        state: dict[str, Any] = (await client.get("/v1/ledger")).raise_for_status().json()
        if state["lost"]:
            raise RuntimeError(f"the ledger lost {state['lost']} verdicts")
        if not state["waiting"]:
            return time.perf_counter() - began
        await asyncio.sleep(0.1)  # each question costs the service a millisecond


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile; NaN if there are no values."""
    return sorted(values)[math.ceil(len(values) * 0.99) - 1] if values else math.nan


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Return the columns of a figure that was measured several times: its median, and the least and the most."""
    return {f"{name}: median": statistics.median(values), "min": min(values), "max": max(values)}
