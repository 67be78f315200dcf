"""What the console's pages cost over a large ledger: `python -m benchmarks.console --verdicts 1000000`.

Fills a new SQLite ledger with one run of 1,000 steps, 10 responses a group and 10 criteria, and asks for each page five
times through the application. Prints the processor time of the process per page, in milliseconds, and the page's size.
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
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import httpx2

from judge_server.api import Service, create_app
from rubric_store import RubricStore, SQLLedger, migrations
from trainer_client.wire.ledger_rows import LedgerRows, RequestRow, ResponseRow, TextRow, UseRow, VerdictRow

STEPS, GROUP, CRITERIA, RUN = 1000, 10, 10, "big"
START = datetime(2026, 1, 1, tzinfo=UTC)


def digest(text: str) -> bytes:
    """A digest of a text."""
    return hashlib.sha256(text.encode()).digest()


def text_row(key: bytes, value: object) -> TextRow:
    """A text as the ledger keeps it."""
    return TextRow("default", key, zlib.compress(json.dumps(value).encode(), 1))


def requests(verdicts: int) -> Iterator[LedgerRows]:
    """A request per step, with so many verdicts in all."""
    draw = random.Random(1)
    rubric = digest("rubric")
    criteria = [{"id": f"c{i}", "description": f"Criterion {i}."} for i in range(CRITERIA)]
    for step in range(STEPS):
        key, rows = step.to_bytes(16, "big"), LedgerRows([text_row(rubric, criteria)], [], [], [], [])
        for place in range(verdicts // STEPS // CRITERIA):
            name = f"{step}.{place}"
            scores = [draw.random() for _ in range(CRITERIA)]
            for slot, score in enumerate(scores):
                call = digest(f"{name}.{slot}")
                passed = float(score >= 0.5)
                rows.verdicts.append(VerdictRow("default", call, key, passed, score, 0.9, None, None, None, score))
                rows.uses.append(
                    UseRow(
                        "default", RUN, key, place, slot, 0, f"c{slot}", "judge", call, False, None, None, None, False
                    )
                )
            rows.texts.append(text_row(digest(name), f"Response {name}."))
            reward = sum(score >= 0.5 for score in scores) / CRITERIA
            texts = (rubric, digest(f"prompt {place // GROUP}"), digest(name), None)
            where = ("default", RUN, key, place, f"g{place // GROUP}", place % GROUP)
            rows.responses.append(ResponseRow(*where, *texts, 100, True, False, None, reward, "scored"))
        judged = ("weighted_mean", "binary", "sha256:f", "scripted", 1, len(rows.uses), len(rows.uses))
        cost = (100_000, 300_000, 1_000, 2.0, START + timedelta(minutes=step))
        rows.requests.append(RequestRow("default", RUN, key, f"req_{step}", step, *judged, *cost))
        yield rows


async def measure(url: str) -> None:
    """Ask for each page, and print what it cost."""
    service = Service(rubrics=RubricStore(url), ledger=SQLLedger(url))
    transport = httpx2.ASGITransport(create_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        listed = (await http.get(f"/console/responses?run={RUN}")).text
        group = unescape(re.findall(r'href="(/console/group[^"#]*)', listed)[0])
        for path in (
            "/console/runs",
            f"/console/run?run={RUN}",
            f"/console/run?run={RUN}&first=400&last=499",
            f"/console/run/criteria.csv?run={RUN}",
            f"/console/responses?run={RUN}",
            f"/console/responses?run={RUN}&low=0.9&high=1&includes_high=1",
            f"/console/responses?run={RUN}&first=990&last=990",
            f"/console/responses?run={RUN}&criterion=c3&outcome=passed",
            f"/console/responses?run={RUN}&criterion=c3&outcome=failed",
            group,
        ):
            seconds = []
            for _ in range(5):
                began = time.process_time()
                answer = await http.get(path)
                seconds.append(time.process_time() - began)
            answer.raise_for_status()
            milliseconds = 1000 * statistics.median(seconds)
            print(f"{milliseconds:7.0f} ms {len(answer.content) / 1000:6.0f} kB  {path}", flush=True)


def main() -> None:
    """Fill a ledger and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdicts", type=int, default=1_000_000)
    count = parser.parse_args().verdicts
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite+aiosqlite:///{Path(folder) / 'ledger.db'}"
        migrations.upgrade(url)
        ledger = SQLLedger(url)
        for rows in requests(count):
            ledger.write(rows)
        asyncio.run(measure(url))


if __name__ == "__main__":
    main()
