"""Send groups to the service within a deadline, and keep every verdict that arrives in time.

Has the groups of a call judged within a hard deadline, and keeps whatever came before it.

A service that fails leaves rows without an answer, each with the kind of failure; only the user's own mistakes are
raised. Knows nothing of trainers and ranks.

Distributes groups over requests that a service takes: by their number, their responses and their size.

A client for each event loop and process that a reward function is called in, all like the one it was given.

Which version of each rubric a run is judged by: the one that its first answer named, until told otherwise.
"""

import asyncio
import inspect
import logging
import os
import pickle
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client import AsyncClient, Client
from trainer_client._columns import RubricOrReference
from trainer_client.client.calls import RewardKeywords
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
from trainer_client.trl._dataset import RowBatch, RowGroup
from trainer_client.wire import (
    FailurePolicy,
    Group,
    GroupRewards,
    Message,
    PinnedRubric,
    ReasoningPart,
    Response,
    ResponseReward,
    RewardMode,
    RubricContent,
    Usage,
)

logger = logging.getLogger(__name__)


class RubricPins:
    """References without a version, each with the one that it stands for in this run.

    `name` and `name@alias` are pinned to `name@version`; `name@3` and `sha256:…` name a content already.
    """

    def __init__(self, pins: Mapping[str, str] | None = None) -> None:
        self._pins = dict(pins or {})
        self._previous: dict[str, str] = {}

    def pinned(self, reference: str) -> str:
        """Give what to ask for: the pinned reference, or the reference itself where it has no pin."""
        return self._pins.get(reference, reference)

    def pin_from_answer(self, reference: str, digest: str | None, used: Sequence[PinnedRubric]) -> None:
        """Pin a reference to what an answer says it stood for, and say so where it stood for something else.

        Args:
            reference: as the user wrote it.
            digest: of the content that judged, where the answer tells.
            used: the rubrics of the answer.
        """
        name, _, version = self.pinned(reference).partition("@")
        same = [rubric for rubric in used if rubric.name == name and rubric.version is not None]
        versions = {rubric.version for rubric in same if digest in (None, rubric.digest)}
        if not versions:
            return
        if not version.isdecimal():
            self._pin(reference, f"{name}@{max(v for v in versions if v is not None)}")
        elif int(version) not in versions:
            says = ", ".join(f"{name}@{v}" for v in sorted(v for v in versions if v is not None))
            logger.warning("rubric %s was asked for, and the service judged by %s", self.pinned(reference), says)

    def merge_ranks(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Take the pins that all ranks are to have: of each reference, that of the lowest rank that has one."""
        agreed: dict[str, str] = {}
        for pins in ranks:
            for reference, pin in pins.items():
                agreed.setdefault(reference, pin)
        for reference, pin in agreed.items():
            if self.pinned(reference) not in (reference, pin):
                logger.warning("rubric %s: ranks disagree, %s becomes %s", reference, self.pinned(reference), pin)
                self._pins[reference] = pin
            self._pin(reference, pin)

    def repin(self, pins: Mapping[str, str]) -> None:
        """Pin references to other versions than before; to be called alike on all ranks."""
        for reference, pin in pins.items():
            logger.info("rubric %s: was %s, is now %s", reference, self.pinned(reference), pin)
            self._previous.pop(reference, None)
            self._pins[reference] = pin

    def clear(self) -> None:
        """Let the next answer pin every reference anew."""
        self._previous |= self._pins
        self._pins = {}

    def state(self) -> dict[str, str]:
        """The pins by reference."""
        return dict(self._pins)

    def load(self, state: Any) -> None:
        """Take these pins in place of all there are.

        Raises:
            ValueError: they are no mapping of references to references.
        """
        if not isinstance(state, Mapping) or not all(isinstance(text, str) for item in state.items() for text in item):
            raise ValueError(f"pins are a mapping of references to pinned references, and this is {state!r}")
        self._pins, self._previous = dict(state), {}

    def _pin(self, reference: str, pin: str) -> None:
        existing = self._pins.setdefault(reference, pin)
        if existing != pin:
            logger.warning("rubric %s is pinned to %s, and an answer names %s", reference, existing, pin)
        if previous := self._previous.pop(reference, None):
            logger.info("rubric %s: was %s, is now %s", reference, previous, existing)


MAX_GROUPS = 4096
"""Of one request."""
MAX_RESPONSES = 4096
"""Of one group in one request."""
MAX_CHARACTERS = 8_000_000
"""Of one request: a part of the 64 MiB that a service takes unless told otherwise, whatever the script."""


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """As much of a group as fits into a request."""

    group: RowGroup
    rows: Sequence[int]


def split_requests(rows: RowBatch) -> Iterator[list[GroupSlice]]:
    """Give the parts of each request, in order; a group is in one request at most once."""
    parts: list[GroupSlice] = []
    size = 0
    for part, characters in _group_slices(rows):
        again = bool(parts) and parts[-1].group is part.group
        if parts and (again or len(parts) == MAX_GROUPS or size + characters > MAX_CHARACTERS):
            yield parts
            parts, size = [], 0
        parts.append(part)
        size += characters
    if parts:
        yield parts


def _group_slices(rows: RowBatch) -> Iterator[tuple[GroupSlice, int]]:
    for group in rows.groups:
        shared = sum(_characters(text) for text in group.fields.values())
        if isinstance(group.rubric, RubricContent):
            shared += sum(len(criterion.description) for criterion in group.rubric.criteria)
        taken: list[int] = []
        size = shared
        for row in group.rows:
            characters = _characters(rows.responses[row].text)
            if taken and (len(taken) == MAX_RESPONSES or size + characters > MAX_CHARACTERS):
                yield GroupSlice(group, taken), size
                taken, size = [], shared
            taken.append(row)
            size += characters
        yield GroupSlice(group, taken), size


def _characters(text: str | tuple[Message, ...]) -> int:
    if isinstance(text, str):
        return len(text)
    length = sum(len(message.content or "") + len(message.reasoning_content or "") for message in text)
    return length + sum(len(call.function.arguments) for message in text for call in message.tool_calls)


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


DEFAULT_RETRIES = 30
"""Tries after the first where only an address is given: as many as the retry budget and a step's deadline have room
for, so that a service that is started again costs a training step seconds and not its rewards."""


class LoopClient:
    """Makes clients where they are needed. Pickled, it takes the settings along and no connection.

    Args:
        like: an address, or a client that lends its settings; it is neither used nor closed.

    Raises:
        TypeError: it is none of these, or a client whose transport is not async.
        ValueError: the address is none.
    """

    def __init__(self, template: str | Client | AsyncClient) -> None:
        if isinstance(template, str):
            template = AsyncClient(template, retries=DEFAULT_RETRIES)
        if not isinstance(template, Client | AsyncClient):
            raise TypeError(f"client is of type {type(template).__name__}; give an address, a Client or an AsyncClient")
        options = vars(template.settings)
        if isinstance(template, Client):
            if options["transport"] is not None:
                raise TypeError("this Client's transport is not async; give an AsyncClient with an async transport")
            options = {name: value for name, value in options.items() if name != "sleep"}
        own = inspect.signature(AsyncClient).parameters
        self._options = {name: value for name, value in options.items() if value is not own[name].default}
        self._current: tuple[int, asyncio.AbstractEventLoop, AsyncClient] | None = None

    @property
    def base_url(self) -> str:
        """The service's address."""
        return str(self._options["base_url"])

    def for_running_loop(self) -> AsyncClient:
        """Give the client of the loop that runs."""
        process, loop = os.getpid(), asyncio.get_running_loop()
        if self._current is None or self._current[:2] != (process, loop):
            self._current = process, loop, AsyncClient(**self._options)
        return self._current[2]

    async def aclose(self) -> None:
        """Close the client of the loop that runs; another is made when it is needed."""
        if self._current is not None and self._current[1] is asyncio.get_running_loop():
            await self._current[2].aclose()
        self._current = None

    def __getstate__(self) -> dict[str, Any]:
        for name, value in self._options.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(
                    f"the client's {name} ({type(value).__name__}) cannot be pickled, and so not be sent to another "
                    "process; give RubricReward a client without it, or just the address"
                ) from error
        return {"_options": self._options, "_current": None}
