"""One operation of millions of judgements: `python -m benchmarks.long_operation --judgements 10000000`.

Starts PostgreSQL, Redis, a service with the scripted engine and the whole ledger, and two workers. Submits one `score`
operation, of groups of eight responses under a published rubric of 25 criteria, and requests `GET /v1/operations`
twice a second. For each tenth of the groups, prints the judgements per second, the median milliseconds of that
request, the resident memory of the service and of the larger worker, what Redis holds, and by how much the tables
grew. Then reads all results, and compares what was judged, recorded and stored with what was asked; the exit status is
1 if they differ. `--redis-mb` limits Redis, so that its verdict cache is full early. A run needs about 600 bytes of
disk for each judgement.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
from redis import Redis
from rich.console import Console
from tests.fixtures.postgres_process import PostgresProcess
from tests.fixtures.redis_process import RedisProcess

from benchmarks.report import progress_log, publish
from benchmarks.soak.cluster import FENCES
from benchmarks.soak.hosts import AdjudgeProcess
from benchmarks.soak.stores import psycopg_url, redis_url, store_url
from rubric_store import migrations
from trainer_client import Client

RESPONSES, CRITERIA = 8, 25
JUDGEMENTS_PER_GROUP = RESPONSES * CRITERIA
RUBRIC, RUN = "long/operation", "long-operation"
RULES = [{"id": f"c{n}", "description": f"The answer names part {n}.", "weight": 1 + n % 3} for n in range(CRITERIA)]
PARTS = 10
_PAUSE_S = 0.5


class Stack:
    """The processes: stores, a service and two workers."""

    def __init__(self, folder: Path, redis_mb: int, policy: str) -> None:
        self.postgres, self.redis = PostgresProcess(folder / "postgres"), RedisProcess()
        self._redis_memory = {"maxmemory": f"{redis_mb}mb", "maxmemory-policy": policy}
        shared = {
            "ADJUDGE_DATABASE_URL": store_url(self.postgres),
            "ADJUDGE_CACHE_URL": redis_url(self.redis.port, 0),
            "ADJUDGE_QUEUE_URL": redis_url(self.redis.port, 1),
            "ADJUDGE_FENCE_SECRET": FENCES,
        }
        self.service = AdjudgeProcess("service", folder, ("serve", "--engine", "scripted://hash"), shared)
        shared["ADJUDGE_URL"] = self.service.url
        self.workers = [
            AdjudgeProcess(
                name, folder, ("worker", "--concurrency", "2"), shared, ready_message="Adjudge worker started"
            )
            for name in ("worker-1", "worker-2")
        ]

    def start(self) -> None:
        """Start everything, and publish the rubric."""
        self.postgres.start()
        self.redis.start()
        with Redis(port=self.redis.port) as redis:
            for name, value in self._redis_memory.items():
                redis.config_set(name, value)
        migrations.upgrade(store_url(self.postgres))
        for host in (self.service, *self.workers):
            host.start()
        for host in (self.service, *self.workers):
            host.wait_until_ready()
        with Client(self.service.url) as client:
            client.publish_rubric(RUBRIC, RULES)

    def close(self) -> None:
        """Kill everything."""
        for host in (*self.workers, self.service):
            host.close()
        self.redis.kill()
        self.postgres.kill()

    @contextmanager
    def database(self) -> Iterator["psycopg.Connection[Any]"]:
        """A connection to the database, past the service."""
        with psycopg.connect(psycopg_url(self.postgres), autocommit=True) as connection:
            yield connection

    def table_mb(self) -> dict[str, float]:
        """Megabytes of the operations' tables and of the ledger's, with their indexes."""
        query = (
            "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class"
            " WHERE relkind = 'r' AND relname LIKE %s || '%%'"
        )
        with self.database() as connection:
            found = {}
            for name, prefix in (("operations", "operation"), ("ledger", "ledger")):
                row = connection.execute(query, [prefix]).fetchone()
                found[name] = float(row[0]) / 1e6 if row else 0.0
            return found

    def memory_mb(self) -> dict[str, float]:
        """Resident megabytes of the service, of the larger worker, and what Redis holds."""
        with Redis(port=self.redis.port) as redis:
            held = float(redis.info("memory")["used_memory"]) / 1e6
        return {
            "service": _resident_mb(self.service),
            "worker": max(_resident_mb(worker) for worker in self.workers),
            "Redis": held,
        }


def _resident_mb(host: AdjudgeProcess) -> float:
    """Resident megabytes of a process and its children."""
    if host.pid is None:
        raise RuntimeError(f"{host.name} ended; the end of its log: {host.last_words()}")
    process = psutil.Process(host.pid)
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 1e6


def groups(count: int) -> str:
    """The groups as JSONL; no two responses are alike."""
    return "\n".join(
        json.dumps(
            {
                "id": f"g{n}",
                "prompt": f"Name the parts of machine {n}.",
                "responses": [f"Machine {n} in its version {place} has a wheel." for place in range(RESPONSES)],
            }
        )
        for n in range(count)
    )


def follow(stack: Stack, client: Client, total: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Watch the only operation until it ends, and return a row for each tenth of its groups."""
    rows: list[dict[str, Any]] = []
    listed: list[float] = []
    before, sizes, began = 0, stack.table_mb(), time.monotonic()
    while True:
        at = time.perf_counter()
        (operation,) = client.operations()
        listed.append(time.perf_counter() - at)
        done = operation.progress.done
        if done > before and (done >= total * (len(rows) + 1) / PARTS or operation.ended):
            now, grown = time.monotonic(), stack.table_mb()
            memory = stack.memory_mb()
            rows.append(
                {
                    "part": f"{100 * done // total}%",
                    "judgements/s": (done - before) * JUDGEMENTS_PER_GROUP / (now - began),
                    "GET /v1/operations, ms": 1000 * statistics.median(listed),
                    **{f"{name}, MB": memory[name] for name in memory},
                    **{f"{name} tables grew, MB": grown[name] - sizes[name] for name in grown},
                    "seconds": now - began,
                }
            )
            say(f"{done:,} of {total:,} groups, {rows[-1]['judgements/s']:,.0f} judgements/s")
            before, sizes, began, listed = done, grown, now, []
        if operation.ended:
            if operation.state != "done":
                raise RuntimeError(f"the operation ended as {operation.state}: {operation.problem}")
            return rows
        time.sleep(_PAUSE_S)


def check(stack: Stack, client: Client, operation_id: str, total: int) -> list[str]:
    """Read all results, and say what was asked, judged, recorded and stored; exits if they differ."""
    began = time.monotonic()
    with httpx2.Client(base_url=stack.service.url, timeout=60) as http:
        while (state := http.get("/v1/ledger").raise_for_status().json())["waiting"]:
            time.sleep(_PAUSE_S)
    written_s = time.monotonic() - began
    indexes = [result["index"] for result in client.operation_results(operation_id)]
    read_s = time.monotonic() - began - written_s
    usage = client.operation(operation_id).usage
    run = client.run_report(RUN).run
    asked = total * JUDGEMENTS_PER_GROUP
    wrong = [
        f"{name}: {found:,} instead of {wanted:,}"
        for name, found, wanted in (
            ("results", len(indexes), total),
            ("different results", len(set(indexes)), total),
            ("verdicts billed", usage.judge_calls + usage.cached + usage.joined, asked),
            ("verdicts failed", usage.failed, 0),
            ("responses recorded", run.responses, total * RESPONSES),
            ("verdicts recorded", run.verdicts, asked),
            ("verdicts lost by the ledger", state["lost"], 0),
        )
        if found != wanted
    ]
    if wrong:
        raise SystemExit("; ".join(wrong))
    return [
        f"{asked:,} verdicts, each billed and recorded once; {usage.judge_calls:,} calls of the judge",
        f"{total:,} results, each there once, read in {read_s:.1f} s",
        f"the ledger was complete {written_s:.1f} s after the operation",
    ]


def main() -> None:
    """Run the operation and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judgements", type=int, default=1_000_000)
    parser.add_argument("--redis-mb", type=int, default=64)
    parser.add_argument("--policy", default="volatile-lru")
    parser.add_argument("--keep", type=Path, help="keep data and logs in this folder")
    given = parser.parse_args()
    total = given.judgements // JUDGEMENTS_PER_GROUP
    say = progress_log(Console(stderr=True, width=240))
    with ExitStack() as closing:
        folder = given.keep or Path(closing.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        stack = Stack(folder, given.redis_mb, given.policy)
        closing.callback(stack.close)
        stack.start()
        client = closing.enter_context(Client(stack.service.url, run=RUN))
        say(f"submitting {total:,} groups")
        began = time.monotonic()
        operation = client.submit({"kind": "score", "run": RUN, "rubric": RUBRIC, "groups": groups(total)})
        submitted_s = time.monotonic() - began
        rows = follow(stack, client, total, say)
        seconds = time.monotonic() - began
        notes = check(stack, client, operation.id, total)
        notes.append(f"submitted in {submitted_s:.1f} s; done after {seconds:.0f} s")
    publish("long-operation", f"An operation of {given.judgements:,} judgements", rows, notes)


if __name__ == "__main__":
    main()
