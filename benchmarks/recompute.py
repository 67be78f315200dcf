"""Measure how fast the rewards of a run are recomputed from the ledger, on both databases.

The runs are written as rows, like recorded ones, with distinct verdicts under 10 criteria; one run was judged with yes
or no, the other step by step with nine steps per response. Recomputing reads the rows, applies the formula and
serialises the answer, all in this process, as a service does.
"""

import argparse
import asyncio
import time
from typing import Any

from rich.progress import track

from benchmarks.ledger_rows import STEPS, new_database, requests
from benchmarks.report import publish
from judge_server.scoring.recompute import recompute
from rubric_store import SQLLedger, migrations
from trainer_client.wire import JudgingProtocol
from trainer_client.wire.ledger import RecomputedGroup, RecomputeEvent, RecomputeRequest

PROTOCOLS: tuple[JudgingProtocol, ...] = ("binary", "stepwise")
RULES: dict[str, dict[str, Any]] = {
    "weighted_mean, other weights": {"run": "binary", "reward": {"mode": "weighted_mean"}, "weights": {"c1": 3}},
    "gate, with a length penalty": {"run": "binary", "reward": {"mode": "gate", "length_penalty": {}}},
    "stepwise, other budgets": {"run": "stepwise", "reward": {"mode": "stepwise"}, "budgets": {"suggest": 1.0}},
}


async def timed(ledger: SQLLedger, rules: dict[str, Any]) -> tuple[float, float, int, int]:
    """Recompute a run; return the seconds, the processor seconds, the verdicts read, and the bytes of the answer."""
    started, busy, size, verdicts = time.perf_counter(), time.process_time(), 0, 0
    async for part in recompute(ledger, RecomputeRequest.model_validate(rules), project_id="default"):
        if isinstance(part, RecomputedGroup):
            size += len(RecomputeEvent.model_construct(group=part).model_dump_json(exclude_unset=True))
        else:
            verdicts = part.verdicts
    return time.perf_counter() - started, time.process_time() - busy, verdicts, size


def measured(name: str, url: str, verdicts: int) -> list[dict[str, Any]]:
    """Measure a row for each of the rules. Each run is named like its protocol."""
    migrations.upgrade(url)
    ledger = SQLLedger(url)
    written, seconds = 0, 0.0
    for protocol in PROTOCOLS:
        given = requests(protocol, verdicts // len(PROTOCOLS), protocol)
        for rows in track(given, f"writing a run into {name}", total=STEPS, transient=True):
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
    verdicts = parser.parse_args().verdicts
    rows = []
    for name in ("SQLite", "PostgreSQL"):
        with new_database(name.lower()) as url:
            rows += measured(name, url, verdicts)
    publish("recompute", "Rewards of a run recomputed from the ledger, best of three", rows)


if __name__ == "__main__":
    main()
