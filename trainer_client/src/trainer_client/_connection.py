"""A connection to one service, with and without an event loop: sends calls, again where that may help.

Knows nothing of what the calls mean; `Client` and `AsyncClient` add those.
"""

import asyncio
import random as _random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2

from trainer_client._answers import AnswerT, is_ready, read_answer, typed_errors
from trainer_client._requests import PreparedRequest, bypasses_proxy, client_options, send_options
from trainer_client._retry import RetryPolicy
from trainer_client._streams import RewardStreamParser
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.sockets import transport_options
from trainer_client.wire import GroupRewards, RewardAnswer

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
