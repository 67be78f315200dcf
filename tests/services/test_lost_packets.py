"""Hosts that vanish without a word: every packet is lost, and who waits for one of them finds out by itself.

Nothing tells: no reset, no closed port. Without keepalives and limits each of these would wait for its deadline, for
minutes, or for good; each has a limit here that is far below that. What they wait for is mostly the time itself.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx2
import psutil
import psycopg
import pytest
from typer.testing import CliRunner

from adjudge_services.cli.main import app
from tests.fixtures.islands import Sea, open_sea
from tests.judge_server.faults.stores import PARTS, Told, running_service, until_written
from tests.services.on_islands import adjudge_on, connections, postgres_on, python_on, shown, valkey_on, working
from tests.services.operations.cluster import score
from tests.services.processes import Service, get, listening, serving
from trainer_client import AsyncClient, Client
from trainer_client.wire import RewardAnswer
from trainer_client.wire.operations import Operation

pytestmark = pytest.mark.faults

SECRET = ("ADJUDGE_FENCE_SECRET", "the same wherever it is needed")
TOKEN = {"ADJUDGE_JUDGE_TOKEN": "that of a deployment, of some length"}
GONE_WITHIN_S = 90.0
"""Well above what any of them is to take until it gives a silent host up, and well below what it would wait for."""

BEFORE_OTHERS_S = 50.0
"""The same for the two ends of a database's connection: statements have limits of their own, and so has being idle."""

CALLS_S = 1.0
SOON, LATE, UNHEARD = 8, 40, 2
"""Calls of a request that is done while its host is away, of one that is not, and of one that comes after it went."""

VERDICTS = 16
"""Of a group of an operation: eight responses, two criteria."""


@pytest.fixture
def sea() -> Iterator[Sea]:
    """A router without islands."""
    with open_sea() as made:
        yield made


def rubric(criteria: int) -> dict[str, Any]:
    """One whose criteria a judge answers one after the other."""
    return {"criteria": [{"id": f"c{n}", "description": f"Part {n} of {criteria} holds."} for n in range(criteria)]}


async def rewards(client: AsyncClient, criteria: int) -> RewardAnswer:
    """Those of one response, which may take five minutes."""
    group = {"id": "g", "prompt": f"Are there {criteria}?", "responses": ["There are."]}
    return await client.rewards([group], rubric(criteria), deadline_s=300)


def scores(answer: RewardAnswer) -> list[tuple[float | None, list[float | None]]]:
    """Each response's reward, and the scores behind it."""
    responses = [response for group in answer.groups for response in group.responses]
    return [(response.reward, [verdict.score for verdict in response.verdicts]) for response in responses]


def new_key(*scopes: str) -> str:
    """The text of a new key, in the database that the environment names."""
    made = CliRunner().invoke(app, ["keys", "create", *(word for scope in scopes for word in ("--scope", scope))])
    assert made.exit_code == 0, made.output
    return made.stdout.strip()


async def until(seen: Callable[[], bool], within_s: float = GONE_WITHIN_S) -> float:
    """Wait until it is so; the seconds that it took."""

    def waited() -> float:
        began = monotonic()
        while not seen():
            assert monotonic() < began + within_s, seen
            sleep(0.05)
        return monotonic() - began

    return await asyncio.to_thread(waited)


def counted(page: str, name: str) -> float:
    """The sum of a metric over its labels."""
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


async def test_a_trainer_finds_out_that_its_service_vanished_and_has_its_answer_when_it_is_back(
    sea: Sea, tmp_path: Path, migrated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*SECRET)
    island, key = sea.island(), await asyncio.to_thread(new_key, "score", "metrics")
    engine, own = f"scripted://hash?delay_s={CALLS_S}", psutil.Process().pid
    with adjudge_on(island, tmp_path / "log", "serve", "--engine", engine) as url:

        def page() -> str:
            return httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"}).text

        async with AsyncClient(url, api_key=key) as client:
            asked = [asyncio.create_task(rewards(client, criteria)) for criteria in (SOON, LATE)]
            await until(lambda: counted(page(), "adjudge_calls_at_engine") > 1)
            assert await client.ready()  # by a third connection, which is free now
            assert (connections(own, island), [one.done() for one in asked]) == (3, [False, False])
            island.vanish()
            asked.append(asyncio.create_task(rewards(client, UNHEARD)))
            print("trainer noticed after, s", await until(lambda: not connections(own, island)))
            island.come_back()
            async with asyncio.timeout(GONE_WITHIN_S):
                answers = await asyncio.gather(*asked)
        assert counted(page(), "adjudge_judge_calls_total") == SOON + LATE + UNHEARD
    with running_service("scripted://hash", tmp_path / "calm") as calm:
        async with AsyncClient(calm.url) as client:
            for criteria, answer in zip((SOON, LATE, UNHEARD), answers, strict=True):
                assert scores(answer) == scores(await rewards(client, criteria))


LOOKS = ("/v1/rubrics", "/v1/rubrics/team/parts", "/readyz")


def looked_up(service: Service, path: str) -> tuple[int, float]:
    """The status of the answer to a look-up, and the seconds that it took."""
    began = monotonic()
    return get(service, path).status_code, monotonic() - began


async def test_a_database_whose_host_vanishes_costs_no_reward_and_no_row(sea: Sea, tmp_path: Path) -> None:
    island = sea.island()
    with ExitStack() as closing:
        database = closing.enter_context(postgres_on(island))
        url = database.render_as_string(hide_password=False)
        service = closing.enter_context(running_service("scripted://hash", tmp_path / "a", database_url=url))
        async with AsyncClient(service.url, run="r", retries=0) as client:
            told = Told(client)
            await told.score("Before.")
            await until_written(service, PARTS)
            pid = service.process.pid
            assert connections(pid, island)
            island.vanish()
            asked = 1

            def is_known_to_be_gone() -> bool:
                return "cannot be written" in (get(service, "/v1/ledger").json()["problem"] or "")

            noticing = asyncio.create_task(until(is_known_to_be_gone, BEFORE_OTHERS_S))
            looks = [asyncio.create_task(asyncio.to_thread(looked_up, service, path)) for path in LOOKS]
            while not noticing.done():
                await told.score(f"Response {asked}.", idempotency_key=f"step {asked}" if asked % 2 else None)
                asked += 1
                await asyncio.sleep(0.5)
            print("the ledger noticed after, s", await noticing)
            assert [status for status, _ in await asyncio.gather(*looks)] == [503] * len(LOOKS)
            for path, look in zip(LOOKS, looks, strict=True):
                print(path, "answered after, s", look.result()[1])
            print("no connection is left after another, s", await until(lambda: not connections(pid, island)))
            island.come_back()
            await told.score("After.")
            uses = (asked + 1) * PARTS
            await until_written(service, uses)
            assert get(service, "/readyz").status_code == 200
        with psycopg.connect(shown(database)) as connection:
            found = connection.execute("SELECT count(*), count(DISTINCT (request, place, slot)) FROM ledger_uses")
            assert found.fetchone() == (uses, uses)


async def test_a_cache_whose_host_vanishes_costs_no_reward_and_is_used_again_when_it_is_back(
    sea: Sea, tmp_path: Path
) -> None:
    island = sea.island()
    with valkey_on(island, tmp_path / "log") as cache, ExitStack() as closing:
        service = closing.enter_context(running_service("scripted://hash", tmp_path / "a", cache_url=cache))
        async with AsyncClient(service.url, retries=0) as client:
            told = Told(client)
            await told.score("Before.")
            assert (await told.score("Before.")).usage.cached == PARTS
            island.vanish()
            began = monotonic()
            async with asyncio.timeout(GONE_WITHIN_S):
                answers = [await told.score("Before.", f"Response {n}.", deadline_s=300) for n in range(5)]
            print("five requests took, s", monotonic() - began)
            assert [answer.usage.cached for answer in answers] == [0] * 5
            assert get(service, "/readyz").status_code == 503
            island.come_back()
            await until(lambda: get(service, "/readyz").status_code == 200)
            async with asyncio.timeout(GONE_WITHIN_S):
                while (await told.score("Before.")).usage.cached != PARTS:
                    pass


async def test_what_a_judge_had_whose_host_vanished_is_judged_by_another(sea: Sea, tmp_path: Path) -> None:
    islands, engine = [sea.island(), sea.island()], "scripted://hash?delay_s=0.05&concurrency=4"
    with ExitStack() as closing:
        urls = []
        for n, island in enumerate(islands):
            own = {"ADJUDGE_DATA_DIR": str(tmp_path / f"judge-{n}"), **TOKEN}
            urls.append(
                closing.enter_context(adjudge_on(island, tmp_path / f"{n}", "judge", "--engine", engine, **own))
            )
        api = closing.enter_context(
            listening("api", "--port", "0", ADJUDGE_JUDGES=" ".join(urls), **TOKEN, ADJUDGE_DATA_DIR=str(tmp_path))
        )
        async with AsyncClient(api.url) as client:
            await until(lambda: get(api, "/metrics").text.count("adjudge_pool_member_up{") == 2)
            await until(lambda: counted(get(api, "/metrics").text, "adjudge_pool_member_up{") == 2)
            groups = [{"id": f"g{n}", "prompt": f"{n}?", "responses": [f"{n}.{r}" for r in range(8)]} for n in range(8)]
            asked = asyncio.create_task(client.rewards(groups, rubric(PARTS), deadline_s=300))
            await until(
                lambda: all(counted(httpx2.get(f"{url}/metrics").text, "adjudge_calls_at_engine") for url in urls)
            )
            islands[0].vanish()
            began = monotonic()
            async with asyncio.timeout(GONE_WITHIN_S):
                answer = await asked
            print("all was judged after, s", monotonic() - began)
            assert all(reward is not None for reward, _ in scores(answer))
            assert {v.status for g in answer.groups for r in g.responses for v in r.verdicts} == {"ok"}


def assert_whole(client: Client, operation: Operation, groups: int) -> None:
    """Every group has one result, and every verdict was billed once."""
    results = list(client.operation_results(operation.id))
    assert (operation.state, operation.progress.failed) == ("done", 0)
    assert sorted(result["index"] for result in results) == list(range(groups))
    usage = operation.usage
    assert usage.judge_calls + usage.cached + usage.joined == groups * VERDICTS


async def test_an_operation_ends_whose_services_host_vanished_while_it_judged(
    sea: Sea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, island, groups = sea.island(), sea.island(), 8
    with ExitStack() as closing:
        database = closing.enter_context(postgres_on(stores))
        monkeypatch.setenv("ADJUDGE_DATABASE_URL", database.render_as_string(hide_password=False))
        monkeypatch.setenv("ADJUDGE_QUEUE_URL", closing.enter_context(valkey_on(stores, tmp_path / "broker")))
        monkeypatch.setenv(*SECRET)
        engine = "scripted://hash?delay_s=0.5&concurrency=8"
        key = await asyncio.to_thread(new_key, "score", "read", "metrics")
        url = closing.enter_context(adjudge_on(island, tmp_path / "service", "serve", "--engine", engine))
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=url))
        client = closing.enter_context(Client(url, api_key=key))

        def calls() -> float:
            page = httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"}).text
            return counted(page, "adjudge_judge_calls_total")

        id_ = client.submit(score(groups)).id
        followed = asyncio.create_task(asyncio.to_thread(lambda: list(client.follow(id_))))
        await until(lambda: calls() > 0)
        island.vanish()
        print("worker noticed after, s", await until(lambda: not connections(worker, island)))
        island.come_back()
        async with asyncio.timeout(GONE_WITHIN_S):
            *_, operation = await followed
        assert_whole(client, operation, groups)
        assert calls() == groups * VERDICTS


async def test_an_operation_ends_whose_stores_vanished_while_it_was_worked_on(
    sea: Sea, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    island, groups = sea.island(), 8
    with ExitStack() as closing:
        database = closing.enter_context(postgres_on(island))
        monkeypatch.setenv("ADJUDGE_DATABASE_URL", database.render_as_string(hide_password=False))
        monkeypatch.setenv("ADJUDGE_QUEUE_URL", closing.enter_context(valkey_on(island, tmp_path / "broker")))
        monkeypatch.setenv(*SECRET)
        service = closing.enter_context(serving("scripted://hash?delay_s=0.5&concurrency=8"))
        client = closing.enter_context(Client(service.url))
        await asyncio.to_thread(service.wait_until_ready, client)
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=service.url))

        def calls() -> float:
            return counted(get(service, "/metrics").text, "adjudge_judge_calls_total")

        id_ = client.submit(score(groups)).id
        await until(lambda: calls() > 0)
        island.vanish()
        print("worker noticed after, s", await until(lambda: not connections(worker, island)))
        island.come_back()
        async with asyncio.timeout(GONE_WITHIN_S):
            *_, operation = await asyncio.to_thread(lambda: list(client.follow(id_)))
        assert_whole(client, operation, groups)
        assert calls() == groups * VERDICTS


async def test_a_worker_whose_brokers_host_vanished_works_again_when_it_is_back(
    sea: Sea, tmp_path: Path, migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    island = sea.island()
    with ExitStack() as closing:
        monkeypatch.setenv("ADJUDGE_DATABASE_URL", migrated_postgres_url)
        monkeypatch.setenv("ADJUDGE_QUEUE_URL", closing.enter_context(valkey_on(island, tmp_path / "broker")))
        monkeypatch.setenv(*SECRET)
        service = closing.enter_context(serving("scripted://hash"))
        client = closing.enter_context(Client(service.url))
        await asyncio.to_thread(service.wait_until_ready, client)
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=service.url))
        *_, before = await asyncio.to_thread(lambda: list(client.follow(client.submit(score(1)).id)))
        assert_whole(client, before, 1)
        island.vanish()
        noticing = asyncio.create_task(until(lambda: not connections(worker, island)))
        async with asyncio.timeout(GONE_WITHIN_S):
            id_ = (await asyncio.to_thread(client.submit, score(1))).id
        assert client.operation(id_).state == "queued"
        print("worker noticed after, s", await noticing)
        island.come_back()
        async with asyncio.timeout(2 * GONE_WITHIN_S):
            *_, operation = await asyncio.to_thread(lambda: list(client.follow(id_)))
        assert_whole(client, operation, 1)


HOLDING = """
import asyncio, sys
from sqlalchemy import text
from rubric_store.database import open_engine

async def hold():
    async with open_engine(sys.argv[1]).begin() as connection:
        await connection.execute(text("LOCK TABLE rubric_aliases"))
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


async def test_what_a_client_held_whose_host_vanished_is_free_again(sea: Sea, tmp_path: Path) -> None:
    stores, island = sea.island(), sea.island()
    with postgres_on(stores) as database, ExitStack() as closing:
        url = database.render_as_string(hide_password=False)
        closing.enter_context(python_on(island, tmp_path / "log", HOLDING, url, says="held"))
        island.vanish()
        began = monotonic()
        async with (
            asyncio.timeout(BEFORE_OTHERS_S),
            await psycopg.AsyncConnection.connect(shown(database)) as connection,
        ):
            await connection.execute("LOCK TABLE rubric_aliases")
        print("its lock was free after, s", monotonic() - began)
