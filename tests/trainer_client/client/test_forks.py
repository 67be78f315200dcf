"""A client that was used before a fork: no process gets another one's answers, and the parent keeps its connections."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from judge_server.engines.openai.http import OpenAIHttp
from tests.trainer_client.fake_service import GROUP_LINE, SUMMARY_LINE, VERSION, FakeService, ScriptedReply, stream
from trainer_client import AsyncClient, Client
from trainer_client.adapters.scorer import RubricScorer
from trainer_client.trl import RubricReward

RUBRIC = [{"id": "c1", "description": "states the number"}]

ROUNDS = 12

fork = multiprocessing.get_context("fork")


def echo(asked: dict[str, Any]) -> dict[str, Any]:
    """Reward each response with the number that it states, and echo a chat message."""
    if "messages" in asked:
        message = {"role": "assistant", "content": asked["messages"][0]["content"]}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}
    verdicts = [{"criterion": "c1", "status": "ok", "score": 1.0}]
    groups = [
        {
            "id": group["id"],
            "responses": [
                {
                    "reward": int(response if isinstance(response, str) else response["text"]) / 1000,
                    "status": "scored",
                    "verdicts": verdicts,
                }
                for response in group["responses"]
            ],
        }
        for group in asked["groups"]
    ]
    return {**SUMMARY_LINE["summary"], "mode": "weighted_mean", "groups": groups}


@pytest.fixture(autouse=True)
def _closed_runners() -> Iterator[None]:
    yield
    while runners:
        runners.popitem()[1].close()


@pytest.fixture
def url(service: FakeService) -> str:
    service.script(ScriptedReply(body=echo))
    return service.url


def group(number: int) -> dict[str, Any]:
    return {"id": "g", "prompt": "x?", "responses": [str(number)]}


def rewards_by_client(client: Client, number: int) -> float | None:
    return client.rewards([group(number)], RUBRIC).groups[0].responses[0].reward


def rewards_by_stream(client: Client, number: int) -> float | None:
    [one] = client.stream_rewards([group(number)], RUBRIC)
    return one.responses[0].reward


runners: dict[int, asyncio.Runner] = {}


def run(work: Any) -> Any:
    """Run a coroutine on the event loop of this process."""
    return runners.setdefault(os.getpid(), asyncio.Runner()).run(work)


def rewards_by_async_client(client: AsyncClient, number: int) -> float | None:
    async def ask() -> float | None:
        answer = await client.rewards([group(number)], RUBRIC)
        return answer.groups[0].responses[0].reward

    return run(ask())


def rewards_by_scorer(scorer: RubricScorer, number: int) -> float | None:
    return scorer.score_blocking("x?", str(number)).reward


def rewards_by_reward_function(function: RubricReward, number: int) -> float | None:
    [reward] = run(function(["x?"], [str(number)]))
    return reward


def chat_by_engine(http: OpenAIHttp, number: int) -> float:
    completion = run(http.chat({"messages": [{"role": "user", "content": str(number)}]}))
    return int(completion.choices[0].message.content) / 1000


KINDS: dict[str, Any] = {
    "client": (Client, rewards_by_client),
    "stream": (Client, rewards_by_stream),
    "async client": (AsyncClient, rewards_by_async_client),
    "scorer": (lambda url: RubricScorer(url, RUBRIC), rewards_by_scorer),
    "reward function": (lambda url: RubricReward(url, RUBRIC, preflight=False), rewards_by_reward_function),
    "engine": (lambda url: OpenAIHttp(url, None, timeout_s=30.0), chat_by_engine),
}


def ask_many(ask: Any, client: Any, first: int, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        got = [ask(client, first + number) for number in range(ROUNDS)]
    except Exception as error:  # noqa: BLE001 - the test shows it
        got = [repr(error)]
    answers.put((first, got))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_of_forked_processes_and_their_parent_each_get_their_own_answers(url, kind):
    make, ask = KINDS[kind]
    client = make(url)
    assert ask(client, 999) == 0.999
    barrier, answers = fork.Barrier(5), fork.Queue()
    workers = [
        fork.Process(target=ask_many, args=(ask, client, first, barrier, answers), daemon=True)
        for first in range(100, 500, 100)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    own = [ask(client, number) for number in range(ROUNDS)]
    got = dict(answers.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert own == [number / 1000 for number in range(ROUNDS)]
    assert got == {first: [(first + number) / 1000 for number in range(ROUNDS)] for first in range(100, 500, 100)}


def in_a_fork(work: Any) -> Any:
    """What `work` returns in a forked process, or the text of its error."""
    answers = fork.Queue()

    def child() -> None:
        try:
            answers.put(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            answers.put(f"{type(error).__name__}: {error}")

    process = fork.Process(target=child, daemon=True)
    process.start()
    answer = answers.get(timeout=60)
    process.join()
    return answer


def test_a_forked_process_leaves_the_parents_connection_open(service):
    service.script(ScriptedReply(body=VERSION))
    client = Client(service.url)
    client.rubric("math/quadratics")

    def use_and_close() -> int:
        with client:
            return client.rubric("math/quadratics").version

    assert in_a_fork(use_and_close) == 3
    client.rubric("math/quadratics")
    assert service.connections == 2  # the parent's one and the child's


def test_a_client_that_the_parent_never_used_keeps_its_transport(url):
    client = Client(url, transport=httpx2.HTTPTransport())
    assert in_a_fork(lambda: rewards_by_client(client, 7)) == 0.007


def test_a_transport_that_the_parent_has_used_is_refused(url):
    client = Client(url, transport=httpx2.HTTPTransport())
    function = RubricReward(AsyncClient(url, transport=httpx2.AsyncHTTPTransport()), RUBRIC)
    rewards_by_client(client, 1)
    rewards_by_reward_function(function, 1)
    refused = "RuntimeError: the connections of this client's transport belong to the process"
    assert in_a_fork(lambda: rewards_by_client(client, 2)).startswith(refused)
    assert in_a_fork(lambda: rewards_by_reward_function(function, 2)).startswith(refused)


def test_a_stream_is_read_by_the_process_that_requested_it(service):
    service.script(stream(GROUP_LINE, hang=True))
    groups = Client(service.url).stream_rewards([{"id": "q17", "prompt": "x?", "responses": ["1", "2"]}], RUBRIC)
    next(groups)
    assert "this stream belongs to the process" in in_a_fork(lambda: next(groups))
    groups.close()


def test_each_event_loop_opens_connections_of_its_own(service):
    service.script(ScriptedReply(body=VERSION))
    client = AsyncClient(service.url)

    async def ask_twice() -> None:
        await client.rubric("math/quadratics")
        await client.rubric("math/quadratics")

    asyncio.run(ask_twice())
    assert service.connections == 1
    asyncio.run(ask_twice())
    assert service.connections == 2


async def test_a_client_blocks_where_an_event_loop_runs_as_in_a_notebook(url):
    with Client(url) as client:
        assert (rewards_by_client(client, 7), rewards_by_stream(client, 8)) == (0.007, 0.008)


@pytest.fixture
def repeated_ctrl_c(service):
    """Press Ctrl-C after the service is asked, again and again: one that comes just before a wait does not end it."""
    noticed = threading.Event()
    main = threading.get_ident()

    def interrupt(*_):
        if not noticed.is_set():
            noticed.set()
            raise KeyboardInterrupt

    def press():
        while not noticed.wait(0.2):
            if service.asked:
                signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    pressing = threading.Thread(target=press)
    pressing.start()
    yield
    noticed.set()
    pressing.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("repeated_ctrl_c")
def test_ctrl_c_ends_a_request_that_hangs(service):
    service.script(ScriptedReply(hang=True))
    with Client(service.url) as client, pytest.raises(KeyboardInterrupt):
        client.rubric("math/quadratics")
    assert service.hung_up.wait(10)


def test_threads_share_a_client(url):
    with Client(url) as client, ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda number: rewards_by_client(client, number), range(200)))
    assert got == [number / 1000 for number in range(200)]
