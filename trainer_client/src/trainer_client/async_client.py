"""The client that a trainer calls Adjudge with, for code in an event loop; `Client` is its twin and its
reference."""

import asyncio
import random as _random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx2

from trainer_client._answers import AnswerT, error_for_transport, is_ready, read_answer
from trainer_client._criteria import CriterionLike
from trainer_client._requests import (
    Call,
    GroupLike,
    RubricLike,
    client_options,
    publish_call,
    rewards_call,
    rubric_call,
    rubrics_call,
    send_options,
)
from trainer_client._retry import RetryPolicy
from trainer_client.errors import AdjudgeError, ConnectionFailed, TimedOut
from trainer_client.wire import (
    FailurePolicy,
    Protocol,
    RewardAnswer,
    RewardMode,
    RubricSummary,
    RubricVersion,
)


class AsyncClient:
    """A connection to one Adjudge service, to be shared by the tasks of one event loop and closed when done.

    Args and errors are those of `Client`, but that `transport` and `sleep` are async.
    """

    def __init__(
        self,
        base_url: str,
        run: str | None = None,
        *,
        timeout_s: float = 30.0,
        retries: int = 4,
        retry_budget_s: float = 120.0,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.base_url = base_url
        self.run = run
        self._timeout_s = timeout_s
        self._policy = RetryPolicy(retries, retry_budget_s, clock, random)
        self._sleep = sleep
        self._http = httpx2.AsyncClient(transport=transport, **client_options(base_url, timeout_s, headers))

    async def rewards(
        self,
        groups: Sequence[GroupLike],
        rubric: RubricLike | None = None,
        mode: RewardMode = "weighted_mean",
        *,
        protocol: Protocol | None = None,
        on_failure: FailurePolicy = "null",
        deadline_s: float = 60.0,
        step: int | None = None,
        truncate: bool = False,
        format_weight: float = 0.1,
    ) -> RewardAnswer:
        """Judge groups of responses by a rubric and reward them; see `Client.rewards`."""
        return await self._send(
            rewards_call(
                run=self.run,
                groups=groups,
                rubric=rubric,
                mode=mode,
                protocol=protocol,
                on_failure=on_failure,
                deadline_s=deadline_s,
                step=step,
                truncate=truncate,
                format_weight=format_weight,
            )
        )

    async def publish_rubric(self, name: str, criteria: Sequence[CriterionLike]) -> RubricVersion:
        """Publish criteria as the next version of a rubric; see `Client.publish_rubric`."""
        return await self._send(publish_call(name, criteria))

    async def rubric(self, reference: str) -> RubricVersion:
        """Fetch a rubric by reference; see `Client.rubric`."""
        return await self._send(rubric_call(reference))

    async def rubrics(self, prefix: str = "") -> AsyncIterator[RubricSummary]:
        """Go through the rubrics whose names begin with a prefix; see `Client.rubrics`."""
        after: str | None = None
        while True:
            page = await self._send(rubrics_call(prefix, after))
            for summary in page.rubrics:
                yield summary
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def ready(self) -> bool:
        """Whether the service can judge now; see `Client.ready`."""
        try:
            return is_ready(await self._answer(method="GET", url="/readyz", timeout=self._timeout_s))
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

    async def _send(self, call: Call[AnswerT]) -> AnswerT:
        tries = self._policy.start()
        while True:
            try:
                return read_answer(await self._answer(**send_options(call, self._timeout_s)), call.answer)
            except AdjudgeError as error:
                wait = tries.wait_after(error)
                if wait is None:
                    raise
            await self._sleep(wait)

    async def _answer(self, **options: Any) -> httpx2.Response:
        try:
            return await self._http.request(**options)
        except httpx2.RequestError as error:
            raise error_for_transport(error, self.base_url) from error
