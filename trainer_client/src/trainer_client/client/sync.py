"""`Client`: what a trainer calls Adjudge with, in code without an event loop.

Each method runs the one of `AsyncClient`, on connections that block. Its coroutine then never waits for an event loop,
and one step completes it. So there is no thread and no loop that a fork would lose, a notebook would already run, or
Ctrl-C would miss.
"""

import os
import random as _random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from trainer_client.client.answers import AnswerT, AsyncRewardStream, PreparedRequest
from trainer_client.client.calls import service_url
from trainer_client.client.clients import AsyncClient
from trainer_client.client.connection import ConnectionSettings, HttpClient
from trainer_client.errors import AdjudgeError
from trainer_client.wire import GroupRewards, RewardSummary

P = ParamSpec("P")
T = TypeVar("T")


def complete(work: Awaitable[T]) -> T:
    """Return the result of a coroutine that waits for nothing but blocking calls.

    Raises:
        RuntimeError: it waits for an event loop.
    """
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("this coroutine waits for an event loop; await it in one")


def blocking(method: "Callable[Concatenate[AsyncClient, P], Awaitable[T]]") -> "Callable[Concatenate[Client, P], T]":
    """Return the method of `Client` that runs a method of `AsyncClient`."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **options: P.kwargs) -> T:
        return complete(method(self.driven, *args, **options))

    return call


def blocking_iterator(
    method: "Callable[Concatenate[AsyncClient, P], AsyncGenerator[T, None]]",
) -> "Callable[Concatenate[Client, P], Generator[T, None, None]]":
    """Return the method of `Client` that iterates over what a method of `AsyncClient` yields."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **options: P.kwargs) -> Generator[T, None, None]:
        return _iterate(method(self.driven, *args, **options))

    return call


def blocking_stream(
    method: "Callable[Concatenate[AsyncClient, P], AsyncRewardStream]",
) -> "Callable[Concatenate[Client, P], RewardStream]":
    """Return the method of `Client` whose stream blocks; `close` closes it."""

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **options: P.kwargs) -> RewardStream:
        return RewardStream(method(self.driven, *args, **options))

    return call


def _iterate(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    try:
        while True:
            try:
                item = complete(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        complete(items.aclose())


class BlockingHttp:
    """An `httpx2.Client` with the methods of an `httpx2.AsyncClient`, which block."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    async def request(self, **options: Any) -> httpx2.Response:
        """Send a request and read its response."""
        return self._client.request(**options)

    @asynccontextmanager
    async def stream(self, **options: Any) -> AsyncIterator[httpx2.Response]:
        """Send a request, whose response is read in the context."""
        with self._client.stream(**options) as response:
            headers = [one for one in response.headers.multi_items() if one[0] != "content-encoding"]
            yield httpx2.Response(
                response.status_code,
                headers=headers,
                stream=OwnPieces(response),
                extensions=response.extensions,
                request=response.request,
            )

    async def aclose(self) -> None:
        """Close the connections."""
        self._client.close()


class OwnPieces(httpx2.AsyncByteStream):
    """The pieces of an answer as they arrive, decoded, for the process that asked for it.

    Raises:
        RuntimeError: another process reads on, which would take pieces away from the one that asked.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        process = os.getpid()
        for piece in self._response.iter_bytes():
            yield piece
            if os.getpid() != process:
                raise RuntimeError(
                    "this stream belongs to the process that this one was forked from; read it there, or request a "
                    "stream of its own in each process"
                )


class DrivenClient(AsyncClient):
    """An `AsyncClient` whose coroutines never wait for an event loop."""

    def _loop(self) -> None:
        return None

    def _open(self) -> HttpClient:
        return BlockingHttp(self.settings.make_client(httpx2.Client, httpx2.HTTPTransport))

    async def _sleep(self, seconds: float) -> None:
        self.settings.sleep(seconds)


class RewardStream(Iterator[GroupRewards]):
    """The groups of one request, in the order in which they finish.

    The request is sent when you request the first group. `close`, or leaving a `with` block, closes the
    connection, and the service then cancels the groups that are not done.
    """

    def __init__(self, stream: AsyncRewardStream) -> None:
        self._stream = stream

    @property
    def summary(self) -> RewardSummary:
        """The answer without its groups.

        Raises:
            RuntimeError: the stream has not been read to its end.
        """
        return self._stream.summary

    @property
    def retried_error(self) -> AdjudgeError | None:
        """The error after which the request is being sent again; None once the service answers."""
        return self._stream.retried_error

    def close(self) -> None:
        """Close the connection and end the stream. Closing it again has no effect."""
        complete(self._stream.aclose())

    def __next__(self) -> GroupRewards:
        try:
            return complete(anext(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """A connection to one Adjudge service. Threads can share it; close it when done.

    Processes can be forked: each opens connections of its own. Only a `transport` cannot be shared by them.

    Args:
        base_url, run, timeout_s, retries, retry_budget_s, headers, api_key, clock, random: as for `AsyncClient`.
        transport: an httpx2 transport to use instead of the network, which blocks.
        sleep: waits the given seconds between attempts, and blocks.

    Raises:
        ValueError: an argument is out of range, or there is no URL.
    """

    def __init__(
        self,
        base_url: str | None = None,
        run: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        retry_budget_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.settings = ConnectionSettings(
            base_url=service_url(base_url),
            run=run,
            timeout_s=timeout_s,
            retries=retries,
            retry_budget_s=retry_budget_s,
            headers=headers,
            api_key=api_key,
            transport=transport,
            sleep=sleep,
            clock=clock,
            random=random,
        )
        self.driven = DrivenClient.from_settings(self.settings)

    @property
    def base_url(self) -> str:
        """The service's URL."""
        return self.driven.base_url

    @property
    def run(self) -> str | None:
        """The training run under which requests are recorded."""
        return self.driven.run

    @run.setter
    def run(self, run: str | None) -> None:
        self.driven.run = run

    def send(self, request: PreparedRequest[AnswerT]) -> AnswerT:
        """Send a request with retries, and return its answer.

        Raises:
            AdjudgeError: the last attempt failed, or its error is not retryable.
        """
        return complete(self.driven.send(request))

    ready = blocking(AsyncClient.ready)
    not_ready_reason = blocking(AsyncClient.not_ready_reason)
    close = blocking(AsyncClient.aclose)

    rewards = blocking(AsyncClient.rewards)
    stream_rewards = blocking_stream(AsyncClient.stream_rewards)
    verdicts = blocking(AsyncClient.verdicts)
    compare = blocking(AsyncClient.compare)

    publish_rubric = blocking(AsyncClient.publish_rubric)
    rubric = blocking(AsyncClient.rubric)
    rubrics = blocking_iterator(AsyncClient.rubrics)
    rubric_history = blocking_iterator(AsyncClient.rubric_history)
    rubric_diff = blocking(AsyncClient.rubric_diff)
    rubric_aliases = blocking(AsyncClient.rubric_aliases)
    move_alias = blocking(AsyncClient.move_alias)
    remove_alias = blocking(AsyncClient.remove_alias)
    tag_rubric = blocking(AsyncClient.tag_rubric)
    retire_rubric = blocking(AsyncClient.retire_rubric)
    restore_rubric = blocking(AsyncClient.restore_rubric)

    runs = blocking_iterator(AsyncClient.runs)
    run_report = blocking(AsyncClient.run_report)
    run_monitors = blocking(AsyncClient.run_monitors)
    corrected_rates = blocking(AsyncClient.corrected_rates)
    audit_run = blocking(AsyncClient.audit_run)
    report_measures = blocking(AsyncClient.report_measures)
    recompute = blocking_iterator(AsyncClient.recompute)
    export = blocking_iterator(AsyncClient.export)
    recorded_verdicts = blocking_iterator(AsyncClient.recorded_verdicts)
    label = blocking(AsyncClient.label)

    submit = blocking(AsyncClient.submit)
    operations = blocking_iterator(AsyncClient.operations)
    operation = blocking(AsyncClient.operation)
    cancel_operation = blocking(AsyncClient.cancel_operation)
    retry_operation = blocking(AsyncClient.retry_operation)
    operation_results = blocking_iterator(AsyncClient.operation_results)
    follow = blocking_iterator(AsyncClient.follow)

    project_state = blocking(AsyncClient.project_state)
    projects = blocking_iterator(AsyncClient.projects)
    project = blocking(AsyncClient.project)
    create_project = blocking(AsyncClient.create_project)
    set_limits = blocking(AsyncClient.set_limits)
    api_keys = blocking_iterator(AsyncClient.api_keys)
    create_key = blocking(AsyncClient.create_key)
    revoke_key = blocking(AsyncClient.revoke_key)
    audit_log = blocking_iterator(AsyncClient.audit_log)

    put_judge_to_sleep = blocking(AsyncClient.put_judge_to_sleep)
    wake_judge = blocking(AsyncClient.wake_judge)
    judge_weights = blocking(AsyncClient.judge_weights)
    load_judge_weights = blocking(AsyncClient.load_judge_weights)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
