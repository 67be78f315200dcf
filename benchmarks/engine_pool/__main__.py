"""`python -m benchmarks.engine_pool`: judgements per second of one judge over one, two and four endpoints.

Each endpoint gives a fixed number of answers at a time, each after a fixed delay, like a fully loaded GPU. The figures
show how well the judge keeps all endpoints busy, and whether the calls about a response stay at one endpoint. Finally,
one of two endpoints is killed midway. The machine's speed matters only if it is too slow for all endpoints together.
"""

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import httpx2
import psutil
from rich.progress import Progress

from benchmarks.report import publish
from benchmarks.server import running, running_service, unused_port

CRITERIA, RESPONSES = 12, 32
SLOTS, DELAY_S = 16, 0.1
IN_FLIGHT = 8
"""Concurrent requests; together they have more responses than the endpoints have slots, so no endpoint is idle."""


def body() -> dict[str, Any]:
    """Build a new, unique request."""
    criteria = [{"id": f"c{n}", "description": f"Part {n} of the argument holds."} for n in range(CRITERIA)]
    responses = [f"Response {secrets.token_hex(4)} says why the sum is three." for _ in range(RESPONSES)]
    return {"rubric": {"criteria": criteria}, "groups": [{"id": "g", "prompt": "Prove it.", "responses": responses}]}


async def drive(url: str, requests: int, what: str, dies: psutil.Process | None) -> tuple[float, int]:
    """Send the requests; return the seconds and the failed verdicts. Kill `dies` when half of them are answered."""
    left, answered, failed = iter(range(requests)), 0, 0
    async with httpx2.AsyncClient(base_url=url, timeout=600.0) as client:
        with Progress(transient=True) as bar:
            task = bar.add_task(what, total=requests)

            async def sender() -> None:
                nonlocal answered, failed
                for _ in left:
                    answer = await client.post("/v1/rewards", json=body() | {"deadline_s": 300})
                    answer.raise_for_status()
                    failed += answer.json()["usage"]["failed"]
                    answered += 1
                    bar.advance(task)
                    if dies is not None and answered == requests // 2:
                        dies.kill()

            began = time.perf_counter()
            await asyncio.gather(*(sender() for _ in range(IN_FLIGHT)))
            return time.perf_counter() - began, failed


def together(urls: list[str]) -> float:
    """Return the share of responses for which all calls went to one endpoint."""
    counts = [Counter(httpx2.get(f"{url}/calls").json()) for url in urls]
    responses = set().union(*counts)
    return sum(any(count[response] == CRITERIA for count in counts) for response in responses) / len(responses)


def measure(endpoints: int, requests: int, *, one_dies: bool = False) -> dict[str, Any]:
    """Measure a row of figures."""
    with ExitStack() as stack:
        urls, processes = [], []
        for _ in range(endpoints):
            port = unused_port()
            urls.append(f"http://127.0.0.1:{port}")
            command = [sys.executable, "-m", "benchmarks.engine_pool.endpoint", str(port), str(SLOTS), str(DELAY_S)]
            processes.append(stack.enter_context(running(command, dict(os.environ), f"{urls[-1]}/v1/models")))
        pool = " ".join(f"openai+http://{url.removeprefix('http://')}/v1?concurrency={SLOTS}" for url in urls)
        service, _ = stack.enter_context(running_service(pool, ADJUDGE_LEDGER="off"))
        label = f"{endpoints}, one killed midway" if one_dies else f"{endpoints}"
        seconds, failed = asyncio.run(
            drive(service, requests, f"endpoints: {label}", processes[-1] if one_dies else None)
        )
        judgements = requests * RESPONSES * CRITERIA
        return {
            "endpoints": label,
            "judgements": judgements,
            "judgements/s": judgements / seconds,
            "their own": endpoints * SLOTS / DELAY_S,
            "failed": failed,
            "responses at one endpoint": "" if one_dies else f"{together(urls):.1%}",
        }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=48, help="requests per endpoint")
    each = parser.parse_args().requests
    rows = [measure(n, n * each) for n in (1, 2, 4)]
    rows.append(measure(2, 2 * each, one_dies=True))
    for row in rows:
        row["to one"] = row["judgements/s"] / rows[0]["judgements/s"]
    publish("engine_pool", f"One judge over endpoints of {SLOTS} answers at a time, {DELAY_S:g} s each", rows)


if __name__ == "__main__":
    main()
