"""What the console's pages cost over a large ledger: `python -m benchmarks.console --verdicts 1000000`.

Fills a new ledger on SQLite or, with `--database postgresql`, on a PostgreSQL of its own with two runs: one of 1,000
steps, 10 responses a group and 10 criteria, and a short one to compare with. Asks for each page, and for what the
monitors find, five times through the application. The table has the medians of the time until the page is there and of
this process's processor time, both in milliseconds, and the page's size. The time until the page is there means
something on an idle machine only.
"""

import argparse
import asyncio
import re
import statistics
import time
from html import unescape
from typing import Any

import httpx2

from benchmarks.ledger_rows import RUBRIC, new_database, requests
from benchmarks.report import publish
from judge_server.api.app import create_app
from judge_server.api.service import Service
from rubric_store import RubricStore, RubricTexts, SQLLedger, migrations

RUN, OTHER = "big", "other"
OTHER_VERDICTS = 20_000


async def measure(url: str) -> list[dict[str, Any]]:
    """Ask for each page, and return a row with what it cost."""
    rows: list[dict[str, Any]] = []
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
            f"/v1/runs/{RUN}/monitors",
        ):
            waited, used = [], []
            for _ in range(5):
                began = time.perf_counter(), time.process_time()
                answer = await http.get(path)
                waited.append(time.perf_counter() - began[0])
                used.append(time.process_time() - began[1])
            answer.raise_for_status()
            wait_ms, processor_ms = (1000 * statistics.median(seconds) for seconds in (waited, used))
            size = len(answer.content) / 1000
            rows.append({"page": path, "until there, ms": wait_ms, "processor ms": processor_ms, "kB": size})
    return rows


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
        rows = asyncio.run(measure(url))
    publish(f"console_{given.database}", f"The console over {given.verdicts:,} verdicts on {given.database}", rows)


if __name__ == "__main__":
    main()
