"""A connection to one service: sends requests, retries within a budget, with or without an event loop.

A connection to one service, with and without an event loop: sends calls, again where that may help.

Knows nothing of what the calls mean; `Client` and `AsyncClient` add those.

When to try again and how long to wait first: bounded in count, in each wait and in total time.

Written out rather than taken from a library: it is one method, shared by a sync and an async loop, and a
trainer node is spared a dependency. Knows nothing of HTTP: errors say themselves whether they are retryable.

Connections to a service that no proxy stands before, and how they learn that its host is gone when nobody tells.

A host that loses its power, or a firewall that forgets a connection, says nothing. Whoever waits for an answer that
takes minutes would then wait for all of them. So the system asks whether the host is there, and gives up in the end.
"""

import asyncio
import random
import random as _random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2

from trainer_client.client.answers import AnswerT, RewardStreamParser, is_ready, read_answer, typed_errors
from trainer_client.client.calls import PreparedRequest, bypasses_proxy, client_options, send_options
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.wire import GroupRewards, RewardAnswer

INITIAL_BACKOFF_S = 0.5
MAX_BACKOFF_S = 5.0
"""So that who could not get through for a minute is back soon after the service is."""

MAX_WAIT_S = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request is repeated and for how long.

    `retries` bounds the tries after the first; `budget_s` the seconds after the first try began at which a
    further one may still begin. `clock` gives seconds, `random` a number in [0, 1).
    """

    retries: int
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        if self.retries < 0 or self.budget_s < 0:
            raise ValueError(f"retries ({self.retries}) and retry_budget_s ({self.budget_s}) must not be negative")

    def start(self) -> "RetryState":
        """Begin counting the tries of one request."""
        return RetryState(self)


class RetryState:
    """The tries of one request so far."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._began = policy.clock()
        self._failed = 0

    def wait_after(self, error: AdjudgeError) -> float | None:
        """Give the seconds to wait before the next try, or None where the error stands.

        Exponential backoff with full jitter: uniform in [0, FIRST_WAIT_S * 2**n), up to LONGEST_BACKOFF_S, on top
        of what the service asked for by Retry-After, so that clients turned away together do not come back
        together. Never more than LONGEST_WAIT_S.
        """
        if not error.retryable or self._failed >= self._policy.retries:
            return None
        backoff = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0**self._failed) * self._policy.random()
        wait = min(MAX_WAIT_S, (error.retry_after_s or 0.0) + backoff)
        self._failed += 1
        elapsed = self._policy.clock() - self._began
        return wait if elapsed + wait <= self._policy.budget_s else None


KEEPALIVE_IDLE_S = 15
"""Seconds of silence after which the system asks the other host whether it is there."""

PROBE_INTERVAL_S = 5
PROBE_COUNT = 3

DEAD_PEER_TIMEOUT_S = KEEPALIVE_IDLE_S + PROBE_COUNT * PROBE_INTERVAL_S
"""Seconds after which a host that says nothing, or takes nothing, is gone."""

SocketOption = tuple[int, int, int]


def keepalive_options() -> list[SocketOption]:
    """The options of a socket that breaks `DEAD_PEER_TIMEOUT_S` after the other host went; those that this system has."""
    wanted = [
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE_S),  # what macOS calls it
        ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
        ("TCP_KEEPCNT", PROBE_COUNT),
        ("TCP_USER_TIMEOUT", DEAD_PEER_TIMEOUT_S * 1000),  # for what was sent and not taken, which nobody asks about
    ]
    available = [(getattr(socket, name, None), value) for name, value in wanted]
    known = [(socket.IPPROTO_TCP, option, value) for option, value in available if option is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def transport_options(url: httpx2.URL) -> dict[str, Any]:
    """The keyword arguments of a transport that reaches an address without a proxy.

    Where nothing is encrypted, no authority's certificate is read: reading them all takes 20 ms for each client.
    """
    verify: ssl.SSLContext | bool = True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"socket_options": keepalive_options(), "verify": verify}


TransportT = TypeVar("TransportT", httpx2.BaseTransport, httpx2.AsyncBaseTransport)
SleepT = TypeVar("SleepT", Callable[[float], None], Callable[[float], Awaitable[None]])


@dataclass(frozen=True)
class ConnectionSettings(Generic[TransportT, SleepT]):
    """The arguments that a connection was made with, by name, so that another one can be made like it."""

    base_url: str
    run: str | None
    timeout_s: float
    retries: int
    retry_budget_s: float
    headers: Mapping[str, str] | None = field(repr=False)
    api_key: str | None = field(repr=False)
    transport: TransportT | None
    sleep: SleepT
    clock: Callable[[], float]
    random: Callable[[], float]

    @property
    def retry_policy(self) -> RetryPolicy:
        """When a request is sent again."""
        return RetryPolicy(self.retries, self.retry_budget_s, self.clock, self.random)

    def http_options(self, make_transport: Callable[..., TransportT]) -> dict[str, Any]:
        """The keyword arguments of the HTTP client; `direct` makes what reaches a service without a proxy."""
        options = client_options(self.base_url, self.timeout_s, self.headers, self.api_key)
        transport = self.transport
        if transport is None and bypasses_proxy(options["base_url"]):
            transport = make_transport(limits=options["limits"], **transport_options(options["base_url"]))
        return {"transport": transport, **options}


class Connection:
    """How `Client` reaches its service; the arguments are described there."""

    def __init__(
        self,
        base_url: str,
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
        self.base_url = base_url
        self.run = run
        self.settings = ConnectionSettings(
            base_url, run, timeout_s, retries, retry_budget_s, headers, api_key, transport, sleep, clock, random
        )
        self._policy = self.settings.retry_policy
        self._http = httpx2.Client(**self.settings.http_options(httpx2.HTTPTransport))

    def ready(self) -> bool:
        """Whether the service can judge now; False too where it cannot be reached. Asks once.

        Raises:
            AdjudgeError: what answers is no Adjudge.
        """
        try:
            return is_ready(self._request_once(method="GET", url="/readyz", timeout=self.settings.timeout_s))
        except (ConnectionFailed, TimedOut):
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, request: PreparedRequest[AnswerT]) -> AnswerT:
        """Send a call and give its answer.

        Raises:
            AdjudgeError: no answer came that it could be.
        """
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                return read_answer(self._request_once(**options), request.answer)
            except AdjudgeError as error:
                wait = retry_state.wait_after(error)
                if wait is None:
                    raise
            self.settings.sleep(wait)

    def _request_once(self, **options: Any) -> httpx2.Response:
        """Send one request once and give what answers it, be it an error."""
        with typed_errors(self.base_url):
            return self._http.request(**options)

    def _stream_groups(
        self, request: PreparedRequest[RewardAnswer], parser: RewardStreamParser
    ) -> Generator[GroupRewards, None, None]:
        """Send a call, again only until the first group came, and give the groups as they come.

        Closing the generator closes the connection.

        Raises:
            AdjudgeError: the stream could not be had, or broke off.
        """
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                with typed_errors(self.base_url), self._http.stream(**options) as response:
                    if parser.is_stream(response):
                        for piece in response.iter_bytes():
                            for group in parser.feed(piece):
                                yield group
                        parser.end()
                    else:
                        response.read()
                        for group in parser.parse_whole(response):
                            yield group
                return
            except AdjudgeError as error:
                if parser.summary is not None:
                    return
                wait = None if parser.started else retry_state.wait_after(error)
                if wait is None:
                    raise
            self.settings.sleep(wait)


class AsyncConnection:
    """`Connection` for code in an event loop."""

    def __init__(
        self,
        base_url: str,
        run: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        retry_budget_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.base_url = base_url
        self.run = run
        self.settings = ConnectionSettings(
            base_url, run, timeout_s, retries, retry_budget_s, headers, api_key, transport, sleep, clock, random
        )
        self._policy = self.settings.retry_policy
        self._http = httpx2.AsyncClient(**self.settings.http_options(httpx2.AsyncHTTPTransport))

    async def ready(self) -> bool:
        """Whether the service can judge now; see `Client.ready`."""
        try:
            return is_ready(await self._request_once(method="GET", url="/readyz", timeout=self.settings.timeout_s))
        except (ConnectionFailed, TimedOut):
            return False

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _send(self, request: PreparedRequest[AnswerT]) -> AnswerT:
        """Send a call and give its answer; see `Connection._send`."""
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                return read_answer(await self._request_once(**options), request.answer)
            except AdjudgeError as error:
                wait = retry_state.wait_after(error)
                if wait is None:
                    raise
            await self.settings.sleep(wait)

    async def _request_once(self, **options: Any) -> httpx2.Response:
        """Send one request once and give what answers it; see `Connection._answer`."""
        with typed_errors(self.base_url):
            return await self._http.request(**options)

    async def _stream_groups(
        self, request: PreparedRequest[RewardAnswer], parser: RewardStreamParser
    ) -> AsyncGenerator[GroupRewards, None]:
        """Send a call and give the groups as they come; see `Connection._groups`."""
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                with typed_errors(self.base_url):
                    async with self._http.stream(**options) as response:
                        if parser.is_stream(response):
                            async for piece in response.aiter_bytes():
                                for group in parser.feed(piece):
                                    yield group
                            parser.end()
                        else:
                            await response.aread()
                            for group in parser.parse_whole(response):
                                yield group
                return
            except AdjudgeError as error:
                if parser.summary is not None:
                    return
                wait = None if parser.started else retry_state.wait_after(error)
                if wait is None:
                    raise
            await self.settings.sleep(wait)
