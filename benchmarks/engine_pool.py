"""`python -m benchmarks.engine_pool`: judgements per second over one, two and four endpoints, and one and two judges.

Each endpoint gives a fixed number of answers at a time, each after a fixed delay, like a fully loaded GPU. The figures
show how well a judge keeps all endpoints busy, and whether the calls about a response stay at one endpoint. One of two
endpoints is killed midway. Then an api has one judge and two, each with a scripted engine as fast as an endpoint. The
machine's speed matters only if it is too slow for all of them together.
"""

import argparse
import asyncio
import random
from collections import Counter
from contextlib import ExitStack
from typing import Any

import httpx2
import psutil

from benchmarks.load import CRITERIA, TIMEOUT_S, keep_in_flight
from benchmarks.peers.scripted_server import control
from benchmarks.report import publish
from benchmarks.server import running_module, running_process, running_service

RESPONSES = 32
SLOTS, DELAY_S = 16, 0.1
IN_FLIGHT = 8
"""Concurrent requests; together they have more responses than the engines have slots, so no engine is idle."""


def body() -> dict[str, Any]:
    """Build a new, unique request, with the marks by which an endpoint knows responses and criteria."""
    number = random.getrandbits(32)
    criteria = [{"id": f"c{n}", "description": f"K{n:02}: Part {n} of the argument holds."} for n in range(CRITERIA)]
    responses = [f"Worksheet {number}-{n} says why the sum is three." for n in range(RESPONSES)]
    groups = [{"id": "g", "prompt": "Prove it.", "responses": responses}]
    return {"rubric": {"criteria": criteria}, "groups": groups, "deadline_s": TIMEOUT_S / 2}


async def drive(url: str, requests: int, what: str, dies: psutil.Process | None) -> tuple[float, int]:
    """Send the requests; return the seconds and the failed verdicts. Kill `dies` when half of them are answered."""
    answered = failed = 0
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:

        async def send(_: int) -> None:
            nonlocal answered, failed
            answer = (await client.post("/v1/rewards", json=body())).raise_for_status()
            failed += answer.json()["usage"]["failed"]
            answered += 1
            if dies is not None and answered == requests // 2:
                dies.kill()

        return await keep_in_flight(requests, IN_FLIGHT, what, send), failed


def together(roots: list[str]) -> float:
    """Return the share of responses for which all calls went to one endpoint."""
    counts = [
        Counter(pair.partition("/")[0] for pair in httpx2.get(f"{root}/counts").json()["answered"]) for root in roots
    ]
    responses = set().union(*counts)
    return sum(any(count[response] == CRITERIA for count in counts) for response in responses) / len(responses)


def measure(endpoints: int, requests: int, *, one_dies: bool = False) -> dict[str, Any]:
    """Measure a row of figures."""
    with ExitStack() as stack:
        roots, processes = [], []
        for _ in range(endpoints):
            root, process = stack.enter_context(running_module("benchmarks.peers.scripted_server"))
            httpx2.post(f"{root}/control", content=control(slots=SLOTS, delay_s=DELAY_S)).raise_for_status()
            roots.append(root)
            processes.append(process)
        pool = " ".join(f"openai+{root}/v1?concurrency={SLOTS}" for root in roots)
        service, _ = stack.enter_context(running_service(pool, ADJUDGE_LEDGER="off"))
        label = f"{endpoints}, one killed midway" if one_dies else f"{endpoints}"
        row = figures("endpoints", label, service, requests, endpoints, processes[-1] if one_dies else None)
        return row | {"responses at one endpoint": "" if one_dies else f"{together(roots):.1%}"}


def measure_judges(judges: int, requests: int) -> dict[str, Any]:
    """Measure a row of figures of an api with several judges."""
    engine = f"scripted://hash?delay_s={DELAY_S}&concurrency={SLOTS}"
    with ExitStack() as stack:
        urls = [stack.enter_context(running_process("judge", "--engine", engine))[0] for _ in range(judges)]
        options = [part for url in urls for part in ("--judge", url)]
        service, _ = stack.enter_context(running_process("api", *options, ADJUDGE_LEDGER="off"))
        return figures("judges", f"{judges}", service, requests, judges)


def figures(
    name: str, label: str, service: str, requests: int, engines: int, dies: psutil.Process | None = None
) -> dict[str, Any]:
    """Drive a service that has so many engines, and return a row that begins with the column `name`."""
    seconds, failed = asyncio.run(drive(service, requests, f"{name}: {label}", dies))
    judgements = requests * RESPONSES * CRITERIA
    return {
        name: label,
        "judgements": judgements,
        "judgements/s": judgements / seconds,
        "their own": engines * SLOTS / DELAY_S,
        "failed": failed,
    }


def with_ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with each rate divided by that of the first."""
    return [row | {"to one": row["judgements/s"] / rows[0]["judgements/s"]} for row in rows]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=48, help="requests per endpoint or judge")
    each = parser.parse_args().requests
    rows = [measure(n, n * each) for n in (1, 2, 4)]
    rows.append(measure(2, 2 * each, one_dies=True))
    engines = f"of {SLOTS} answers at a time, {DELAY_S:g} s each"
    publish("engine_pool", f"One judge over endpoints {engines}", with_ratios(rows))
    rows = [measure_judges(n, n * each) for n in (1, 2)]
    publish("judges", f"Judges behind one api, with engines {engines}", with_ratios(rows))


if __name__ == "__main__":
    main()
