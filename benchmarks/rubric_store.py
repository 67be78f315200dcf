"""Measure the rubric store on PostgreSQL as it fills: publish, get, list and search, one call at a time.

The server is a real one on this machine; writes are on disk before they are answered, and calls use a local socket.
Each rubric has 8 criteria of 12 words from a vocabulary of 5,000, a few common and most of them rare, as in natural
text.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.progress import Progress
from sqlalchemy import create_engine, insert, make_url
from tests.fixtures.postgres import running_postgres, scratch_database

from benchmarks.report import publish
from rubric_store import RubricStore, migrations
from rubric_store.rubrics.queries import words_of, words_parameter
from rubric_store.rubrics.tables import rubric_tags, rubric_versions, rubric_words, rubrics
from trainer_client.wire import Criterion, Lineage, RubricContent

PROJECT = "bench"
CRITERIA, WORDS, VOCABULARY = 8, 12, 5_000
CALLS = 200
PAGE = 100
BATCH = 1_000


def content(number: int) -> RubricContent:
    """Generate a unique rubric; the frequency of the word of rank r is about proportional to 1/r."""
    draw = random.Random(number)
    words = [f"word{min(VOCABULARY, int(1 / max(draw.random(), 1e-9)))}" for _ in range(CRITERIA * WORDS)]
    texts = [" ".join(words[i * WORDS : (i + 1) * WORDS]) for i in range(CRITERIA)]
    return RubricContent(
        criteria=tuple(Criterion(id=f"c{i}", description=f"{text} {number}.") for i, text in enumerate(texts))
    )


def name(number: int) -> str:
    """Return a rubric's name in one of a hundred teams, so that names do not follow the order of publishing."""
    return f"team{number % 100:02}/math/r{number:07}"


async def add(store: RubricStore, number: int, under: str | None = None) -> None:
    """Publish a rubric with metadata, tags and lineage, under its own name unless `under` is given."""
    lineage = Lineage(generator="reference", model="judge", parameters={"seed": number})
    metadata, tags = {"number": number}, [f"tag{number % 50}"]
    await store.publish(PROJECT, under or name(number), content(number), metadata=metadata, tags=tags, lineage=lineage)


def fill(url: str, first: int, last: int) -> None:
    """Insert the rubrics from number `first` up to `last` in batches, with the same rows as publishing would write."""
    engine = create_engine(url)
    add_words = insert(rubric_words).values(words=words_parameter("postgresql"))
    with Progress(transient=True) as bar:
        task = bar.add_task(f"up to {last:,} rubrics", total=last - first)
        for begin in range(first, last, BATCH):
            numbers = range(begin, min(begin + BATCH, last))
            keys = [{"project_id": PROJECT, "name": name(number)} for number in numbers]
            contents = [content(number) for number in numbers]
            with engine.begin() as connection:
                connection.execute(
                    insert(rubrics), [{**key, "latest_version": 1, "current_version": 1} for key in keys]
                )
                rows = [
                    version_row(key, number, held) for key, number, held in zip(keys, numbers, contents, strict=True)
                ]
                connection.execute(insert(rubric_versions), rows)
                tagged = zip(keys, numbers, strict=True)
                connection.execute(insert(rubric_tags), [{**key, "tag": f"tag{number % 50}"} for key, number in tagged])
                words = [words_of(c.description for c in held.criteria) for held in contents]
                connection.execute(add_words, [{**key, "words": w} for key, w in zip(keys, words, strict=True)])
            bar.advance(task, len(numbers))
    engine.dispose()


def version_row(key: dict[str, str], number: int, held: RubricContent) -> dict[str, Any]:
    """Build the row of a version as `add` would publish it."""
    return {
        **key,
        "version": 1,
        "digest": held.digest,
        "criteria": [criterion.model_dump(mode="json") for criterion in held.criteria],
        "criteria_count": len(held.criteria),
        "created_at": datetime.now(UTC),
        "metadata": {"number": number},
        "lineage": {"generator": "reference", "model": "judge", "parameters": {"seed": number}},
    }


async def timed(
    server: psutil.Process, what: str, size: int, call: Callable[[int], Awaitable[Any]], calls: int = CALLS
) -> dict[str, Any]:
    """Time sequential calls, each with its number, and return a row of figures.

    The processor time covers this process and the server. It is the duration of a call on an otherwise idle machine,
    without waits for the disk.
    """
    seconds, busy = [], busy_seconds(server)
    for number in range(calls):
        started = time.perf_counter()
        await call(number)
        seconds.append(time.perf_counter() - started)
    busy = busy_seconds(server) - busy
    quantiles = statistics.quantiles(seconds, n=100)
    marks = {f"p{mark} ms": quantiles[mark - 1] * 1000 for mark in (50, 99)}
    return {"call": what, "rubrics": size, **marks, "processor ms": busy / calls * 1000}


def busy_seconds(server: psutil.Process) -> float:
    """Return the processor seconds of this process and of a PostgreSQL server."""
    total = time.process_time()
    for process in [server, *server.children()]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


async def measure(store: RubricStore, server: psutil.Process, size: int) -> list[dict[str, Any]]:
    """Time every kind of call on a store of `size` rubrics; this adds 2 * `CALLS` versions."""
    draw = random.Random(size)
    pick = [name(draw.randrange(size)) for _ in range(CALLS)]
    digests = [content(draw.randrange(size)).digest for _ in range(CALLS)]
    cursors = {"first": None, "middle": await cursor_at(store, "team50"), "last": await cursor_at(store, "team98")}

    async def page(after: str | None, **narrowed: Any) -> None:
        await store.list(PROJECT, after=after, limit=PAGE, **narrowed)

    rows = [
        await timed(server, "get by name", size, lambda i: store.find(PROJECT, pick[i])),
        await timed(server, "get by name@version", size, lambda i: store.find(PROJECT, f"{pick[i]}@1")),
        await timed(server, "get by digest", size, lambda i: store.find(PROJECT, digests[i])),
    ]
    for where, cursor in cursors.items():
        rows.append(await timed(server, f"list, {where} page", size, lambda _, at=cursor: page(at), 100))
    rows.append(await timed(server, "list, a tag's first page", size, lambda i: page(None, tag=f"tag{i % 50}"), 100))
    rows.append(await timed(server, "search, a common word", size, lambda _: page(None, text="word2"), 100))
    rows.append(
        await timed(server, "search, a rare word", size, lambda i: page(None, text=f"word{300 + i} word1"), 100)
    )
    rows.append(await timed(server, "publish a new name", size, lambda i: add(store, size + i)))
    rows.append(await timed(server, "publish a new version", size, lambda i: add(store, size + CALLS + i, name(i))))
    return rows


async def cursor_at(store: RubricStore, prefix: str) -> str | None:
    """Return the cursor after the first rubric of a team."""
    return (await store.list(PROJECT, prefix=prefix, limit=1)).next_cursor


@contextlib.contextmanager
def durable_database() -> Iterator[tuple[str, psutil.Process]]:
    """Create a database on a server with fsync on; yield its URL and the server's process."""
    with running_postgres() as server:
        conninfo = server.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = on")
            connection.execute("SELECT pg_reload_conf()")
            [folder] = connection.execute("SHOW data_directory").fetchone() or [""]
        process = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
        with scratch_database(server) as database:
            yield database.render_as_string(hide_password=False), process


async def run(url: str, server: psutil.Process, sizes: list[int]) -> list[dict[str, Any]]:
    """Fill a store to each size and measure it there."""
    await asyncio.to_thread(migrations.upgrade, url)
    store, rows, filled = RubricStore(url), [], 0
    for size in sizes:
        await asyncio.to_thread(fill, url, filled, size)
        await asyncio.to_thread(tidy, url)
        rows += await measure(store, server, size)
        filled = size + 2 * CALLS
    await store.close()
    return rows


def tidy(url: str) -> None:
    """Run VACUUM ANALYZE, as a server's autovacuum would from time to time."""
    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1_000, 100_000], help="numbers of rubrics to measure at, ascending"
    )
    sizes = parser.parse_args().sizes
    with durable_database() as (url, server):
        rows = asyncio.run(run(url, server, sizes))
    publish(
        "rubric-store",
        "The rubric store on PostgreSQL",
        rows,
        [
            f"{CRITERIA} criteria of {WORDS} words each; pages of {PAGE}; {CALLS} calls (lists: 100), one at a time",
            "processor ms: mean per call, of the store's process and the server together; other work does not count",
        ],
    )


if __name__ == "__main__":
    main()
