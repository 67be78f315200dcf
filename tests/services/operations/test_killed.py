"""Whichever process is killed during an operation, the operation resumes unaided, and finished work is not repeated."""

import itertools
import time
from typing import Any

import httpx2
import pytest

from tests.fixtures.ports import unused_port
from tests.fixtures.redis_process import RedisProcess
from tests.services.operations.cluster import AT_ONCE, Cluster, Proxy, score
from tests.services.operations.conftest import MakeCluster
from trainer_client import Client
from trainer_client.wire.operations import Operation

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.faults]

GROUPS = 48
VERDICTS = GROUPS * 8 * 2


PART = 4
"""At least this many groups are done when a process is killed."""


def part_done(client: Client, id_: str) -> set[str]:
    """Wait until a part of the groups, but not all, is done; return their ids."""
    for operation in client.follow(id_):
        if operation.progress.done >= PART:
            break
    assert not operation.ended
    return {str(result["id"]) for result in client.operation_results(id_)}


def held_in_the_middle(running: Cluster, workers: int = 1) -> tuple[Client, str, set[str]]:
    """Start an operation, and hold the proxy when a part of it is done: return client, id and the groups done."""
    running.proxy.shut_after(PART)
    client = running.start_api()
    for _ in range(workers):
        running.start_worker()
    id_ = client.submit(score(GROUPS)).id
    done = part_done(client, id_)
    running.proxy.wait_until_holding(workers * AT_ONCE)
    return client, id_, done


def end_of(client: Client, id_: str) -> Operation:
    """Follow the operation to its end."""
    *_, operation = client.follow(id_)
    return operation


def assert_whole(client: Client, operation: Operation) -> list[dict[str, Any]]:
    """Every group has one result with every verdict, and every verdict was billed once."""
    results = list(client.operation_results(operation.id))
    assert (operation.state, operation.problem) == ("done", None)
    assert (operation.progress.done, operation.progress.failed) == (GROUPS, 0)
    assert sorted(result["index"] for result in results) == list(range(GROUPS))
    responses = [response for result in results for response in result["responses"]]  # type: ignore[union-attr]
    assert {response["status"] for response in responses} == {"scored"}  # type: ignore[call-overload,index]
    usage = operation.usage
    assert usage.judge_calls + usage.cached + usage.joined == VERDICTS
    return results


def assert_not_asked_again(cluster: Cluster, done: set[str], before: dict[str, int]) -> None:
    after = cluster.proxy.times_asked()
    assert {group: after[group] for group in done} == {group: before[group] for group in done}


def assert_recorded_once(cluster: Cluster, client: Client) -> None:
    """The ledger, once it has caught up, has every response once."""
    assert cluster.service is not None
    while httpx2.get(f"{cluster.service.url}/v1/ledger").json()["waiting"]:
        time.sleep(0.05)
    (run,) = client.runs()
    assert (run.responses, run.verdicts) == (GROUPS * 8, VERDICTS)


def test_a_worker_killed_in_the_middle_of_a_chunk_costs_only_that_chunk(cluster: MakeCluster) -> None:
    running = cluster()
    client, id_, done = held_in_the_middle(running)
    running.workers[0].kill()
    before = running.proxy.times_asked()
    running.proxy.release()
    running.start_worker()
    assert_whole(client, end_of(client, id_))
    assert_not_asked_again(running, done, before)
    again = {group for group, times in running.proxy.times_asked().items() if times > 1}
    assert again
    assert not again & done
    assert_recorded_once(running, client)


@pytest.mark.slow
def test_a_broker_that_lost_its_memory_gets_its_messages_again(cluster: MakeCluster) -> None:
    running = cluster()
    client, id_, done = held_in_the_middle(running)
    before = running.proxy.times_asked()
    running.broker.kill()
    running.broker.start()
    running.proxy.release()
    assert_whole(client, end_of(client, id_))
    assert_not_asked_again(running, done, before)


@pytest.mark.slow
def test_an_operation_submitted_without_a_broker_runs_when_it_is_back(cluster: MakeCluster) -> None:
    running = cluster(0.0)
    client = running.start_api()
    running.start_worker()
    running.broker.kill()
    id_ = client.submit(score(GROUPS)).id
    assert client.operation(id_).state == "queued"
    running.broker.start()
    assert_whole(client, end_of(client, id_))


@pytest.mark.slow
def test_events_resume_after_the_api_is_killed(cluster: MakeCluster) -> None:
    running = cluster()
    client, id_, done = held_in_the_middle(running)
    before = running.proxy.times_asked()
    running.proxy.release()
    seen = []
    for operation in client.follow(id_):
        seen.append(operation.revision)
        if len(seen) == 2:
            running.kill_api()
            running.start_api()
    assert all(one < other for one, other in itertools.pairwise(seen))
    assert_whole(client, end_of(client, id_))
    assert_not_asked_again(running, done, before)


@pytest.mark.slow
def test_results_after_a_kill_equal_those_of_an_undisturbed_run(cluster: MakeCluster) -> None:
    running = cluster(0.0)
    client, disturbed, _ = held_in_the_middle(running, workers=2)
    running.workers[0].kill()
    running.proxy.release()
    by_index = [
        sorted(assert_whole(client, end_of(client, id_)), key=lambda result: result["index"])
        for id_ in (disturbed, client.submit(score(GROUPS)).id)
    ]
    rewards = [[[response["reward"] for response in result["responses"]] for result in results] for results in by_index]
    assert rewards[0] == rewards[1]


@pytest.mark.slow
def test_a_service_without_workers_resumes_an_operation_after_a_kill(
    monkeypatch: pytest.MonkeyPatch, data_dir: object
) -> None:
    monkeypatch.setenv("ADJUDGE_CHUNK_LEASE_S", "1.5")
    alone = Cluster(RedisProcess(), Proxy(unused_port()), "", 0.05)
    try:
        client = alone.start_api()
        id_ = client.submit(score(GROUPS)).id
        done = part_done(client, id_)
        alone.kill_api()
        alone.start_api()
        results = assert_whole(client, end_of(client, id_))
        assert done <= {result["id"] for result in results}
    finally:
        alone.close()


@pytest.mark.slow
def test_a_worker_asked_to_stop_finishes_the_chunks_that_it_has_started(cluster: MakeCluster) -> None:
    running = cluster()
    client, id_, _ = held_in_the_middle(running)
    running.workers[0].terminate()
    running.proxy.release()
    assert running.workers[0].wait(60) == 0
    assert client.operation(id_).state == "running"
    running.start_worker()
    assert_whole(client, end_of(client, id_))
    assert set(running.proxy.times_asked().values()) == {1}
