"""Score one rank's part of a reward call: judge its rows and add other reward functions.

The extra reward functions run while the judge answers, called as TRL calls them. Each row keeps the judge's answer,
its reward and its failures. Criteria that answers name only by digest are fetched once and cached.
"""

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client import AsyncClient
from trainer_client.client.tables import RubricOrReference, failure_kinds, is_empty_rubric, parse_rubric
from trainer_client.errors import AdjudgeError, NotReady
from trainer_client.rewards import as_number
from trainer_client.text.thinking import JudgedContent, judged_content
from trainer_client.trl._reward.dataset import RowBatch
from trainer_client.trl._reward.distributed import RankSummary, format_counts
from trainer_client.trl._reward.judging import RowAnswers, RubricPins, ScoringConfig, gather_with_timeout, judge
from trainer_client.wire import (
    ZERO_POLICIES,
    Criterion,
    PinnedRubric,
    PromptOpens,
    ReasoningPart,
    Response,
    ResponseReward,
    RubricContent,
    RubricVersion,
    Usage,
)
from trainer_client.wire.judging import StepRule

RewardFunction = Callable[..., Any]
"""A sync or async reward function as TRL takes it, but not a model or the name of one."""

logger = logging.getLogger(__name__)


def check_reward_functions(functions: Sequence[RewardFunction], weights: Sequence[float] | None) -> tuple[float, ...]:
    """Check extra reward functions and their weights, and return the weights: the rubric's first, 1 each by default.

    Raises:
        TypeError: one is not a function. Reward models must be given to the trainer.
        ValueError: there is not one finite weight for each.
    """
    torch = sys.modules.get("torch")
    for function in functions:
        if not callable(function) or (torch is not None and isinstance(function, torch.nn.Module)):
            raise TypeError(
                f"extra_rewards contains a {type(function).__name__}, but takes functions only; give reward models to "
                "the trainer"
            )
    count = len(functions) + 1
    given = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
    if len(given) != count or not all(map(math.isfinite, given)):
        raise ValueError(
            f"weights is {weights!r}; give {count} finite numbers: the rubric's, then one for each of extra_rewards"
        )
    return given


async def call_extra_reward(function: RewardFunction, columns: Mapping[str, Any], rows: int) -> list[float | None]:
    """Call a function and return its N rewards, None where it gives none. Log rewards that are not finite.

    Raises:
        ValueError: the function does not return N rewards.
    """
    given = await function(**columns) if _is_async(function) else await asyncio.to_thread(function, **columns)
    if len(given) != rows:
        raise ValueError(
            f"reward function {function_name(function)!r} returned {len(given)} rewards for {rows} responses"
        )
    rewards = [None if reward is None else as_number(reward) for reward in given]
    non_finite = sum(reward is not None and not math.isfinite(reward) for reward in rewards)
    if non_finite:
        logger.warning(
            "reward function %r did not return a finite number for %d of %d responses; they have no reward",
            function_name(function),
            non_finite,
            rows,
        )
    return rewards


def weighted_sum(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Sum the weighted parts of a reward; None if a part is missing or the sum is not finite."""
    total = 0.0
    for part, weight in zip(parts, weights, strict=True):
        if part is None:
            return None
        total += weight * part
    return total if math.isfinite(total) else None


def function_name(function: RewardFunction) -> str:
    """Return the name of a function as TRL logs it."""
    function = _unwrap_partial(function)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(function: RewardFunction) -> bool:
    function = _unwrap_partial(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _unwrap_partial(function: RewardFunction) -> RewardFunction:
    while isinstance(function, functools.partial):
        function = function.func
    return function


class RubricCache:
    """Criteria by digest. Digests identify immutable contents, so entries never expire."""

    def __init__(self) -> None:
        self._criteria: dict[str, tuple[Criterion, ...]] = {}
        self._digests: dict[str, str] = {}

    def get(self, digest: str | None) -> tuple[Criterion, ...] | None:
        """Return the criteria, or None if they were not fetched."""
        return self._criteria.get(digest or "")

    async def fetch(self, client: AsyncClient, wanted: Mapping[str, str]) -> None:
        """Fetch criteria that are not cached yet. Failures are logged, and the next call tries again.

        Args:
            client: a client of the service that judged.
            wanted: a reference for each digest.
        """
        for digest, reference in wanted.items():
            if digest not in self._criteria:
                version = await self._version(client, reference)
                if version is not None and version.digest != digest:
                    logger.warning("rubric %s is %s, but the service judged by %s", reference, version.digest, digest)

    async def criteria_for_rows(
        self,
        client: AsyncClient,
        column: Sequence[Any],
        default: RubricOrReference | None,
        pins: RubricPins,
        seconds: float,
    ) -> list[tuple[Criterion, ...]]:
        """Look up the criteria that rows will be judged by. This pins their references.

        Args:
            client: a client of the service that will judge.
            column: each row's own rubric, or None.
            default: the rubric of rows without one.
            pins: the pins of the run.
            seconds: the timeout of each lookup.

        Returns:
            The criteria of each row; empty if it has no rubric, or if the rubric cannot be fetched, which is logged.
        """
        rubrics = [
            None if given is not None and is_empty_rubric(given) else parse_rubric(given, drop_nulls=True) or default
            for given in column
        ]
        for reference in dict.fromkeys(rubric for rubric in rubrics if isinstance(rubric, str)):
            if pins.pinned(reference) not in self._digests:
                await self._look_up(client, reference, pins, seconds)
        return [self._criteria_of(rubric, pins) for rubric in rubrics]

    def _criteria_of(self, rubric: RubricOrReference | None, pins: RubricPins) -> tuple[Criterion, ...]:
        if isinstance(rubric, str):
            return self._criteria.get(self._digests.get(pins.pinned(rubric), ""), ())
        return () if rubric is None else rubric.criteria

    async def _look_up(self, client: AsyncClient, reference: str, pins: RubricPins, seconds: float) -> None:
        version = await self._version(client, pins.pinned(reference), seconds)
        if version is not None:
            used = PinnedRubric(name=version.name, version=version.version, digest=version.digest)
            pins.pin_from_answer(reference, version.digest, [used])
            self._digests[pins.pinned(reference)] = version.digest

    async def _version(self, client: AsyncClient, reference: str, seconds: float | None = None) -> RubricVersion | None:
        """Fetch a version and keep its criteria; None, which is logged, if that fails or takes too long."""
        try:
            async with asyncio.timeout(seconds):
                version = await client.rubric(reference)
        except (AdjudgeError, TimeoutError) as error:
            logger.warning("could not fetch the criteria of %s: %s", reference, str(error) or "no answer in time")
            return None
        self._criteria[version.digest] = version.criteria
        return version


@dataclass(frozen=True, slots=True)
class SentResponse:
    """A response as it was sent, with what its steps are.

    Attributes:
        judged: the part of it that is judged. Of a text, all of it, because spans of steps refer to the text as sent.
        turns: the number of its messages of role `assistant`; 1 for a text.
        steps: what its steps are.
    """

    judged: JudgedContent
    turns: int
    steps: StepRule

    @classmethod
    def of(
        cls, response: Response, reasoning: ReasoningPart, steps: StepRule, opens: PromptOpens | None = None
    ) -> "SentResponse":
        """Return a response as sent with these options."""
        if isinstance(response.text, str):
            return cls(judged_content(response, "keep"), 1, steps)
        turns = sum(message.role == "assistant" for message in response.text)
        return cls(judged_content(response, reasoning, opens), turns, steps)


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a call.

    Attributes:
        group: the id of its group, equal on all ranks.
        reward: the returned reward, extra reward functions included; None if a part of it is missing.
        answer: the service's answer: the judge's own reward, verdicts and steps. None if there was none.
        criteria: the criteria that judged the row; None unless the rubric was inline or `needs_criteria` is set.
        failures: the kinds of failures, without duplicates.
        response: the response as it was sent.
        reasoning: the part of the response's thinking that was judged.
        without_rubric: whether the row had no rubric, and was judged by its final answer alone or not at all.
        rubric: the rubric as the user wrote it: a reference before pinning, or an inline rubric.
        fields: the wire fields of its group, except the responses and the rubric.
        steps: what the steps of the response are.
        opens: the tag of the thinking block that the prompt leaves open; None if that is not known.
        component_weights: the weights of the components of its reward, if the mode is linear and components are asked
            for.
    """

    group: str
    reward: float | None
    answer: ResponseReward | None
    criteria: tuple[Criterion, ...] | None
    failures: tuple[str, ...]
    response: Response
    reasoning: ReasoningPart
    without_rubric: bool = False
    rubric: RubricOrReference | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    steps: StepRule = "headings"
    opens: PromptOpens | None = None
    component_weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text that the spans of the answer's steps refer to."""
        return self.sent.judged.text

    @property
    def sent(self) -> SentResponse:
        """The response, with what its steps are."""
        return SentResponse.of(self.response, self.reasoning, self.steps, self.opens)


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """The scored rows of one call, in order."""

    rows: Sequence[ScoredRow]


def judged_reward(answer: ResponseReward | None) -> float | None:
    """Return the judge's reward; None if it is missing or not finite."""
    if answer is None or answer.reward is None or not math.isfinite(answer.reward):
        return None
    return answer.reward


def failed_to_reward(answer: ResponseReward | None) -> bool:
    """Whether judging gave no reward: it is missing, or a failure policy set it to 0."""
    return judged_reward(answer) is None or (answer is not None and answer.policy_applied in ZERO_POLICIES)


def failures_of(answer: ResponseReward | None, kind: str) -> tuple[str, ...]:
    """Return the kinds of failures of a row, without duplicates; `uncertain` if that alone cost its reward.

    Args:
        answer: the row's answer.
        kind: the kind of failure if there is no answer.
    """
    if answer is None:
        return (kind,)
    kinds = failure_kinds(answer)
    if judged_reward(answer) is None and not kinds:
        return ("not_finite" if answer.reward is not None else "unscored",)
    return kinds


ACCEPTED_ANSWER = ResponseReward(reward=1.0, status="scored", verdicts=())
"""The answer of an accepted row without criteria, which is not judged. It passes every gate."""

_MIN_FETCH_TIMEOUT_S = 1.0
"""The least time for fetching criteria, in seconds, even if judging took the whole deadline."""


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """The terms of the weighted sum that makes a reward, and work to do meanwhile.

    Attributes:
        weights: the weights of the rubric's reward and of each extra reward.
        extra_rewards: the extra reward functions.
        arguments: the arguments that TRL calls them with.
        work: work to do, piece by piece, while the judge answers.
    """

    weights: Sequence[float]
    extra_rewards: Sequence[RewardFunction]
    arguments: Mapping[str, Any]
    work: Iterable[None] = ()


@dataclass(frozen=True, slots=True)
class RankResult:
    """The result of a call on this rank.

    Attributes:
        rows: the scored rows.
        row_answers: the judge's answers.
        extra_rewards: the rewards of each extra reward function.
        wait_s: how long judging took, in wall seconds.
    """

    rows: Sequence[ScoredRow]
    row_answers: RowAnswers
    extra_rewards: Sequence[Sequence[float | None]]
    wait_s: float

    @property
    def usage(self) -> Sequence[Usage]:
        """The usage of each completed request."""
        return self.row_answers.usage

    @property
    def last_error(self) -> str | None:
        """The last error message of the service."""
        return self.row_answers.last_error

    @property
    def away(self) -> str | None:
        """Why the judge was away for some rows; None if it was not."""
        return (self.last_error or "it cannot be reached") if self.row_answers.away else None

    @property
    def kinds(self) -> Counter[str]:
        """The number of rows by kind of failure, for rows without a reward from verdicts."""
        return Counter(kind for row in self.rows if failed_to_reward(row.answer) for kind in row.failures)

    @property
    def unscored(self) -> int:
        """The number of rows without a reward from verdicts, including those that a failure policy set to 0."""
        return sum(failed_to_reward(row.answer) for row in self.rows)


async def judge_and_reward(
    client: AsyncClient,
    rows: RowBatch,
    config: ScoringConfig,
    terms: RewardTerms,
    pins: RubricPins,
    cache: RubricCache | None,
    grace_s: float,
    earlier: RankResult | None = None,
) -> RankResult:
    """Judge all rows, and meanwhile call the extra reward functions and do the pending work.

    Args:
        cache: the cache for the criteria that rows were judged by; None if they are not needed.
        earlier: the result of when the judge was away for some rows; only these are judged.

    Raises:
        Exception: the first error of any of them. A failure of the judge is not raised.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    waited = 0.0

    async def judging() -> RowAnswers:
        nonlocal waited
        known = None if earlier is None else earlier.row_answers
        row_answers = await judge(client, rows, config, pins, grace_s=grace_s, earlier=known)
        if cache is not None:
            left = config.deadline_s + grace_s - (loop.time() - began)
            wanted = {digest: pins.pinned(rubric) for digest, rubric in _references(rows, config, row_answers)}
            await gather_with_timeout(max(left, _MIN_FETCH_TIMEOUT_S), [cache.fetch(client, wanted)])
        waited = loop.time() - began
        return row_answers

    extra_rewards: Sequence[Sequence[float | None]]
    if earlier is None:
        row_answers, _, *extra_rewards = await _gather_or_cancel(
            judging(),
            _run_cooperatively(terms.work),
            *(call_extra_reward(function, terms.arguments, len(rows.responses)) for function in terms.extra_rewards),
        )
    else:
        row_answers, extra_rewards, waited = await judging(), earlier.extra_rewards, waited + earlier.wait_s
    scored = _score_rows(rows, config, row_answers, extra_rewards, terms.weights, cache)
    result = RankResult(scored, row_answers, extra_rewards, waited)
    if result.unscored:
        logger.warning(
            "%d of %d responses have no reward from %s (%s)%s",
            result.unscored,
            len(scored),
            client.base_url,
            format_counts(result.kinds) or "nothing failed",
            f"; the last error: {row_answers.last_error}" if row_answers.last_error else "",
        )
    return result


def rank_summary(
    result: RankResult | None,
    error: Exception | None,
    rows: int,
    pins: Mapping[str, str],
    waited_s: float,
    *,
    compares_responses: bool = False,
) -> RankSummary:
    """Summarize the result of N rows, or the error, for the other ranks.

    Args:
        result: the result; None if there is an error.
        error: the error, if any.
        rows: N.
        pins: the pinned rubrics.
        waited_s: how long the rank has waited for the judge, in seconds.
        compares_responses: whether rewards depend on the other responses of a group, which may be split over ranks.
    """
    if result is None:
        away = str(error) if isinstance(error, NotReady) else None
        return RankSummary(rows, fatal=(type(error).__name__, str(error)), pins=pins, away=away, waited_s=waited_s)
    missing = sum(row.reward is None for row in result.rows)
    compared = Counter(row.group for row in result.rows) if compares_responses else Counter[str]()
    return RankSummary(
        rows,
        result.unscored,
        missing,
        result.kinds,
        result.last_error,
        pins=pins,
        compared=compared,
        away=result.away,
        waited_s=waited_s,
    )


async def _run_cooperatively(work: Iterable[None]) -> None:
    """Run work on the event loop, yielding to other ready tasks before each piece."""
    for _ in work:
        await asyncio.sleep(0)


async def _gather_or_cancel(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results of all coroutines; cancel the rest at the first error."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _references(rows: RowBatch, config: ScoringConfig, row_answers: RowAnswers) -> set[tuple[str, str]]:
    """Return pairs of the digest that rows were judged by and the reference that named it."""
    used = set()
    for group in rows.groups:
        rubric = group.rubric or config.rubric
        if isinstance(rubric, str):
            used |= {(digest, rubric) for row in group.rows if (digest := row_answers.digests[row]) is not None}
    return used


def _score_rows(
    rows: RowBatch,
    config: ScoringConfig,
    row_answers: RowAnswers,
    extra_rewards: Sequence[Sequence[float | None]],
    weights: Sequence[float],
    cache: RubricCache | None,
) -> list[ScoredRow]:
    def scored_row(row: int, group: str, answer: ResponseReward | None, **more: Any) -> ScoredRow:
        return ScoredRow(
            group=group,
            reward=weighted_sum([judged_reward(answer), *(other[row] for other in extra_rewards)], weights),
            answer=answer,
            response=rows.responses[row],
            reasoning=config.reasoning,
            steps=config.steps,
            opens=config.prompt_opens,
            **more,
        )

    scored = {
        row: scored_row(row, id_, ACCEPTED_ANSWER, criteria=(), failures=(), without_rubric=True)
        for row, id_ in rows.accepted.items()
    }
    for group in rows.groups:
        rubric = group.rubric or config.rubric
        inline: tuple[Criterion, ...] | None = rubric.criteria if isinstance(rubric, RubricContent) else None
        for row in group.rows:
            answer = row_answers.answers[row]
            scored[row] = scored_row(
                row,
                group.id,
                answer,
                criteria=cache.get(row_answers.digests[row]) if inline is None and cache is not None else inline,
                failures=failures_of(answer, row_answers.kinds[row]),
                without_rubric=row in rows.without_rubric,
                rubric=rubric,
                fields=group.fields,
                component_weights=row_answers.component_weights.get(row, {}),
            )
    return [scored[row] for row in sorted(scored)]
