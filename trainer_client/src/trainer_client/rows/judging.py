"""Send groups to the service within a deadline, and keep every verdict that arrives in time.

When the service fails, the affected rows have no answer but a kind of failure; only invalid requests raise. Groups are
split over requests by their number, the number of responses and their size. `RubricPins` holds the version of each
rubric that a run is judged by, which the first answer names.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from trainer_client import AsyncClient, Client
from trainer_client.client.calls import rewards_request
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import (
    AdjudgeError,
    BudgetExhausted,
    ConnectionFailed,
    InvalidRequest,
    JudgingFailed,
    MismatchedAnswer,
    NotFound,
    NotReady,
    ServerError,
    outage_kind,
)
from trainer_client.rewards import check_rubric
from trainer_client.rows.reading import RowBatch, RowGroup
from trainer_client.rows.tables import RubricOrReference
from trainer_client.wire import (
    NEEDS_NO_RUBRIC,
    FailurePolicy,
    Group,
    GroupRewards,
    Message,
    PinnedRubric,
    Response,
    ResponseReward,
    RewardMode,
    RubricContent,
    Usage,
    needs_whole_groups,
)
from trainer_client.wire.criteria import needs_ground_truth

logger = logging.getLogger(__name__)


class RubricPins:
    """The pinned version of each reference without a version.

    `name` and `name@alias` are pinned to `name@version`; `name@3` and `sha256:…` already identify their content.
    """

    def __init__(self, pins: Mapping[str, str] | None = None) -> None:
        self._pins = dict(pins or {})
        self._previous: dict[str, str] = {}

    def pinned(self, reference: str) -> str:
        """Return the pinned reference, or the reference itself if it has no pin."""
        return self._pins.get(reference, reference)

    def pin_from_answer(self, reference: str, digest: str | None, used: Sequence[PinnedRubric]) -> None:
        """Pin a reference, as the user wrote it, to the version that an answer names, unless it is pinned already.

        `digest` is that of the content that judged, if the answer has it, and `used` are the rubrics of the answer.
        """
        name, _, version = self.pinned(reference).partition("@")
        same = [rubric for rubric in used if rubric.name == name and rubric.version is not None]
        versions = {rubric.version for rubric in same if digest in (None, rubric.digest)}
        if versions and not version.isdecimal():
            self._pin(reference, f"{name}@{max(v for v in versions if v is not None)}")

    def merge_ranks(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Agree on the pins of all ranks: the lowest rank with a pin of a reference decides it."""
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
        """Change the pins of references. Call it with the same pins on all ranks."""
        for reference, pin in pins.items():
            logger.info("rubric %s: was %s, is now %s", reference, self.pinned(reference), pin)
            self._previous.pop(reference, None)
            self._pins[reference] = pin

    def clear(self) -> None:
        """Remove all pins, so that the next answer pins every reference again."""
        self._previous |= self._pins
        self._pins = {}

    def state(self) -> dict[str, str]:
        """The pins by reference."""
        return dict(self._pins)

    def load(self, state: Any) -> None:
        """Replace all pins. Raises ValueError if the state is no mapping of references to pinned references."""
        if not isinstance(state, Mapping) or not all(isinstance(text, str) for item in state.items() for text in item):
            raise ValueError(f"pins must be a mapping of references to pinned references, not {state!r}")
        self._pins, self._previous = dict(state), {}

    def _pin(self, reference: str, pin: str) -> None:
        existing = self._pins.setdefault(reference, pin)
        if existing != pin:
            logger.warning("rubric %s is pinned to %s, but an answer names %s", reference, existing, pin)
        if previous := self._previous.pop(reference, None):
            logger.info("rubric %s: was %s, is now %s", reference, previous, existing)


DEFAULT_RETRIES = 30
"""Retries if only an address is given: as many as the retry budget and a step's deadline allow, so that a restart of
the service delays a training step by seconds and does not cost its rewards."""


def own_client(template: str | Client | AsyncClient) -> AsyncClient:
    """Create a client of an address, or one with the settings of another client, which is neither used nor closed.

    Raises:
        TypeError: the template is neither, or is a client whose transport is not async.
        ValueError: the address is invalid.
    """
    if isinstance(template, str):
        return AsyncClient(template, retries=DEFAULT_RETRIES)
    if isinstance(template, AsyncClient):
        return AsyncClient.from_settings(template.settings)
    if not isinstance(template, Client):
        raise TypeError(f"client is a {type(template).__name__}; give an address, a Client or an AsyncClient")
    if template.settings.transport is not None:
        raise TypeError("this Client's transport is not async; give an AsyncClient with an async transport")
    return AsyncClient.from_settings(replace(template.settings, sleep=asyncio.sleep))


def blocking_client(template: str | Client | AsyncClient) -> Client | None:
    """Create a blocking client of an address, or one with a client's settings; None if that has a transport of its own.

    Such a transport may belong to an event loop.
    """
    options = {"base_url": template} if isinstance(template, str) else dict(vars(template.settings))
    if options.pop("transport", None) is not None:
        return None
    if isinstance(template, AsyncClient):
        options.pop("sleep")
    return Client(**options)


_PROBE_GROUP = {
    "id": "probe",
    "prompt": "",
    "responses": [{"text": "", "tokens": 0, "stopped": True}] * 2,
    "ground_truth": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringConfig:
    """How the rows of a call are judged.

    Attributes:
        rubric: the rubric of rows without one.
        mode, on_failure, options: as for `Client.rewards`.
        deadline_s: seconds that the service has.
        grace_s: seconds to keep waiting after the deadline.
        step: the training step to record.
    """

    rubric: RubricOrReference | None
    mode: RewardMode
    on_failure: FailurePolicy
    deadline_s: float
    grace_s: float
    options: RewardKeywords
    step: int | None = None

    def check(self) -> None:
        """Validate these settings as the service would, without sending a request.

        Raises InvalidRequest, or TypeError for an unknown option.
        """
        given = {
            "run": "probe",
            "groups": [_PROBE_GROUP],
            "rubric": self.rubric or "probe",
            "on_failure": self.on_failure,
            "deadline_s": self.deadline_s,
            "step": 0,
        }
        rewards_request("RubricReward", given, self.mode, self.options)

    def check_group(self, group: RowGroup) -> None:
        """Check that a group has what its rubric and the mode need. Raises ValueError."""
        has_truth = bool((group.fields.get("ground_truth") or "").strip())
        if self.mode == "outcome" and not has_truth:
            raise ValueError("it has no ground_truth, which the mode 'outcome' compares with; add the column")
        rubric = group.rubric or self.rubric
        if not isinstance(rubric, RubricContent) or self.mode in NEEDS_NO_RUBRIC:
            return
        check_rubric(rubric.criteria, self.mode, self.options.get("kinds"), self.options.get("components"))
        for criterion in rubric.criteria:
            if needs_ground_truth(criterion.verification) and not has_truth:
                raise ValueError(
                    f"criterion {criterion.id!r} is verified by a program and has nothing to compare with; add the "
                    "column ground_truth, or give the criterion's verification an expected answer"
                )

    @property
    def compares_responses(self) -> bool:
        """Whether rewards depend on the other responses of a group."""
        return needs_whole_groups(self.mode, self.options.get("weighting"))


MAX_GROUPS = 4096
"""The largest number of groups in a request."""
MAX_RESPONSES = 4096
"""The largest number of responses of a group in a request."""
MAX_CHARACTERS = 8_000_000
"""The largest size of a request in characters. In any script it stays below the service's default limit of 64 MiB."""


class RequestLimits(NamedTuple):
    """The largest request: groups, responses of a group, and characters."""

    groups: int = MAX_GROUPS
    responses: int = MAX_RESPONSES
    characters: int = MAX_CHARACTERS


REQUEST_LIMITS = RequestLimits()


def split_requests(
    groups: Iterable[RowGroup], responses: Sequence[Response], limits: RequestLimits = REQUEST_LIMITS
) -> Iterator[list[RowGroup]]:
    """Yield the groups of each request, in order. A large group is split, and its parts are in different requests."""
    parts: list[RowGroup] = []
    size = 0
    for part, characters in _group_slices(groups, responses, limits):
        again = bool(parts) and parts[-1].id == part.id
        if parts and (again or len(parts) == limits.groups or size + characters > limits.characters):
            yield parts
            parts, size = [], 0
        parts.append(part)
        size += characters
    if parts:
        yield parts


def _group_slices(
    groups: Iterable[RowGroup], responses: Sequence[Response], limits: RequestLimits
) -> Iterator[tuple[RowGroup, int]]:
    for group in groups:
        shared = sum(_characters(text) for text in group.fields.values())
        if isinstance(group.rubric, RubricContent):
            shared += sum(len(criterion.description) for criterion in group.rubric.criteria)
        taken: list[int] = []
        size = shared
        for row in group.rows:
            characters = _characters(responses[row].text)
            if taken and (len(taken) == limits.responses or size + characters > limits.characters):
                yield replace(group, rows=taken), size
                taken, size = [], shared
            taken.append(row)
            size += characters
        yield replace(group, rows=taken), size


def _characters(text: str | tuple[Message, ...]) -> int:
    if isinstance(text, str):
        return len(text)
    length = sum(len(message.content or "") + len(message.reasoning_content or "") for message in text)
    return length + sum(len(call.function.arguments) for message in text for call in message.tool_calls)


_CANCEL_TIMEOUT_S = 1.0
"""How long to wait for cancelled requests to end."""

_RETRYABLE_STATUSES = frozenset({408, 425, 429})


@dataclass(slots=True)
class RowAnswer:
    """What became of a row.

    Attributes:
        answer: the answer, or None.
        failure: the kind of failure, which applies without an answer.
        digest: the digest of the rubric that judged the row, if the answer has it.
        component_weights: the weights of the components of its reward.
        away: whether there is no answer because the judge was away.
    """

    answer: ResponseReward | None = None
    failure: str = "timeout"
    digest: str | None = None
    component_weights: Mapping[str, float] = field(default_factory=dict)
    away: bool = False


@dataclass(slots=True)
class RowAnswers:
    """What became of the N rows of a call, the usage of each completed request, and the last error message."""

    rows: list[RowAnswer]
    usage: list[Usage] = field(default_factory=list)
    last_error: str | None = None

    @property
    def away(self) -> str | None:
        """Why the judge was away for some rows; None if it was not."""
        return (self.last_error or "it cannot be reached") if any(row.away for row in self.rows) else None


async def judge(
    client: AsyncClient, rows: RowBatch, config: ScoringConfig, pins: RubricPins, earlier: RowAnswers | None = None
) -> RowAnswers:
    """Judge all rows, in as few requests as possible.

    Args:
        earlier: answers from when the judge was away for some rows; only these are judged, and their answers added.

    Returns:
        The answers received within `config.deadline_s` + `config.grace_s`.

    Raises:
        InvalidRequest, NotFound, JudgingFailed, Forbidden, BudgetExhausted: the service rejects the request.
        InvalidRequest: the mode compares the responses of a group, and a group is too large for one request.
    """
    answers = earlier or RowAnswers([RowAnswer() for _ in rows.responses])
    groups: Sequence[RowGroup] = rows.groups
    if earlier is not None:
        away = {row for row, answer in enumerate(answers.rows) if answer.away}
        answers.rows = [RowAnswer() if row in away else answer for row, answer in enumerate(answers.rows)]
        parts = [replace(group, rows=[row for row in group.rows if row in away]) for group in groups]
        groups = [part for part in parts if part.rows]
    requests = list(split_requests(groups, rows.responses))
    if config.compares_responses:
        _refuse_split_groups(groups, requests)
    judging = _JudgingCall(client, rows.responses, config, pins, answers)
    await gather_with_timeout(config.deadline_s + config.grace_s, [judging.request(parts) for parts in requests])
    return answers


def _refuse_split_groups(groups: Sequence[RowGroup], requests: Sequence[Sequence[RowGroup]]) -> None:
    sent = {part.id: len(part.rows) for parts in requests for part in parts}
    for group in groups:
        if sent[group.id] < (count := len(group.rows)):
            raise InvalidRequest(
                "the mode or weighting compares the responses of a group with each other, but the group of row "
                f"{group.rows[0]} has {count} responses that do not fit into one request of {MAX_CHARACTERS:,} "
                f"characters and {MAX_RESPONSES:,} responses; generate fewer or shorter ones for a prompt, or choose "
                "another"
            )


async def gather_with_timeout(seconds: float, work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently, and cancel the rest at the timeout or at the first error."""
    tasks = [asyncio.create_task(one) for one in work]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        cancelled = [task for task in tasks if task.cancel()]
    if cancelled:
        ended, _ = await asyncio.wait(cancelled, timeout=_CANCEL_TIMEOUT_S)
        await asyncio.gather(*ended, return_exceptions=True)
    for task in done:
        task.result()


class _JudgingCall:
    """Sends the requests of one call and collects their answers."""

    def __init__(
        self,
        client: AsyncClient,
        responses: Sequence[Response],
        config: ScoringConfig,
        pins: RubricPins,
        answers: RowAnswers,
    ) -> None:
        self._client, self._responses, self._config, self._pins = client, responses, config, pins
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    async def request(self, parts: Sequence[RowGroup]) -> None:
        """Send one request. If the connection breaks, request the missing groups again as long as any arrive."""
        waiting = {part.id: part for part in parts}
        seconds_left = self._config.deadline_s
        while seconds_left > 0:
            before = len(waiting)
            try:
                await self._stream(waiting, seconds_left)
                return
            except AdjudgeError as error:
                if is_user_error(error):
                    raise
                if isinstance(error, MismatchedAnswer):  # some of what came with it is another request's
                    waiting = {part.id: part for part in parts}
                self._fail(waiting.values(), error)
                if not error.retryable or not 0 < len(waiting) < before:
                    if self._config.on_failure == "error" and isinstance(error, NotReady):
                        raise  # an unavailable judge is a failure, too
                    return
            seconds_left = self._config.deadline_s - (self._loop.time() - self._began)

    async def _stream(self, waiting: dict[str, RowGroup], deadline_s: float) -> None:
        """Request the waiting groups, and remove those that arrive from `waiting`."""
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
            try:
                async for group in stream:
                    part = waiting.pop(group.id)
                    self._store(part, group)
                    if isinstance(rubric := part.rubric or self._config.rubric, str):
                        answered.add((rubric, group.rubric))
            except asyncio.CancelledError:
                if stream.retried_error is not None:  # the time was spent on attempts that failed
                    self._fail(waiting.values(), stream.retried_error)
                raise
            summary = stream.summary
        self._answers.usage.append(summary.usage)
        for reference, digest in answered:
            self._pins.pin_from_answer(reference, digest, summary.rubrics)

    def _store(self, part: RowGroup, group: GroupRewards) -> None:
        for row, answer in zip(part.rows, group.responses, strict=True):
            self._answers.rows[row] = RowAnswer(answer, digest=group.rubric, component_weights=group.component_weights)

    def _fail(self, parts: Iterable[RowGroup], error: AdjudgeError) -> None:
        self._answers.last_error = str(error)
        for part in parts:
            for row in part.rows:
                self._answers.rows[row] = RowAnswer(failure=failure_kind(error), away=is_away(error))

    def _wire_group(self, part: RowGroup) -> Group:
        own = {} if part.rubric is None else {"rubric": self._pinned(part.rubric)}
        return Group.model_validate({**part.fields, **own, "responses": [self._responses[row] for row in part.rows]})

    def _pinned(self, rubric: RubricOrReference | None) -> RubricOrReference | None:
        return self._pins.pinned(rubric) if isinstance(rubric, str) else rubric


def is_user_error(error: AdjudgeError) -> bool:
    """Whether to raise an error: the request cannot succeed unchanged, or the user asked for failures as errors."""
    if isinstance(error, InvalidRequest | NotFound | JudgingFailed | BudgetExhausted):
        return True
    return error.status is not None and 400 <= error.status < 500 and error.status not in _RETRYABLE_STATUSES


def failure_kind(error: AdjudgeError) -> str:
    """Return the kind of failure under which an error is logged."""
    if error.status == 429:
        return "overloaded"
    kind = outage_kind(error) or "server"
    return "malformed" if kind == "server" and error.status is not None and error.status < 300 else kind


_AWAY_STATUSES = frozenset({502, 503, 504})
"""Statuses with which a proxy says that no service stands behind it."""


def is_away(error: AdjudgeError) -> bool:
    """Whether an error says that the judge is away, so that waiting may help: it is down, restarts, or is loading."""
    if isinstance(error, ConnectionFailed):
        return error.retryable
    return isinstance(error, NotReady) or (isinstance(error, ServerError) and error.status in _AWAY_STATUSES)
