"""Send groups to the service within a deadline, and keep every verdict that arrives in time.

When the service fails, the affected rows have no answer but a kind of failure; only invalid requests raise. Groups are
split over requests by their number, the number of responses and their size. `RubricPins` holds the version of each
rubric that the run is judged by: the one that the first answer named, until it is changed. `preflight` asks
the service whether it can judge before training begins. `JudgeWait` waits for a service that is away while training.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from trainer_client import AsyncClient, Client
from trainer_client.client.keywords import RewardKeywords
from trainer_client.client.tables import RubricOrReference
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
    TimedOut,
    outage_kind,
)
from trainer_client.trl._reward.dataset import RowBatch, RowGroup
from trainer_client.wire import (
    FailurePolicy,
    Group,
    GroupRewards,
    Message,
    PinnedRubric,
    PromptOpens,
    ReasoningPart,
    Response,
    ResponseReward,
    RewardMode,
    RubricContent,
    Usage,
    needs_whole_groups,
)
from trainer_client.wire.judging import StepRule

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
        """Pin a reference to the version that an answer names, unless it is pinned already.

        Args:
            reference: the reference as the user wrote it.
            digest: the digest of the content that judged, if the answer has it.
            used: the rubrics of the answer.
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
        """Replace all pins.

        Raises:
            ValueError: the state is not a mapping of references to pinned references.
        """
        if not isinstance(state, Mapping) or not all(isinstance(text, str) for item in state.items() for text in item):
            raise ValueError(f"pins must be a mapping of references to pinned references, not {state!r}")
        self._pins, self._previous = dict(state), {}

    def _pin(self, reference: str, pin: str) -> None:
        existing = self._pins.setdefault(reference, pin)
        if existing != pin:
            logger.warning("rubric %s is pinned to %s, but an answer names %s", reference, existing, pin)
        if previous := self._previous.pop(reference, None):
            logger.info("rubric %s: was %s, is now %s", reference, previous, existing)


MAX_GROUPS = 4096
"""The largest number of groups in a request."""
MAX_RESPONSES = 4096
"""The largest number of responses of a group in a request."""
MAX_CHARACTERS = 8_000_000
"""The largest size of a request in characters. In any script it stays below the service's default limit of 64 MiB."""


def split_requests(rows: RowBatch) -> Iterator[list[RowGroup]]:
    """Yield the groups of each request, in order. A large group is split, and its parts are in different requests."""
    parts: list[RowGroup] = []
    size = 0
    for part, characters in _group_slices(rows):
        again = bool(parts) and parts[-1].id == part.id
        if parts and (again or len(parts) == MAX_GROUPS or size + characters > MAX_CHARACTERS):
            yield parts
            parts, size = [], 0
        parts.append(part)
        size += characters
    if parts:
        yield parts


def _group_slices(rows: RowBatch) -> Iterator[tuple[RowGroup, int]]:
    for group in rows.groups:
        shared = sum(_characters(text) for text in group.fields.values())
        if isinstance(group.rubric, RubricContent):
            shared += sum(len(criterion.description) for criterion in group.rubric.criteria)
        taken: list[int] = []
        size = shared
        for row in group.rows:
            characters = _characters(rows.responses[row].text)
            if taken and (len(taken) == MAX_RESPONSES or size + characters > MAX_CHARACTERS):
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


@dataclass(frozen=True, slots=True)
class ScoringConfig:
    """The settings shared by all groups of a call."""

    rubric: RubricOrReference | None
    mode: RewardMode
    on_failure: FailurePolicy
    deadline_s: float
    step: int | None
    options: RewardKeywords

    @property
    def reasoning(self) -> ReasoningPart:
        """The part of a response's thinking that is judged."""
        return self.options.get("reasoning", "strip")

    @property
    def prompt_opens(self) -> PromptOpens | None:
        """The tag of the thinking block that the policy's prompt leaves open; None if that is not known."""
        return self.options.get("prompt_opens")

    @property
    def steps(self) -> StepRule:
        """What the steps of a response are."""
        return self.options.get("steps", "headings")


@dataclass(slots=True)
class RowAnswers:
    """The answers received, by row.

    Attributes:
        answers: the answer of each row, or None.
        kinds: the kind of failure of each row, which applies if it has no answer.
        digests: the digest of the rubric that judged each row, if the answer has it.
        component_weights: the weights of the components of each row that has an answer.
        usage: the usage of each completed request.
        last_error: the last error message.
        away: the rows without an answer because the judge was away.
    """

    answers: list[ResponseReward | None]
    kinds: list[str]
    digests: list[str | None]
    component_weights: dict[int, Mapping[str, float]] = field(default_factory=dict)
    usage: list[Usage] = field(default_factory=list)
    last_error: str | None = None
    away: set[int] = field(default_factory=set)


async def judge(
    client: AsyncClient,
    rows: RowBatch,
    config: ScoringConfig,
    pins: RubricPins,
    *,
    grace_s: float,
    earlier: RowAnswers | None = None,
) -> RowAnswers:
    """Judge all rows, in as few requests as possible.

    Args:
        earlier: answers from when the judge was away for some rows; only these are judged, and their answers added.

    Returns:
        The answers received within `config.deadline_s` + `grace_s`.

    Raises:
        InvalidRequest, NotFound, JudgingFailed, Forbidden, BudgetExhausted: the service rejects the request.
        InvalidRequest: the mode compares the responses of a group, and a group is too large for one request.
    """
    count = len(rows.responses)
    if earlier is None:
        row_answers = RowAnswers([None] * count, ["timeout"] * count, [None] * count)
    else:
        row_answers, away = earlier, frozenset(earlier.away)
        row_answers.away.clear()
        for row in away:
            row_answers.kinds[row] = "timeout"
        parts = [replace(group, rows=[row for row in group.rows if row in away]) for group in rows.groups]
        rows = replace(rows, groups=[group for group in parts if group.rows])
    requests = list(split_requests(rows))
    if needs_whole_groups(config.mode, config.options.get("weighting")):
        _refuse_split_groups(rows.groups, requests)
    judging = _JudgingCall(client, rows.responses, config, pins, row_answers)
    await gather_with_timeout(config.deadline_s + grace_s, [judging.request(parts) for parts in requests])
    return row_answers


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
        row_answers: RowAnswers,
    ) -> None:
        self._client = client
        self._responses = responses
        self._config = config
        self._pins = pins
        self._row_answers = row_answers
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
                if isinstance(error, MismatchedAnswer):
                    self._discard_answers(parts)
                    waiting = {part.id: part for part in parts}
                self._row_answers.last_error = str(error)
                self._set_failure_kind(waiting.values(), failure_kind(error), away=is_away(error))
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
                    self._store_answers(part, group)
                    if isinstance(rubric := part.rubric or self._config.rubric, str):
                        answered.add((rubric, group.rubric))
            except asyncio.CancelledError:
                if stream.retried_error is not None:  # the time was spent on attempts that failed
                    self._row_answers.last_error = str(stream.retried_error)
                    kind, away = failure_kind(stream.retried_error), is_away(stream.retried_error)
                    self._set_failure_kind(waiting.values(), kind, away=away)
                raise
            summary = stream.summary
        self._row_answers.usage.append(summary.usage)
        for reference, digest in answered:
            self._pins.pin_from_answer(reference, digest, summary.rubrics)

    def _store_answers(self, part: RowGroup, group: GroupRewards) -> None:
        for row, answer in zip(part.rows, group.responses, strict=True):
            self._row_answers.answers[row] = answer
            self._row_answers.digests[row] = group.rubric
            self._row_answers.component_weights[row] = group.component_weights
        self._row_answers.away.difference_update(part.rows)

    def _discard_answers(self, parts: Sequence[RowGroup]) -> None:
        """Take back the answers of a request, since some of what came with them is another request's."""
        for part in parts:
            for row in part.rows:
                self._row_answers.answers[row] = None
                self._row_answers.digests[row] = None

    def _set_failure_kind(self, parts: Iterable[RowGroup], kind: str, *, away: bool = False) -> None:
        for part in parts:
            for row in part.rows:
                self._row_answers.kinds[row] = kind
            (self._row_answers.away.update if away else self._row_answers.away.difference_update)(part.rows)

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


def preflight(template: str | Client | AsyncClient, wait_s: float) -> None:
    """Check that a service can judge, and wait while it is loading.

    A client with a transport of its own is not asked, because that transport may belong to an event loop.

    Args:
        template: the service's address, or a client of it.
        wait_s: how long to wait for a service that answers but is not ready, in seconds.

    Raises:
        ConnectionFailed, TimedOut: nothing answers at the address.
        AdjudgeError: the service was not ready in time, or something else answers there.
    """
    client = blocking_client(template)
    if client is None:
        return
    with client:
        reason, waited = client.not_ready_reason(), 0.0
        if isinstance(reason, ConnectionFailed | TimedOut):
            raise type(reason)(
                f"{reason}. Start the service first, or pass preflight=False to train without asking it now"
            ) from reason
        began = time.monotonic()
        while reason is not None:
            if waited == 0.0:
                logger.warning("waiting up to %g s for the judge at %s: %s", wait_s, client.base_url, reason)
            if waited >= wait_s:
                raise reason
            client.settings.sleep(_poll_interval_s(wait_s))
            waited = max(waited + _poll_interval_s(wait_s), time.monotonic() - began)
            reason = client.not_ready_reason()
        if waited:
            logger.warning("the judge at %s is ready after %.0f s", client.base_url, waited)


_POLL_S, _ROUND_S, _LOG_EVERY_S = 2.0, 30.0, 60.0
"""How often a judge that is away is asked; how long a rank waits before it meets the others; how often it is logged."""


def _poll_interval_s(limit_s: float) -> float:
    return min(_POLL_S, limit_s / 10)


class JudgeWait:
    """Waits for a judge that is away, in rounds in which all ranks take part.

    A rank that has all its rewards would otherwise wait in a collective operation, which has a time limit of its own.
    All ranks decide alike, because they decide from what all of them gathered.

    Args:
        limit_s: how long to wait for one outage, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._given_up = False

    def continues(self, away: Sequence[str | None], waited_s: Sequence[float]) -> bool:
        """Decide whether all ranks wait for another round. An outage that was waited for in vain is not again.

        Args:
            away: for each rank why its judge is away, or None if it is not.
            waited_s: how long each rank has waited in this call, in seconds.
        """
        if not any(away):
            self._given_up = False
        elif max(waited_s) >= self.limit_s:
            self._given_up = True
        return any(away) and not self._given_up

    async def round(self, client: AsyncClient, reason: str, waited_s: float) -> tuple[bool, float]:
        """Wait until the service is ready, at most for a round.

        Args:
            client: a client of the service.
            reason: why it is away.
            waited_s: how long this rank has waited in this call.

        Returns:
            Whether to send the request again, and how long this rank has waited then.
        """
        if waited_s == 0.0:
            logger.warning("waiting up to %g s for the judge at %s: %s", self.limit_s, client.base_url, reason)
        interval, loop = _poll_interval_s(self.limit_s), asyncio.get_running_loop()
        began, spent = loop.time(), 0.0
        problem: AdjudgeError | None = None
        while spent < min(_ROUND_S, self.limit_s - waited_s):
            await client.settings.sleep(interval)
            spent = max(spent + interval, loop.time() - began)
            try:
                problem = await client.not_ready_reason()
            except AdjudgeError as error:  # a proxy may answer in place of a service that is away
                problem = error
            if problem is None:
                logger.warning("the judge at %s is ready after %.0f s", client.base_url, waited_s + spent)
                break
        total = waited_s + spent
        if problem is not None and total // _LOG_EVERY_S > waited_s // _LOG_EVERY_S:
            logger.warning("still waiting for the judge at %s after %.0f s: %s", client.base_url, total, problem)
        # a service may report a part as not ready that rewards do not need, such as the ledger
        return problem is None or isinstance(problem, NotReady), total


END_LEASE_S = 1.0
"""A lease to sleep that is let go is replaced by one of this length, because none can be withdrawn."""


class SharedMemory:
    """Has the judge awake while this trainer's rewards are judged, and asleep while the trainer needs the memory.

    All ranks do the same: the leases of one owner replace each other, and those of several add up.

    Args:
        judge: the name of the judge.
        lease_s: how long each lease holds, in seconds.
        limit_s: how long to wait for a judge that others keep awake, in seconds.
    """

    def __init__(self, judge: str, lease_s: float, limit_s: float) -> None:
        self.judge, self.lease_s, self.limit_s = judge, lease_s, limit_s
        self._owner = f"trainer {secrets.token_hex(4)}"

    async def wake(self, client: AsyncClient) -> None:
        """Wake the judge. If it is away or cannot wake now, requests wait for it, or fail like those to any such judge.

        A lease from before the run had a name is let go. Raises `AdjudgeError` if the key or the service permits no
        leases.
        """
        earlier, self._owner = self._owner, client.run or self._owner
        try:
            if earlier != self._owner:
                await client.put_judge_to_sleep(earlier, self.judge, lease_s=END_LEASE_S)
            await client.wake_judge(self._owner, self.judge, lease_s=self.lease_s)
        except (ConnectionFailed, TimedOut, NotReady, ServerError) as error:
            logger.warning("the judge cannot be woken: %s", error)

    async def problem_with_sleep(self, client: AsyncClient) -> AdjudgeError | None:
        """Put the judge to sleep, wait until it is asleep, and return why it is not, if it is not in time."""
        spent, interval = 0.0, _poll_interval_s(self.limit_s)
        while True:
            try:
                found = await client.put_judge_to_sleep(client.run or self._owner, self.judge, lease_s=self.lease_s)
            except AdjudgeError as error:
                return error
            if found.state == "asleep":
                return None
            if spent >= self.limit_s:
                return NotReady(
                    f"the judge {self.judge!r} is not asleep after {spent:.0f} s, but {found.state}; kept awake by: "
                    f"{', '.join(found.kept_awake_by) or 'nobody'}"
                )
            if spent == 0.0:
                logger.warning("waiting for the judge to fall asleep; kept awake by %s", found.kept_awake_by)
            await client.settings.sleep(interval)
            spent += interval

    @contextmanager
    def awake(self, client: Client) -> Iterator[None]:
        """Keep the judge awake inside the block, and let it sleep after it. Raises `AdjudgeError`."""
        owner = client.run or self._owner
        client.wake_judge(owner, self.judge, lease_s=self.lease_s)
        try:
            yield
        finally:
            client.put_judge_to_sleep(owner, self.judge, lease_s=self.lease_s)

    def renew(self, template: AsyncClient, lease_s: float | None = None) -> None:
        """Hold the lease to sleep for longer; with `lease_s`, for so long from now. Raises `AdjudgeError`.

        A client with a transport of its own is not used, because that transport may belong to an event loop.
        """
        client = blocking_client(template)
        if client is not None:
            with client:
                client.put_judge_to_sleep(client.run or self._owner, self.judge, lease_s=lease_s or self.lease_s)


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
