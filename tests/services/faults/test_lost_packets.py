"""Hosts that vanish silently: every packet is lost, and the peers detect it by themselves.

There is no reset and no closed port. Without keepalives and timeouts, each of these would wait for its deadline, for
minutes or forever; the time limits here are far below that. The tests mostly wait for that time itself.
"""

import asyncio
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2
import psutil
import psycopg
import pytest

from tests.fixtures.network_namespaces import NamespaceNetwork
from tests.judge_server.faults.endpoints import EndpointProcess
from tests.judge_server.faults.stores import PARTS, ConsistencyChecker, running_service, until_written
from tests.services.in_namespaces import (
    GONE_WITHIN_S,
    SECRET,
    adjudge_on,
    connections,
    counted,
    new_key,
    postgres_on,
    python_on,
    shown,
    until,
    valkey_on,
)
from tests.services.processes import Service, get, listening
from trainer_client import AsyncClient
from trainer_client.wire import RewardAnswer

pytestmark = [pytest.mark.faults, pytest.mark.slow]

TOKEN = {"ADJUDGE_JUDGE_TOKEN": "that of a deployment, of some length"}
BEFORE_OTHERS_S = 50.0
"""The same for the two ends of a database connection, where statements and idle times have their own limits."""

CALLS_S = 1.0
SOON, LATE, UNHEARD = 8, 40, 2
"""Calls of a request that completes while its host is gone, of one that does not, and of one sent after it went."""


def rubric(criteria: int) -> dict[str, Any]:
    """Return a rubric whose criteria a judge answers one after the other."""
    return {"criteria": [{"id": f"c{n}", "description": f"Part {n} of {criteria} holds."} for n in range(criteria)]}


async def rewards(client: AsyncClient, criteria: int) -> RewardAnswer:
    """Score one response, with a deadline of five minutes."""
    group = {"id": "g", "prompt": f"Are there {criteria}?", "responses": ["There are."]}
    return await client.rewards([group], rubric(criteria), deadline_s=300)


def scores(answer: RewardAnswer) -> list[tuple[float | None, list[float | None]]]:
    """Return each response's reward, and the scores behind it."""
    responses = [response for group in answer.groups for response in group.responses]
    return [(response.reward, [verdict.score for verdict in response.verdicts]) for response in responses]


async def test_a_trainer_detects_that_its_service_vanished_and_gets_its_answer_later(
    network: NamespaceNetwork, tmp_path: Path, migrated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*SECRET)
    namespace, key = network.namespace(), await asyncio.to_thread(new_key, "score", "metrics")
    engine, own = f"scripted://hash?delay_s={CALLS_S}", psutil.Process().pid
    with adjudge_on(namespace, tmp_path / "log", "serve", "--engine", engine) as url:

        def page() -> str:
            return httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"}).text

        async with AsyncClient(url, api_key=key) as client:
            asked = [asyncio.create_task(rewards(client, criteria)) for criteria in (SOON, LATE)]
            await until(lambda: counted(page(), "adjudge_calls_at_engine") > 1)
            assert await client.ready()  # on a third connection, which is free now
            assert (connections(own, namespace), [one.done() for one in asked]) == (3, [False, False])
            namespace.drop_packets()
            asked.append(asyncio.create_task(rewards(client, UNHEARD)))
            print("trainer noticed after, s", await until(lambda: not connections(own, namespace)))
            namespace.pass_packets()
            async with asyncio.timeout(GONE_WITHIN_S):
                answers = await asyncio.gather(*asked)
        assert counted(page(), "adjudge_judge_calls_total") == SOON + LATE + UNHEARD
    with running_service("scripted://hash", tmp_path / "calm") as calm:
        async with AsyncClient(calm.url) as client:
            for criteria, answer in zip((SOON, LATE, UNHEARD), answers, strict=True):
                assert scores(answer) == scores(await rewards(client, criteria))


LOOKS = ("/v1/rubrics", "/v1/rubrics/team/parts", "/readyz")


def looked_up(service: Service, path: str) -> tuple[int, float]:
    """Look up a path; return the status and the seconds that it took."""
    began = monotonic()
    return get(service, path).status_code, monotonic() - began


async def test_a_database_whose_host_vanishes_loses_no_reward_and_no_ledger_row(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    namespace = network.namespace()
    with ExitStack() as closing:
        database = closing.enter_context(postgres_on(namespace))
        url = database.render_as_string(hide_password=False)
        service = closing.enter_context(running_service("scripted://hash", tmp_path / "a", database_url=url))
        async with AsyncClient(service.url, run="r", retries=0) as client:
            checker = ConsistencyChecker(client)
            await checker.score("Before.")
            await until_written(service, PARTS)
            pid = service.process.pid
            assert connections(pid, namespace)
            namespace.drop_packets()
            asked = 1

            def is_known_to_be_gone() -> bool:
                return "cannot be written" in (get(service, "/v1/ledger").json()["problem"] or "")

            noticing = asyncio.create_task(until(is_known_to_be_gone, BEFORE_OTHERS_S))
            looks = [asyncio.create_task(asyncio.to_thread(looked_up, service, path)) for path in LOOKS]
            while not noticing.done():
                await checker.score(f"Response {asked}.", idempotency_key=f"step {asked}" if asked % 2 else None)
                asked += 1
                await asyncio.sleep(0.5)
            print("the ledger noticed after, s", await noticing)
            assert [status for status, _ in await asyncio.gather(*looks)] == [503] * len(LOOKS)
            for path, look in zip(LOOKS, looks, strict=True):
                print(path, "answered after, s", look.result()[1])
            print("no connection is left after another, s", await until(lambda: not connections(pid, namespace)))
            namespace.pass_packets()
            await checker.score("After.")
            uses = (asked + 1) * PARTS
            await until_written(service, uses)
            assert get(service, "/readyz").status_code == 200
        with psycopg.connect(shown(database)) as connection:
            found = connection.execute("SELECT count(*), count(DISTINCT (request, place, slot)) FROM ledger_uses")
            assert found.fetchone() == (uses, uses)


async def test_a_cache_whose_host_vanishes_loses_no_reward_and_is_used_again_later(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    namespace = network.namespace()
    with valkey_on(namespace, tmp_path / "log") as cache, ExitStack() as closing:
        service = closing.enter_context(running_service("scripted://hash", tmp_path / "a", cache_url=cache))
        async with AsyncClient(service.url, retries=0) as client:
            checker = ConsistencyChecker(client)
            await checker.score("Before.")
            assert (await checker.score("Before.")).usage.cached == PARTS
            namespace.drop_packets()
            began = monotonic()
            async with asyncio.timeout(GONE_WITHIN_S):
                answers = [await checker.score("Before.", f"Response {n}.", deadline_s=300) for n in range(5)]
            print("five requests took, s", monotonic() - began)
            assert [answer.usage.cached for answer in answers] == [0] * 5
            assert get(service, "/readyz").status_code == 503
            namespace.pass_packets()
            await until(lambda: get(service, "/readyz").status_code == 200)
            async with asyncio.timeout(GONE_WITHIN_S):
                while (await checker.score("Before.")).usage.cached != PARTS:
                    pass


async def test_calls_of_a_judge_whose_host_vanished_are_judged_by_another(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    namespaces, engine = [network.namespace(), network.namespace()], "scripted://hash?delay_s=0.05&concurrency=4"
    with ExitStack() as closing:
        urls = []
        for n, namespace in enumerate(namespaces):
            own = {"ADJUDGE_DATA_DIR": str(tmp_path / f"judge-{n}"), **TOKEN}
            urls.append(
                closing.enter_context(adjudge_on(namespace, tmp_path / f"{n}", "judge", "--engine", engine, **own))
            )
        api = closing.enter_context(
            listening("api", "--port", "0", ADJUDGE_JUDGES=" ".join(urls), **TOKEN, ADJUDGE_DATA_DIR=str(tmp_path))
        )
        async with AsyncClient(api.url) as client:
            await until(lambda: get(api, "/metrics").text.count("adjudge_pool_member_up{") == 2)
            await until(lambda: counted(get(api, "/metrics").text, "adjudge_pool_member_up{") == 2)
            groups = [{"id": f"g{n}", "prompt": f"{n}?", "responses": [f"{n}.{r}" for r in range(8)]} for n in range(8)]
            asked = asyncio.create_task(client.rewards(groups, rubric(PARTS), deadline_s=300))
            bearer = {"Authorization": f"Bearer {TOKEN['ADJUDGE_JUDGE_TOKEN']}"}
            pages = [partial(httpx2.get, f"{url}/metrics", headers=bearer) for url in urls]
            await until(lambda: all(counted(page().text, "adjudge_calls_at_engine") for page in pages))
            namespaces[0].drop_packets()
            began = monotonic()
            async with asyncio.timeout(GONE_WITHIN_S):
                answer = await asked
            print("all was judged after, s", monotonic() - began)
            assert all(reward is not None for reward, _ in scores(answer))
            assert {v.status for g in answer.groups for r in g.responses for v in r.verdicts} == {"ok"}


async def test_calls_of_an_endpoint_whose_host_vanished_are_retried_when_it_is_back(
    network: NamespaceNetwork, tmp_path: Path
) -> None:
    namespace = network.namespace()
    endpoint = EndpointProcess("calls", tmp_path, namespace)
    await endpoint.start("hold")
    try:
        with running_service(f"openai+{endpoint.url}", tmp_path / "a") as service:
            async with AsyncClient(service.url, retries=0) as client:
                checker, pid = ConsistencyChecker(client), service.process.pid
                asked = asyncio.create_task(checker.score("Four.", deadline_s=300))
                await until(lambda: (len(endpoint.in_flight), len(endpoint.count("end"))) == (PARTS // 2, PARTS // 2))
                held, finished = endpoint.in_flight, endpoint.count("end")
                namespace.drop_packets()
                print("judge noticed after, s", await until(lambda: not connections(pid, namespace), BEFORE_OTHERS_S))
                endpoint.send(signal.SIGUSR1)
                namespace.pass_packets()
                async with asyncio.timeout(GONE_WITHIN_S):
                    await asked
                assert endpoint.count("begin") == finished + held + held
                assert (await checker.score("Four.")).usage.cached == PARTS
    finally:
        await endpoint.kill()


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


async def test_a_lock_of_a_client_whose_host_vanished_is_released(network: NamespaceNetwork, tmp_path: Path) -> None:
    stores, namespace = network.namespace(), network.namespace()
    with postgres_on(stores) as database, ExitStack() as closing:
        url = database.render_as_string(hide_password=False)
        closing.enter_context(python_on(namespace, tmp_path / "log", HOLDING, url, says="held"))
        namespace.drop_packets()
        began = monotonic()
        async with (
            asyncio.timeout(BEFORE_OTHERS_S),
            await psycopg.AsyncConnection.connect(shown(database)) as connection,
        ):
            await connection.execute("LOCK TABLE rubric_aliases")
        print("its lock was free after, s", monotonic() - began)
