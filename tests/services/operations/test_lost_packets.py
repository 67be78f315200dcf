"""Hosts that vanish silently during an operation: it completes, and nothing is judged twice."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.fixtures.network_namespaces import NamespaceNetwork, NetworkNamespace
from tests.services.in_namespaces import (
    GONE_WITHIN_S,
    SECRET,
    adjudge_on,
    connections,
    counted,
    new_key,
    postgres_on,
    until,
    valkey_on,
    working,
)
from tests.services.operations.cluster import score
from tests.services.processes import get, serving
from trainer_client import Client
from trainer_client.wire.operations import Operation

pytestmark = [pytest.mark.faults, pytest.mark.slow]

VERDICTS = 16
"""For one group of an operation: eight responses, two criteria."""


def keep(monkeypatch: pytest.MonkeyPatch, database_url: str, queue_url: str) -> None:
    """Set the stores of operations for every process that is started from here."""
    monkeypatch.setenv("ADJUDGE_DATABASE_URL", database_url)
    monkeypatch.setenv("ADJUDGE_QUEUE_URL", queue_url)
    monkeypatch.setenv(*SECRET)


def assert_whole(client: Client, operation: Operation, groups: int) -> None:
    """Every group has one result, and every verdict was billed once."""
    results = list(client.operation_results(operation.id))
    assert (operation.state, operation.progress.failed) == ("done", 0)
    assert sorted(result["index"] for result in results) == list(range(groups))
    usage = operation.usage
    assert usage.judge_calls + usage.cached + usage.joined == groups * VERDICTS


@contextmanager
def stores_on(namespace: NetworkNamespace, log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a database and a broker in the namespace, for every process that is started from here."""
    with postgres_on(namespace) as database, valkey_on(namespace, log) as broker:
        keep(monkeypatch, database.render_as_string(hide_password=False), broker)
        yield


async def test_an_operation_completes_after_the_services_host_vanished(
    network: NamespaceNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, namespace, groups = network.namespace(), network.namespace(), 8
    with ExitStack() as closing:
        closing.enter_context(stores_on(stores, tmp_path / "broker", monkeypatch))
        engine = "scripted://hash?delay_s=0.5&concurrency=8"
        key = await asyncio.to_thread(new_key, "score", "read", "metrics")
        url = closing.enter_context(adjudge_on(namespace, tmp_path / "service", "serve", "--engine", engine))
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=url))
        client = closing.enter_context(Client(url, api_key=key))

        def calls() -> float:
            page = httpx2.get(f"{url}/metrics", headers={"Authorization": f"Bearer {key}"}).text
            return counted(page, "adjudge_judge_calls_total")

        id_ = client.submit(score(groups)).id
        followed = asyncio.create_task(asyncio.to_thread(lambda: list(client.follow(id_))))
        await until(lambda: calls() > 0)
        namespace.drop_packets()
        print("worker noticed after, s", await until(lambda: not connections(worker, namespace)))
        namespace.pass_packets()
        async with asyncio.timeout(GONE_WITHIN_S):
            *_, operation = await followed
        assert_whole(client, operation, groups)
        assert calls() == groups * VERDICTS


async def test_an_operation_completes_after_the_host_of_its_stores_vanished(
    network: NamespaceNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, groups = network.namespace(), 8
    with ExitStack() as closing:
        closing.enter_context(stores_on(namespace, tmp_path / "broker", monkeypatch))
        service = closing.enter_context(serving("scripted://hash?delay_s=0.5&concurrency=8"))
        client = closing.enter_context(Client(service.url))
        await asyncio.to_thread(service.wait_until_ready, client)
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=service.url))

        def calls() -> float:
            return counted(get(service, "/metrics").text, "adjudge_judge_calls_total")

        id_ = client.submit(score(groups)).id
        await until(lambda: calls() > 0)
        namespace.drop_packets()
        print("worker noticed after, s", await until(lambda: not connections(worker, namespace)))
        namespace.pass_packets()
        async with asyncio.timeout(GONE_WITHIN_S):
            *_, operation = await asyncio.to_thread(lambda: list(client.follow(id_)))
        assert_whole(client, operation, groups)
        assert calls() == groups * VERDICTS


async def test_a_worker_resumes_when_its_brokers_host_is_back(
    network: NamespaceNetwork, tmp_path: Path, migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = network.namespace()
    with ExitStack() as closing:
        keep(monkeypatch, migrated_postgres_url, closing.enter_context(valkey_on(namespace, tmp_path / "broker")))
        service = closing.enter_context(serving("scripted://hash"))
        client = closing.enter_context(Client(service.url))
        await asyncio.to_thread(service.wait_until_ready, client)
        worker = closing.enter_context(working(tmp_path / "worker", ADJUDGE_URL=service.url))
        *_, before = await asyncio.to_thread(lambda: list(client.follow(client.submit(score(1)).id)))
        assert_whole(client, before, 1)
        namespace.drop_packets()
        noticing = asyncio.create_task(until(lambda: not connections(worker, namespace)))
        async with asyncio.timeout(GONE_WITHIN_S):
            id_ = (await asyncio.to_thread(client.submit, score(1))).id
        assert client.operation(id_).state == "queued"
        print("worker noticed after, s", await noticing)
        namespace.pass_packets()
        async with asyncio.timeout(2 * GONE_WITHIN_S):
            *_, operation = await asyncio.to_thread(lambda: list(client.follow(id_)))
        assert_whole(client, operation, 1)
