"""Measure the overhead around the model, and what the ledger costs: judgements per second with the scripted engine.

Each request has 64 new responses of 2 KB under 12 criteria, so that every judgement is planned, hashed, looked up,
queued, answered, stored and rewarded. One service records in the ledger and one does not; with `--every-ledger`, two
more record without texts, and on PostgreSQL. Each runs in one process, and they take turns, so that a slowdown of the
machine affects all; ratios are per turn. The processor time of a turn lasts until the ledger has caught up, without
PostgreSQL's own processes.
"""

import argparse
import asyncio
import statistics
from contextlib import ExitStack
from typing import Any

import httpx2
import psutil
from tests.fixtures.postgres import running_postgres, scratch_database

from benchmarks.load import (
    PER_REQUEST,
    TIMEOUT_S,
    caught_up,
    judged,
    keep_in_flight,
    p99,
    processor_seconds,
    request,
    spread,
)
from benchmarks.report import publish
from benchmarks.server import running_service
from rubric_store import migrations

TURNS = 5
OFF = "off"


async def turn(url: str, process: psutil.Process, requests: int, in_flight: int, ledger: str) -> dict[str, Any]:
    """Send requests, `in_flight` at a time, and measure until the ledger has caught up."""
    latencies: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:

        async def send(_: int) -> None:
            latencies.append(await judged(client, request()))

        before = processor_seconds(process)
        seconds = await keep_in_flight(requests, in_flight, "sending requests", send)
        late = 0.0 if ledger == OFF else await caught_up(client)
    judgements = requests * PER_REQUEST
    return {
        "judgements": judgements,
        "judgements/s": judgements / seconds,
        "per core second": judgements / (processor_seconds(process) - before),
        "p50 ms": statistics.median(latencies) * 1000,
        "p99 ms": p99(latencies) * 1000,
        "memory MB": process.memory_info().rss / 2**20,
        "caught up after s": late,
    }


def summary(ledger: str, in_flight: int, turns: list[dict[str, Any]], off: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the turns of a service in a row, beside those of the service without a ledger."""

    def ratio(name: str) -> float:
        return statistics.median(own[name] / other[name] for own, other in zip(turns, off, strict=True))

    def median(name: str) -> float:
        return statistics.median(own[name] for own in turns)

    return {
        "ledger": ledger,
        "in flight": in_flight,
        "judgements": sum(own["judgements"] for own in turns),
        "judgements/s": median("judgements/s"),
        "of off": ratio("judgements/s"),
        **spread("per core second", [own["per core second"] for own in turns]),
        "core ms for 1,000": 1e6 / median("per core second"),
        "times off": 1 / ratio("per core second"),
        "p50 ms": median("p50 ms"),
        "p99 ms": median("p99 ms"),
        "memory MB": max(own["memory MB"] for own in turns),
        "caught up after s": median("caught up after s"),
    }


def settings(stack: ExitStack, *, every_ledger: bool) -> dict[str, dict[str, str]]:
    """Return the settings of each service, by the name of its ledger."""
    chosen = {OFF: {"ADJUDGE_LEDGER": "off"}, "SQLite": {"ADJUDGE_LEDGER": "all"}}
    if every_ledger:
        database = stack.enter_context(scratch_database(stack.enter_context(running_postgres())))
        url = database.render_as_string(hide_password=False)
        migrations.upgrade(url)
        chosen["SQLite, no texts"] = {"ADJUDGE_LEDGER": "verdicts"}
        chosen["PostgreSQL"] = {"ADJUDGE_LEDGER": "all", "ADJUDGE_DATABASE_URL": url}
    return chosen


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgements", type=int, default=500_000, help="judgements of each service")
    parser.add_argument("--every-ledger", action="store_true", help="also without texts, and on PostgreSQL")
    given = parser.parse_args()
    requests = given.judgements / PER_REQUEST
    rows = []
    with ExitStack() as stack:
        services = {
            ledger: stack.enter_context(running_service("scripted://hash", **chosen))
            for ledger, chosen in settings(stack, every_ledger=given.every_ledger).items()
        }
        for ledger, service in services.items():
            asyncio.run(turn(*service, max(2, min(20, round(requests / 10))), 1, ledger))  # warm-up
        for in_flight, share in ((1, 0.1), (4, 0.9)):
            turns: dict[str, list[dict[str, Any]]] = {ledger: [] for ledger in services}
            for _ in range(TURNS):
                for ledger, service in services.items():
                    part = max(2, round(requests * share / TURNS))
                    turns[ledger].append(asyncio.run(turn(*service, part, in_flight, ledger)))
            rows += [summary(ledger, in_flight, each, turns[OFF]) for ledger, each in turns.items()]
    name = "ledger_overhead" if given.every_ledger else "http_overhead"
    publish(name, "Over HTTP with the scripted engine: 64 responses of 2 KB x 12 criteria per request", rows)


if __name__ == "__main__":
    main()
