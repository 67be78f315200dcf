"""Has the groups of a call judged within a hard deadline, and keeps whatever came before it.

A service that fails leaves rows without an answer, each with the kind of failure; only the user's own mistakes are
raised. Knows nothing of trainers and ranks.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client import AsyncClient
from trainer_client._columns import Rubric
from trainer_client._options import RewardKeywords
from trainer_client.errors import (
    AdjudgeError,
    BudgetExhausted,
    ConnectionFailed,
    InvalidRequest,
    JudgingFailed,
    NotFound,
    NotReady,
    Overloaded,
    TimedOut,
)
from trainer_client.trl._pins import Pins
from trainer_client.trl._rows import Rows
from trainer_client.trl._splitting import Part, requests
from trainer_client.wire import (
    FailurePolicy,
    Group,
    GroupRewards,
    ReasoningPart,
    Response,
    ResponseReward,
    RewardMode,
    Usage,
)

_GIVE_UP_S = 1.0
"""How long a cancelled request may take to let go."""

_LATER_PERHAPS = frozenset({408, 425, 429})

_KINDS: dict[type[AdjudgeError], str] = {
    ConnectionFailed: "unreachable",
    TimedOut: "timeout",
    Overloaded: "overloaded",
    NotReady: "not_ready",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What is the same for all groups of a call."""

    rubric: Rubric | None
    mode: RewardMode
    on_failure: FailurePolicy
    deadline_s: float
    step: int | None
    options: RewardKeywords

    @property
    def reasoning(self) -> ReasoningPart:
        """What of a response's thinking is judged."""
        return self.options.get("reasoning", "strip")


@dataclass(slots=True)
class Judged:
    """What came, by row.

    Attributes:
        answers: None where none came; `kinds` then says why.
        digests: of the rubric that judged, where the answer tells.
        usage: of each request that came to its end.
        surplus: answers that nobody asked for.
        last_error: what the service said last of what failed.
    """

    answers: list[ResponseReward | None]
    kinds: list[str]
    digests: list[str | None]
    usage: list[Usage] = field(default_factory=list)
    surplus: int = 0
    last_error: str | None = None


async def judge(client: AsyncClient, rows: Rows, ask: Ask, pins: Pins, *, grace_s: float) -> Judged:
    """Have all rows judged, in as few requests as hold them.

    Returns:
        After `ask.deadline_s` + `grace_s` at the latest.

    Raises:
        InvalidRequest, NotFound, JudgingFailed, Forbidden, BudgetExhausted: the service refuses what it is asked, or
            who asks.
    """
    count = len(rows.responses)
    judged = Judged([None] * count, ["timeout"] * count, [None] * count)
    judging = _Judging(client, rows.responses, ask, pins, judged)
    await within(ask.deadline_s + grace_s, [judging.request(parts) for parts in requests(rows)])
    return judged


async def within(seconds: float, work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once, as much as can be done in time; the first error ends the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if task.cancel()]
    if left:
        gone, _ = await asyncio.wait(left, timeout=_GIVE_UP_S)
        await asyncio.gather(*gone, return_exceptions=True)
    for task in done:
        task.result()


class _Judging:
    """The requests of one call."""

    def __init__(
        self, client: AsyncClient, responses: Sequence[Response], ask: Ask, pins: Pins, judged: Judged
    ) -> None:
        self._client = client
        self._responses = responses
        self._ask = ask
        self._pins = pins
        self._judged = judged
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def request(self, parts: Sequence[Part]) -> None:
        """Have one request answered; what a broken connection left out is asked for again as long as some comes."""
        waiting = {part.group.id: part for part in parts}
        seconds_left = self._ask.deadline_s
        while seconds_left > 0:
            before = len(waiting)
            try:
                await self._stream(waiting, seconds_left)
                self._failed(waiting.values(), "missing")
                return
            except AdjudgeError as error:
                if is_users_own(error):
                    raise
                self._judged.last_error = str(error)
                self._failed(waiting.values(), kind_of(error))
                if not error.retryable or not 0 < len(waiting) < before:
                    if self._ask.on_failure == "error" and isinstance(error, NotReady):
                        raise  # no judge is there: as much a failure as one that answers nothing
                    return
            seconds_left = self._ask.deadline_s - (self._loop.time() - self._began)

    async def _stream(self, waiting: dict[str, Part], deadline_s: float) -> None:
        """Ask for the groups that are waited for, and take from them those that come."""
        groups = [self._wire(part) for part in waiting.values()]
        answered: set[tuple[str, str | None]] = set()
        async with self._client.stream_rewards(
            groups,
            self._pinned(self._ask.rubric),
            self._ask.mode,
            on_failure=self._ask.on_failure,
            deadline_s=deadline_s,
            step=self._ask.step,
            **self._ask.options,
        ) as stream:
            async for group in stream:
                part = waiting.pop(group.id, None)
                if part is None:
                    self._judged.surplus += len(group.responses)
                    continue
                self._take(part, group)
                if isinstance(rubric := part.group.rubric or self._ask.rubric, str):
                    answered.add((rubric, group.rubric))
            summary = stream.summary
        self._judged.usage.append(summary.usage)
        for reference, digest in answered:
            self._pins.learn(reference, digest, summary.rubrics)

    def _take(self, part: Part, group: GroupRewards) -> None:
        self._failed([part], "missing")
        for row, answer in zip(part.rows, group.responses, strict=False):
            self._judged.answers[row] = answer
            self._judged.digests[row] = group.rubric
        self._judged.surplus += max(0, len(group.responses) - len(part.rows))

    def _failed(self, parts: Iterable[Part], kind: str) -> None:
        for part in parts:
            for row in part.rows:
                self._judged.kinds[row] = kind

    def _wire(self, part: Part) -> Group:
        own = {} if part.group.rubric is None else {"rubric": self._pinned(part.group.rubric)}
        return Group.model_validate(
            {**part.group.fields, **own, "responses": [self._responses[row] for row in part.rows]}
        )

    def _pinned(self, rubric: Rubric | None) -> Rubric | None:
        return self._pins.pinned(rubric) if isinstance(rubric, str) else rubric


def is_users_own(error: AdjudgeError) -> bool:
    """Whether no judge failed, but the request cannot succeed as it is, or failures were asked for as an error."""
    if isinstance(error, InvalidRequest | NotFound | JudgingFailed | BudgetExhausted):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in _LATER_PERHAPS


def kind_of(error: AdjudgeError) -> str:
    """Name what failed, as the log does."""
    if error.status is not None and error.status < 300:
        return "malformed"
    if error.status == 429:
        return "overloaded"
    return next((kind for known, kind in _KINDS.items() if isinstance(error, known)), "server")
