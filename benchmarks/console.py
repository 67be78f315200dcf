"""What the console's pages cost over a large ledger: `python -m benchmarks.console --verdicts 1000000`.

Fills a new ledger on SQLite or, with `--database postgresql`, on a PostgreSQL of its own with two runs: one of 1,000
steps, 10 responses a group and 10 criteria, and a short one to compare with. Asks for each page five times through the
application, and prints the medians of the time until the page is there and of this process's processor time, both in
milliseconds, and the page's size. The time until the page is there means something on an idle machine only.
"""

import argparse
import asyncio
import hashlib
import json
import random
import re
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import httpx2
from tests.fixtures.postgres import running_postgres, scratch_database

from judge_server.api import Service, create_app
from rubric_store import RubricStore, RubricTexts, SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, RequestRow, ResponseRow, TextRow, UseRow, VerdictRow
from trainer_client.wire import RubricContent

STEPS, GROUP, CRITERIA, RUN, OTHER = 1000, 10, 10, "big", "other"
OTHER_VERDICTS = 20_000
START = datetime(2026, 1, 1, tzinfo=UTC)
RUBRIC = RubricContent.model_validate(
    {"criteria": [{"id": f"c{i}", "description": f"Criterion {i}."} for i in range(CRITERIA)]}
)


def digest(text: str) -> bytes:
    """A digest of a text."""
    return hashlib.sha256(text.encode()).digest()


def text_row(key: bytes, value: object) -> TextRow:
    """A text as the ledger keeps it."""
    return TextRow("default", key, zlib.compress(json.dumps(value).encode(), 1))


def requests(run: str, verdicts: int) -> Iterator[LedgerRows]:
    """A request per step, with so many verdicts in all."""
    draw = random.Random(run)
    rubric = bytes.fromhex(RUBRIC.digest.removeprefix("sha256:"))
    criteria = [criterion.model_dump(mode="json") for criterion in RUBRIC.criteria]
    for step in range(STEPS):
        key, rows = digest(run)[:8] + step.to_bytes(8, "big"), LedgerRows([text_row(rubric, criteria)], [], [], [], [])
        for place in range(verdicts // STEPS // CRITERIA):
            name = f"{run}.{step}.{place}"
            scores = [draw.random() for _ in range(CRITERIA)]
            for slot, score in enumerate(scores):
                call = digest(f"{name}.{slot}")
                passed = float(score >= 0.5)
                rows.verdicts.append(VerdictRow("default", call, key, passed, score, 0.9, None, None, None, score))
                rows.uses.append(
                    UseRow(
                        "default", run, key, place, slot, 0, f"c{slot}", "judge", call, False, None, None, None, False
                    )
                )
            rows.texts.append(text_row(digest(name), f"Response {name}."))
            reward = sum(score >= 0.5 for score in scores) / CRITERIA
            texts = (rubric, digest(f"prompt {place // GROUP}"), digest(name), None)
            where = ("default", run, key, place, f"g{place // GROUP}", place % GROUP)
            rows.responses.append(ResponseRow(*where, *texts, 100, True, False, None, reward, "scored"))
        judged = ("weighted_mean", "binary", "sha256:f", "scripted", 1, len(rows.uses), len(rows.uses))
        cost = (100_000, 300_000, 1_000, 2.0, START + timedelta(minutes=step))
        rows.requests.append(RequestRow("default", run, key, f"req_{step}", step, *judged, *cost))
        yield rows


async def measure(url: str) -> None:
    """Ask for each page, and print what it cost."""
    service = Service(rubrics=RubricStore(url), rubric_texts=RubricTexts(), ledger=SQLLedger(url))
    await service.rubrics.publish("default", RUN, RUBRIC)
    transport = httpx2.ASGITransport(create_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        listed = (await http.get(f"/console/responses?run={RUN}")).text
        group = unescape(re.findall(r'href="(/console/group[^"#]*)', listed)[0])
        for path in (
            "/console/runs",
            f"/console/run?run={RUN}",
            f"/console/run?run={RUN}&first=400&last=499",
            f"/console/run?run={RUN}&with={OTHER}",
            f"/console/run?run={RUN}&around=500",
            f"/console/run/criteria.csv?run={RUN}",
            f"/console/responses?run={RUN}",
            f"/console/responses?run={RUN}&low=0.9&high=1&includes_high=1",
            f"/console/responses?run={RUN}&first=990&last=990",
            f"/console/responses?run={RUN}&criterion=c3&outcome=passed",
            f"/console/responses?run={RUN}&criterion=c3&outcome=failed",
            group,
            "/console/rubrics",
            f"/console/rubric?reference={RUN}",
        ):
            waited, used = [], []
            for _ in range(5):
                began = time.perf_counter(), time.process_time()
                answer = await http.get(path)
                waited.append(time.perf_counter() - began[0])
                used.append(time.process_time() - began[1])
            answer.raise_for_status()
            times = " ".join(f"{1000 * statistics.median(seconds):9.0f}" for seconds in (waited, used))
            print(f"{times} {len(answer.content) / 1000:9.0f}  {path}", flush=True)


def main() -> None:
    """Fill a ledger and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=1_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    with new_database(given.database) as url:
        migrations.upgrade(url)
        ledger = SQLLedger(url)
        for run, count in ((RUN, given.verdicts), (OTHER, OTHER_VERDICTS)):
            for rows in requests(run, count):
                ledger.write(rows)
        print(f"{given.database}, {given.verdicts:,} verdicts\n   ms wait    ms CPU        kB  page", flush=True)
        asyncio.run(measure(url))


@contextmanager
def new_database(kind: str) -> Iterator[str]:
    """A new database; yields its URL."""
    with ExitStack() as stack:
        if kind == "sqlite":
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            yield f"sqlite+aiosqlite:///{Path(folder) / 'ledger.db'}"
            return
        database = stack.enter_context(scratch_database(stack.enter_context(running_postgres())))
        yield database.render_as_string(hide_password=False)


if __name__ == "__main__":
    main()
