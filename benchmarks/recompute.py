"""Measure how fast the rewards of a run are recomputed from the ledger, on both databases.

The runs are written as rows, like recorded ones: requests of 64 responses under 12 criteria, with distinct verdicts;
one run was judged with yes or no, the other step by step with nine steps per response. Recomputing reads the rows,
applies the formula and serialises the answer, all in this process, as a service does.
"""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
import zlib
from datetime import UTC, datetime
from typing import Any

from rich.progress import track
from tests.fixtures.postgres import running_postgres, scratch_database

from benchmarks.report import publish
from judge_server.scoring.recompute import recompute
from rubric_store import SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, RequestRow, ResponseRow, TextRow, UseRow, VerdictRow
from trainer_client.wire.ledger import RecomputedGroup, RecomputeEvent, RecomputeRequest

RESPONSES, CRITERIA = 64, 12
PER_REQUEST = RESPONSES * CRITERIA
RUBRIC = bytes(32)
RULES: dict[str, dict[str, Any]] = {
    "weighted_mean, other weights": {"run": "binary", "reward": {"mode": "weighted_mean"}, "weights": {"c1": 3}},
    "gate, with a length penalty": {"run": "binary", "reward": {"mode": "gate", "length_penalty": {}}},
    "stepwise, other budgets": {"run": "stepwise", "reward": {"mode": "stepwise"}, "budgets": {"suggest": 1.0}},
}
SPANS = json.dumps([(0, 0, 900), *((n, 100 * n - 100, 100 * n) for n in range(1, 10))])


def request(number: int, protocol: str, draw: random.Random) -> LedgerRows:
    """Generate the rows of one request; the run is named like its protocol."""
    spans = SPANS if protocol == "stepwise" else None
    key = number.to_bytes(8, "big") + bytes(8)
    criteria = [
        {"id": f"c{n}", "description": "Holds.", "kind": ("suggest", "bonus", "answer")[n % 3]} for n in range(CRITERIA)
    ]
    texts = [TextRow("default", RUBRIC, zlib.compress(json.dumps(criteria).encode()))]
    verdicts, responses, uses = [], [], []
    for place in range(RESPONSES):
        responses.append(
            ResponseRow(
                "default", protocol, key, place, "g", place, RUBRIC, RUBRIC, os.urandom(32), None, 800, True, True,
                spans, 0.5, "scored",
            )
        )  # fmt: skip
        for slot in range(CRITERIA):
            digest = os.urandom(32)
            score, probability = float(draw.random() < 0.5), draw.random()
            verdicts.append(
                VerdictRow("default", digest, key, score, probability, 0.99, draw.randint(1, 9), None, None)
            )
            uses.append(
                UseRow(
                    "default", protocol, key, place, slot, 0, f"c{slot}", "judge", digest, False, None, None, 0, False
                )
            )
    now = datetime.now(UTC)
    request_row = RequestRow(
        "default", protocol, key, f"req_{number}", number, "weighted_mean", protocol, "sha256:f", "m", 1, len(uses),
        768, 1, 1, 1, 1.0, now,
    )  # fmt: skip
    return LedgerRows(texts, verdicts, [request_row], responses, uses)


async def timed(ledger: SQLLedger, rules: dict[str, Any]) -> tuple[float, float, int, int]:
    """Recompute a run; return the seconds, the processor seconds, the verdicts read, and the bytes of the answer."""
    started, busy, size, verdicts = time.perf_counter(), time.process_time(), 0, 0
    async for part in recompute(ledger, RecomputeRequest.model_validate(rules), project_id="default"):
        if isinstance(part, RecomputedGroup):
            size += len(RecomputeEvent.model_construct(group=part).model_dump_json(exclude_unset=True))
        else:
            verdicts = part.verdicts
    return time.perf_counter() - started, time.process_time() - busy, verdicts, size


def measured(name: str, url: str, requests: int) -> list[dict[str, Any]]:
    """Measure a row for each of the rules."""
    migrations.upgrade(url)
    ledger = SQLLedger(url)
    draw, written, seconds = random.Random(1), 0, 0.0
    for number in track(range(requests), f"writing runs into {name}", transient=True):
        rows = request(number, "stepwise" if number % 2 else "binary", draw)
        started = time.perf_counter()
        ledger.write(rows)
        seconds += time.perf_counter() - started
        written += len(rows.uses)
    rows_ = []
    for rules, chosen in RULES.items():
        took, busy, verdicts, size = min(asyncio.run(timed(ledger, chosen)) for _ in range(3))
        rows_.append(
            {
                "database": name,
                "rules": rules,
                "verdicts": verdicts,
                "verdicts/s": verdicts / took,
                "per core second": verdicts / busy,
                "s": took,
                "answer MB": size / 1e6,
                "uses written/s": written / seconds,
            }
        )
    asyncio.run(ledger.close())
    return rows_


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=600_000)
    requests = max(1, parser.parse_args().verdicts // PER_REQUEST)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured("SQLite", f"sqlite+aiosqlite:///{folder}/ledger.db", requests)
    with running_postgres() as server, scratch_database(server) as database:
        rows += measured("PostgreSQL", database.render_as_string(hide_password=False), requests)
    publish("recompute", "Rewards of a run recomputed from the ledger, best of three", rows)


if __name__ == "__main__":
    main()
