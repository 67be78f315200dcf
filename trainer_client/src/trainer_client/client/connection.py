"""A connection to one service: sends requests, and retries within a budget.

Retries are bounded in number, in each wait, and in total time. The policy is one small method, so it does not need a
library.

A host that loses power, or a firewall that drops a connection, closes nothing, and a client that waits minutes for an
answer would not notice. Connections without a proxy therefore use TCP keepalive, and break `DEAD_PEER_TIMEOUT_S`
after the host is gone.

Two processes that read from one connection take each other's answers. A process that was forked from one that has used
a client, and an event loop that comes after another one, therefore open connections of their own (`Connections`).
"""

import asyncio
import inspect
import os
import pickle
import random as _random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import httpx2

from trainer_client.client.answers import (
    AnswerT,
    PreparedRequest,
    RewardStreamParser,
    error_for,
    lines_of,
    read_answer,
    readiness_error,
    typed_errors,
)
from trainer_client.client.calls import bypasses_proxy, client_options, send_options, service_url, socks_support
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.wire import GroupRewards, RewardAnswer

INITIAL_BACKOFF_S = 0.5
"""The pause doubles with each attempt and is multiplied by a random share, so that clients do not retry all at the
same time."""

MAX_BACKOFF_S = 5.0
"""The maximum backoff; it is short, so that clients return soon after a service that was away for a minute."""

MAX_WAIT_S = 30.0
"""Upper limit of a pause, whatever `Retry-After` says."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often and for how long a request is retried.

    `retries` bounds the number of attempts after the first one. `budget_s` is the time after the start of the first
    attempt, in seconds, within which another one may start. `clock` returns seconds, `random` a number in [0, 1).
    """

    retries: int
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = _random.random

    def __post_init__(self) -> None:
        if self.retries < 0 or self.budget_s < 0:
            raise ValueError(f"retries ({self.retries}) and retry_budget_s ({self.budget_s}) must not be negative")

    def start(self) -> "RetryState":
        """Start counting the attempts of one request."""
        return RetryState(self)


class RetryState:
    """The attempts of one request so far."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._began = policy.clock()
        self._failed = 0

    def wait_after(self, error: AdjudgeError) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the error is final.

        Uses exponential backoff with full jitter, uniform in [0, min(`MAX_BACKOFF_S`, `INITIAL_BACKOFF_S` * 2**n)), in
        addition to the service's Retry-After, so that clients refused together do not return together. The wait is at
        most `MAX_WAIT_S`.
        """
        if not error.retryable or self._failed >= self._policy.retries:
            return None
        backoff = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2.0**self._failed) * self._policy.random()
        wait = min(MAX_WAIT_S, (error.retry_after_s or 0.0) + backoff)
        self._failed += 1
        elapsed = self._policy.clock() - self._began
        return wait if elapsed + wait <= self._policy.budget_s else None


KEEPALIVE_IDLE_S = 15
"""Seconds without data after which the operating system probes the other host. Without probes, a trainer waits its
whole deadline for a host that lost power, a worker ten minutes, and a judge two minutes for its endpoint."""

PROBE_INTERVAL_S = 5
"""Time between probes. Three probes without an answer close the connection."""

PROBE_COUNT = 3

DEAD_PEER_TIMEOUT_S = KEEPALIVE_IDLE_S + PROBE_COUNT * PROBE_INTERVAL_S
"""Seconds after which a host that sends no data, or acknowledges none, is considered gone."""

SocketOption = tuple[int, int, int]


def keepalive_options() -> list[SocketOption]:
    """Socket options that break a connection `DEAD_PEER_TIMEOUT_S` after the other host is gone.

    Options that the operating system does not have are left out.
    """
    wanted = [
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE_S),  # the name on macOS
        ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
        ("TCP_KEEPCNT", PROBE_COUNT),
        ("TCP_USER_TIMEOUT", DEAD_PEER_TIMEOUT_S * 1000),  # for unacknowledged data, during which nothing is probed
    ]
    available = [(getattr(socket, name, None), value) for name, value in wanted]
    known = [(socket.IPPROTO_TCP, option, value) for option, value in available if option is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def transport_options(url: httpx2.URL) -> dict[str, Any]:
    """Return the keyword arguments of a transport that connects to a URL without a proxy.

    For plain HTTP, the CA certificates are not loaded, which would take 20 ms per client.
    """
    verify: ssl.SSLContext | bool = True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"socket_options": keepalive_options(), "verify": verify}


HttpT = TypeVar("HttpT")
ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class ConnectionSettings:
    """The arguments of a connection, from which another one can be created.

    `transport` and `sleep` are those of an event loop for `AsyncClient`, and blocking ones for `Client`.
    """

    base_url: str
    run: str | None
    timeout_s: float
    retries: int
    retry_budget_s: float
    headers: Mapping[str, str] | None = field(repr=False)
    api_key: str | None = field(repr=False)
    transport: Any
    sleep: Callable[[float], Any]
    clock: Callable[[], float]
    random: Callable[[], float]

    @property
    def retry_policy(self) -> RetryPolicy:
        """The retry policy of these settings."""
        return RetryPolicy(self.retries, self.retry_budget_s, self.clock, self.random)

    def make_client(self, make: Callable[..., HttpT], make_transport: Callable[..., Any]) -> HttpT:
        """Create the HTTP client; `make_transport` creates a transport without a proxy."""
        options = client_options(self.base_url, self.timeout_s, self.headers, self.api_key)
        transport = self.transport
        if transport is None and bypasses_proxy(options["base_url"]):
            transport = make_transport(limits=options["limits"], **transport_options(options["base_url"]))
        with socks_support():
            return make(transport=transport, **options)


class Connections(Generic[HttpT]):
    """HTTP clients, each for one event loop of one process.

    Connections can be used by the event loop that opened them only. A process that was forked after they were used
    opens its own. The sockets of the parent process stay open, and so its HTTP clients are kept and not closed.

    Args:
        make: makes an HTTP client.
        loop: returns the running event loop; None if connections need none.
        can_remake: whether `make` opens new connections, and does not use those of a transport that it was given.
    """

    def __init__(
        self,
        make: Callable[[], HttpT],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
        *,
        can_remake: bool = True,
    ) -> None:
        self._make, self._loop, self._can_remake = make, loop, can_remake
        self._spare: HttpT | None = make()  # so that mistakes are reported now
        self._process: int | None = None
        self._made: dict[asyncio.AbstractEventLoop | None, HttpT] = {}
        self._inherited: list[Mapping[asyncio.AbstractEventLoop | None, HttpT]] = []

    def get(self) -> HttpT:
        """Return the HTTP client of the running event loop.

        Raises:
            RuntimeError: the connections belong to the parent process, and cannot be opened anew.
        """
        process = os.getpid()
        if self._process not in (None, process):
            if not self._can_remake:
                raise RuntimeError(
                    "the connections of this client's transport belong to the process that this one was forked from; "
                    "create a client with a transport of its own in each process, or leave transport out"
                )
            self._inherited.append(self._made)
            self._made = {}
        self._process, loop = process, self._loop()
        if loop in self._made:
            return self._made[loop]
        for other in [*self._made]:
            if other is not None and other.is_closed():
                self._made.pop(other, None)
        spare, self._spare = self._spare, None
        return self._made.setdefault(loop, spare or self._make())


class HttpClient(Protocol):
    """The methods of `httpx2.AsyncClient` that a connection calls."""

    @property
    def request(self) -> Callable[..., Awaitable[httpx2.Response]]:
        """Send a request and read its response."""

    @property
    def stream(self) -> Callable[..., AbstractAsyncContextManager[httpx2.Response]]:
        """Send a request, whose response is read in the context."""

    @property
    def aclose(self) -> Callable[[], Awaitable[None]]:
        """Close the connections."""


class AsyncConnection:
    """The connection of `AsyncClient` to its service; see `AsyncClient` for the arguments."""

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
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._connect(
            ConnectionSettings(
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
        )

    @classmethod
    def from_settings(cls, settings: ConnectionSettings) -> Self:
        """Create a client with the settings of another one."""
        made = cls.__new__(cls)
        made._connect(settings)
        return made

    def _connect(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.base_url = settings.base_url
        self.run = settings.run
        self._policy = settings.retry_policy
        self._connections = Connections(self._open, self._loop, can_remake=settings.transport is None)

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return asyncio.get_running_loop()

    def _open(self) -> HttpClient:
        return self.settings.make_client(httpx2.AsyncClient, httpx2.AsyncHTTPTransport)

    async def _sleep(self, seconds: float) -> None:
        await self.settings.sleep(seconds)

    async def ready(self) -> bool:
        """Whether the service can judge now; also False if it cannot be reached. Sends one request, without retries.

        Raises:
            AdjudgeError: the answer is not from Adjudge.
        """
        return await self.not_ready_reason() is None

    async def not_ready_reason(self) -> AdjudgeError | None:
        """Why the service cannot judge now: it cannot be reached, or says that it is not ready. None if it can judge.

        Sends one request, without retries.

        Raises:
            AdjudgeError: the answer is not from Adjudge.
        """
        try:
            return readiness_error(
                await self._request_once(method="GET", url="/readyz", timeout=self.settings.timeout_s)
            )
        except (ConnectionFailed, TimedOut) as error:
            return error

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._http.aclose()

    def __getstate__(self) -> dict[str, Any]:
        defaults = {name: one.default for name, one in inspect.signature(type(self)).parameters.items()}
        given = {name: value for name, value in vars(self.settings).items() if value is not defaults[name]}
        for name, value in given.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(
                    f"the client's {name} ({type(value).__name__}) cannot be pickled, so it cannot be sent to another "
                    "process; give a client without it, or only the address"
                ) from error
        return {"settings": given, "run": self.run}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._connect(type(self)(**state["settings"]).settings)
        self.run = state["run"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def send(self, request: PreparedRequest[AnswerT]) -> AnswerT:
        """Send a request with retries, and return its answer.

        Raises:
            AdjudgeError: the last attempt failed, or its error is not retryable.
        """
        options, retry_state = send_options(request, self.settings.timeout_s), self._policy.start()
        while True:
            try:
                return read_answer(await self._request_once(**options), request)
            except AdjudgeError as error:
                wait = retry_state.wait_after(error) if request.repeatable else None
                if wait is None:
                    raise
            await self._sleep(wait)

    @property
    def _http(self) -> HttpClient:
        return self._connections.get()

    async def _request_once(self, **options: Any) -> httpx2.Response:
        """Send a request once and return its response, which may be an error."""
        with typed_errors(self.base_url):
            return await self._http.request(**options)

    async def _pages(self, request: PreparedRequest[AnswerT]) -> AsyncGenerator[AnswerT, None]:
        """Send a request for the first page of a list and for each page after it, and yield the pages."""
        while True:
            page = await self.send(request)
            yield page
            if (cursor := vars(page)["next_cursor"]) is None:
                return
            request = replace(request, params={**request.params, "after": cursor})

    async def _items(
        self, request: PreparedRequest[AnswerT], items: Callable[[AnswerT], Sequence[ItemT]]
    ) -> AsyncGenerator[ItemT, None]:
        """Yield the items of a list, fetching a page at a time; `items` returns those of a page."""
        async for page in self._pages(request):
            for item in items(page):
                yield item

    @asynccontextmanager
    async def _streamed(self, request: PreparedRequest[AnswerT]) -> AsyncIterator[httpx2.Response]:
        """Send a request once, and give its successful response to be read.

        Raises:
            AdjudgeError: the answer is an error, or the connection broke, also while the response is read.
        """
        with typed_errors(self.base_url):
            async with self._http.stream(**send_options(request, self.settings.timeout_s)) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_for(response)
                yield response

    async def _stream_groups(
        self, request: PreparedRequest[RewardAnswer], parser: RewardStreamParser
    ) -> AsyncGenerator[GroupRewards, None]:
        """Send a request and yield the groups as they arrive. It is retried only until the first group has arrived.

        Closing the generator closes the connection.

        Raises:
            AdjudgeError: the request failed, or the stream was cut off.
        """
        retry_state = self._policy.start()
        while True:
            try:
                async with self._streamed(request) as response:
                    if parser.is_stream(response):
                        async for line in lines_of(response.aiter_bytes()):
                            if (group := parser.read(line)) is not None:
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
                parser.retried_error = error
            await self._sleep(wait)
