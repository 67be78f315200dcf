"""Has the groups of a call judged within a hard deadline, and keeps whatever came before it.

A service that fails leaves rows without an answer, each with the kind of failure; only the user's own mistakes are
raised. Knows nothing of trainers and ranks.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client import AsyncClient
from trainer_client._columns import RubricOrReference
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
from trainer_client.trl._pins import RubricPins
from trainer_client.trl._rows import RowBatch
from trainer_client.trl._splitting import GroupSlice, split_requests
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

_CANCEL_TIMEOUT_S = 1.0
"""How long a cancelled request may take to let go."""

_RETRYABLE_STATUSES = frozenset({408, 425, 429})

_FAILURE_KINDS: dict[type[AdjudgeError], str] = {
    ConnectionFailed: "unreachable",
    TimedOut: "timeout",
    Overloaded: "overloaded",
    NotReady: "not_ready",
}


@dataclass(frozen=True, slots=True)
class ScoringConfig:
    """What is the same for all groups of a call."""

    rubric: RubricOrReference | None
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
class RowAnswers:
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


async def judge(
    client: AsyncClient, rows: RowBatch, config: ScoringConfig, pins: RubricPins, *, grace_s: float
) -> RowAnswers:
    """Have all rows judged, in as few requests as hold them.

    Returns:
        After `ask.deadline_s` + `grace_s` at the latest.

    Raises:
        InvalidRequest, NotFound, JudgingFailed, Forbidden, BudgetExhausted: the service refuses what it is asked, or
            who asks.
    """
    count = len(rows.responses)
    row_answers = RowAnswers([None] * count, ["timeout"] * count, [None] * count)
    judging = _JudgingCall(client, rows.responses, config, pins, row_answers)
    await gather_with_timeout(config.deadline_s + grace_s, [judging.request(parts) for parts in split_requests(rows)])
    return row_answers


async def gather_with_timeout(seconds: float, work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once, as much as can be done in time; the first error ends the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        left = [task for task in tasks if task.cancel()]
    if left:
        gone, _ = await asyncio.wait(left, timeout=_CANCEL_TIMEOUT_S)
        await asyncio.gather(*gone, return_exceptions=True)
    for task in done:
        task.result()


class _JudgingCall:
    """The requests of one call."""

    def __init__(
        self,
        client: AsyncClient,
        responses: Sequence[Response],
        config: ScoringConfig,
        pins: RubricPins,
        row_answers: RowAnswers,
    ) -> None:
        self._client = client
        self._responses = responses
        self._config = config
        self._pins = pins
        self._row_answers = row_answers
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def request(self, parts: Sequence[GroupSlice]) -> None:
        """Have one request answered; what a broken connection left out is asked for again as long as some comes."""
        waiting = {part.group.id: part for part in parts}
        seconds_left = self._config.deadline_s
        while seconds_left > 0:
            before = len(waiting)
            try:
                await self._stream(waiting, seconds_left)
                self._set_failure_kind(waiting.values(), "missing")
                return
            except AdjudgeError as error:
                if is_user_error(error):
                    raise
                self._row_answers.last_error = str(error)
                self._set_failure_kind(waiting.values(), failure_kind(error))
                if not error.retryable or not 0 < len(waiting) < before:
                    if self._config.on_failure == "error" and isinstance(error, NotReady):
                        raise  # no judge is there: as much a failure as one that answers nothing
                    return
            seconds_left = self._config.deadline_s - (self._loop.time() - self._began)

    async def _stream(self, waiting: dict[str, GroupSlice], deadline_s: float) -> None:
        """Ask for the groups that are waited for, and take from them those that come."""
        groups = [self._wire_group(part) for part in waiting.values()]
        answered: set[tuple[str, str | None]] = set()
        async with self._client.stream_rewards(
            groups,
            self._pinned(self._config.rubric),
            self._config.mode,
            on_failure=self._config.on_failure,
            deadline_s=deadline_s,
            step=self._config.step,
            **self._config.options,
        ) as stream:
            async for group in stream:
                part = waiting.pop(group.id, None)
                if part is None:
                    self._row_answers.surplus += len(group.responses)
                    continue
                self._store_answers(part, group)
                if isinstance(rubric := part.group.rubric or self._config.rubric, str):
                    answered.add((rubric, group.rubric))
            summary = stream.summary
        self._row_answers.usage.append(summary.usage)
        for reference, digest in answered:
            self._pins.pin_from_answer(reference, digest, summary.rubrics)

    def _store_answers(self, part: GroupSlice, group: GroupRewards) -> None:
        self._set_failure_kind([part], "missing")
        for row, answer in zip(part.rows, group.responses, strict=False):
            self._row_answers.answers[row] = answer
            self._row_answers.digests[row] = group.rubric
        self._row_answers.surplus += max(0, len(group.responses) - len(part.rows))

    def _set_failure_kind(self, parts: Iterable[GroupSlice], kind: str) -> None:
        for part in parts:
            for row in part.rows:
                self._row_answers.kinds[row] = kind

    def _wire_group(self, part: GroupSlice) -> Group:
        own = {} if part.group.rubric is None else {"rubric": self._pinned(part.group.rubric)}
        return Group.model_validate(
            {**part.group.fields, **own, "responses": [self._responses[row] for row in part.rows]}
        )

    def _pinned(self, rubric: RubricOrReference | None) -> RubricOrReference | None:
        return self._pins.pinned(rubric) if isinstance(rubric, str) else rubric


def is_user_error(error: AdjudgeError) -> bool:
    """Whether no judge failed, but the request cannot succeed as it is, or failures were asked for as an error."""
    if isinstance(error, InvalidRequest | NotFound | JudgingFailed | BudgetExhausted):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in _RETRYABLE_STATUSES


def failure_kind(error: AdjudgeError) -> str:
    """Name what failed, as the log does."""
    if error.status is not None and error.status < 300:
        return "malformed"
    if error.status == 429:
        return "overloaded"
    return next((kind for known, kind in _FAILURE_KINDS.items() if isinstance(error, known)), "server")
