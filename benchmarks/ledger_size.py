"""What a large ledger costs on PostgreSQL: `python -m benchmarks.ledger_size --rows 10000000`.

Starts a PostgreSQL of its own and fills its ledger with uses, each with a verdict of its own, in runs of 200,000 uses
in four projects; the server makes the rows. At 1,000,000 uses and at `--rows`, writes two more such runs as the service
writes them, reads pages of `GET /v1/verdicts` and a run's figures through the application, and purges one run by name
and the other by age. Prints the milliseconds until each was done, and the processor time of the server's connections.
The time until something is done means something on an idle machine only. A database takes about 600 bytes a use.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import psycopg
from sqlalchemy import make_url

from benchmarks.ledger_rows import RUBRIC, START, new_database, requests
from benchmarks.report import commit, machine
from judge_server.api import Service, create_app
from rubric_store import RubricStore, RubricTexts, SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows

RUN_USES, REQUEST_USES, REQUEST_RESPONSES, CRITERIA = 200_000, 200, 20, 10
REQUESTS = RUN_USES // REQUEST_USES
PROJECTS = 4
FIRST, BATCH = 1_000_000, 50
CONNECTIONS = 2
_PER_SECOND = os.sysconf("SC_CLK_TCK")

_KEYS = "'p' || %(run)s %% {projects}, 'run-' || %(run)s, substring(sha256(int8send(%(run)s)) for 8)"
FILL = (
    "INSERT INTO ledger_verdicts (project_id, digest, request, score, probability, menu_mass, raw_probability)"
    " SELECT 'p' || %(run)s %% {projects}, sha256(int8send(%(run)s::bigint * {uses} + n)),"
    " substring(sha256(int8send(%(run)s)) for 8) || int8send(n / {per_request}), n %% 2, 0.4, 0.9, 0.4"
    " FROM generate_series(0, {uses} - 1) AS n",
    "INSERT INTO ledger_uses (project_id, run, request, place, slot, vote, criterion, method, digest, failed, cached)"
    f" SELECT {_KEYS} || int8send(n / {{per_request}}), n %% {{per_request}} / {{criteria}}, n %% {{criteria}}, 0,"
    " 'c' || n %% {criteria}, 'judge', sha256(int8send(%(run)s::bigint * {uses} + n)), false, false"
    " FROM generate_series(0, {uses} - 1) AS n",
    "INSERT INTO ledger_responses (project_id, run, request, place, group_id, position, rubric, prompt, response,"
    f" tokens, stopped, format_ok, reward, status) SELECT {_KEYS} || int8send(n / {{responses}}), n %% {{responses}},"
    " 'g' || n %% {responses} / 10, n %% 10, %(rubric)s, sha256(int8send(%(run)s::bigint * 1000000 + n / 10)),"
    " sha256(int8send(-%(run)s::bigint * 1000000 - n)), 100, true, false, 0.5, 'scored'"
    " FROM generate_series(0, {uses} / {criteria} - 1) AS n",
    "INSERT INTO ledger_texts (project_id, digest, body) SELECT 'p' || %(run)s %% {projects},"
    " sha256(int8send(-%(run)s::bigint * 1000000 - n)), decode(repeat(md5(n::text), 4), 'hex')"
    " FROM generate_series(0, {uses} / {criteria} - 1) AS n",
    "INSERT INTO ledger_requests (project_id, run, request, request_id, step, mode, protocol, fingerprint, model,"
    " votes, uses, judge_calls, tokens_computed, tokens_reused, tokens_written, seconds, created_at)"
    f" SELECT {_KEYS} || int8send(n), 'req_' || n, n, 'weighted_mean', 'binary', 'sha256:f', 'scripted', 1,"
    " {per_request}, {per_request}, 100000, 300000, 1000, 2, %(at)s::timestamptz + n * interval '1 minute'"
    " FROM generate_series(0, {requests} - 1) AS n",
    "INSERT INTO ledger_runs SELECT project_id, run, min(created_at), max(created_at) FROM ledger_requests"
    " WHERE project_id = 'p' || %(run)s %% {projects} AND run = 'run-' || %(run)s GROUP BY 1, 2",
    "INSERT INTO ledger_run_steps SELECT project_id, run, step, mode, protocol, model, 1, {responses}, {responses}, 0,"
    " 0, {responses}, {responses} / 2.0, {responses} / 4.0, uses, 0, 0, judge_calls, tokens_computed, tokens_reused,"
    " tokens_written, seconds, 0 FROM ledger_requests"
    " WHERE project_id = 'p' || %(run)s %% {projects} AND run = 'run-' || %(run)s",
    "INSERT INTO ledger_run_criteria SELECT 'p' || %(run)s %% {projects}, 'run-' || %(run)s, n, %(rubric)s, 'c' || c,"
    " {responses}, 0, {responses} / 2, {responses} / 2, 0"
    " FROM generate_series(0, {requests} - 1) AS n, generate_series(0, {criteria} - 1) AS c",
)
"""The statements that add a run; each use has a verdict of its own, each response a text of 64 bytes."""


def conninfo(url: str) -> str:
    """A database's URL as psycopg takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class Meter:
    """Times work, and the processor time that the server's connections spend on it."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(conninfo(url), autocommit=True)
        self.figures: dict[str, list[tuple[float, float]]] = {}

    def server_seconds(self) -> float:
        """Processor seconds of all connections so far, in user and kernel mode."""
        found = self.connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for (pid,) in found]
        return sum(int(each[11]) + int(each[12]) for each in fields) / _PER_SECOND

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to the figures under a name."""
        began = time.perf_counter(), self.server_seconds()
        yield
        used = time.perf_counter() - began[0], self.server_seconds() - began[1]
        self.figures.setdefault(name, []).append(used)

    def take(self) -> dict[str, tuple[float, float]]:
        """The medians of the figures since the last call, in seconds."""
        taken = {
            name: (statistics.median(one for one, _ in each), statistics.median(other for _, other in each))
            for name, each in self.figures.items()
        }
        self.figures = {}
        return taken


def fill(url: str, first: int, last: int) -> None:
    """Add the runs from `first` to before `last`, over two connections."""

    def add(runs: range) -> None:
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            for run in runs:
                values = {"run": run, "rubric": rubric, "at": START + timedelta(days=2, hours=run)}
                with connection.transaction():
                    for statement in statements:
                        connection.execute(statement, values)

    rubric = bytes.fromhex(RUBRIC.digest.removeprefix("sha256:"))
    statements = [
        statement.format(
            projects=PROJECTS, uses=RUN_USES, per_request=REQUEST_USES, criteria=CRITERIA, responses=REQUEST_RESPONSES,
            requests=REQUESTS,
        )
        for statement in FILL
    ]  # fmt: skip
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(add, [range(first + n, last, CONNECTIONS) for n in range(CONNECTIONS)]))


def write_run(meter: Meter, ledger: SQLLedger, run: str) -> None:
    """Write a run of 200,000 uses as the service does, in transactions of 10,000."""
    given = list(requests(run, RUN_USES))
    parts = [LedgerRows.concat(given[start : start + BATCH]) for start in range(0, len(given), BATCH)]
    for part in parts:
        with meter.measure("10,000 uses written"):
            ledger.write(part)


async def read(meter: Meter, url: str, run: str) -> None:
    """Read pages of a run and its figures, each eleven times."""
    service = Service(rubrics=RubricStore(url), rubric_texts=RubricTexts(), ledger=SQLLedger(url))
    transport = httpx2.ASGITransport(create_app(service))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        first = (await http.get("/v1/verdicts", params={"run": run, "limit": 100})).raise_for_status().json()
        pages = {
            "a page of verdicts": ("/v1/verdicts", {"run": run, "limit": 100, "after": first["next_cursor"]}),
            "a page of a step's verdicts": ("/v1/verdicts", {"run": run, "limit": 100, "step": 500}),
            "a run's figures": (f"/v1/runs/{run}", {}),
            "a page of runs": ("/v1/runs", {}),
        }
        for name, (path, parameters) in pages.items():
            for _ in range(11):
                with meter.measure(name):
                    (await http.get(path, params=parameters)).raise_for_status()


def measure(meter: Meter, url: str) -> dict[str, tuple[float, float]]:
    """Measure everything once at the size that the ledger has."""
    ledger = SQLLedger(url)
    meter.connection.execute("ANALYZE")
    for run in ("by-name", "by-age"):
        write_run(meter, ledger, run)
    asyncio.run(read(meter, url, "by-name"))
    purges: list[tuple[str, Callable[[], object]]] = [
        ("purge of a run", lambda: ledger.purge("default", run="by-name")),
        ("purge by age", lambda: ledger.purge("default", before=START + timedelta(days=1))),
    ]
    for name, purge in purges:
        with meter.measure(name):
            purge()
    return meter.take()


def sizes(meter: Meter) -> str:
    """The size of each large table with its indexes, and of the database."""
    found = meter.connection.execute(
        "SELECT coalesce(i.inhparent, c.oid)::regclass::text, sum(pg_total_relation_size(c.oid)) FROM pg_class c"
        " LEFT JOIN pg_inherits i ON i.inhrelid = c.oid WHERE c.relkind = 'r' AND c.relname LIKE 'ledger%'"
        " GROUP BY 1 HAVING sum(pg_total_relation_size(c.oid)) > 10000000 ORDER BY 2 DESC"
    )
    return ", ".join(f"{name} {int(size) / 1e9:.2f} GB" for name, size in found)


def main() -> None:
    """Fill a ledger and measure it at two sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="uses, at least 1,000,000")
    given = parser.parse_args()
    with new_database("postgresql") as url:
        migrations.upgrade(url)
        meter = Meter(url)
        taken = []
        done = 0
        for rows in sorted({FIRST, given.rows}):
            began = time.perf_counter()
            fill(url, done, rows // RUN_USES)
            done = rows // RUN_USES
            print(f"{rows:,} uses after {time.perf_counter() - began:.0f} s more: {sizes(meter)}", flush=True)
            taken.append(measure(meter, url))
            for name, (waited, used) in taken[-1].items():
                ratios = " ".join(f"{now / max(then, 1e-3):6.2f}" for now, then in zip(
                    (waited, used), taken[0][name], strict=True
                ))  # fmt: skip
                print(f"{1000 * waited:9.0f} {1000 * used:9.0f} ms  x {ratios}  {name}", flush=True)
        meter.connection.close()
    print(f"{machine()}; commit {commit()}")


if __name__ == "__main__":
    main()
