"""Score one rank's part of a reward call: judge its rows and add other reward functions.

One rank's part of a reward call: its rows judged, and rewarded by other functions meanwhile.

What a reward call saw, row by row: the answer, the reward made of it, and what went wrong.

The reward functions that a rubric reward is added to: called as TRL calls them, and read number by number.

The criteria behind the digests that answers name, each fetched once.
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
from trainer_client._columns import RubricOrReference, is_empty_rubric, parse_rubric
from trainer_client._criteria import as_number
from trainer_client.errors import AdjudgeError
from trainer_client.thinking import judged_content
from trainer_client.trl._dataset import RowBatch
from trainer_client.trl._distributed import RankSummary, format_counts
from trainer_client.trl._judging import RowAnswers, RubricPins, ScoringConfig, gather_with_timeout, judge
from trainer_client.wire import (
    ZERO_POLICIES,
    Criterion,
    PinnedRubric,
    ReasoningPart,
    Response,
    ResponseReward,
    RubricContent,
    Usage,
)

RewardFunction = Callable[..., Any]
"""A sync or async reward function as TRL takes it; no model and no name of one."""

logger = logging.getLogger(__name__)


def check_reward_functions(functions: Sequence[RewardFunction], weights: Sequence[float] | None) -> tuple[float, ...]:
    """Give the weights of the rubric and of these functions, 1 each unless given.

    Raises:
        TypeError: one is not a function; models go to the trainer.
        ValueError: there is not one finite weight for each.
    """
    torch = sys.modules.get("torch")
    for function in functions:
        if not callable(function) or (torch is not None and isinstance(function, torch.nn.Module)):
            raise TypeError(
                f"others has a {type(function).__name__}, and takes functions only; give reward models to the trainer"
            )
    count = len(functions) + 1
    given = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
    if len(given) != count or not all(map(math.isfinite, given)):
        raise ValueError(f"weights is {weights!r}; give {count} finite numbers: the rubric's, then one for each other")
    return given


async def call_extra_reward(function: RewardFunction, columns: Mapping[str, Any], rows: int) -> list[float | None]:
    """Give a function's rewards of N rows; None where it gives none, and what is not a finite number is told.

    Raises:
        ValueError: it does not give N.
    """
    given = await function(**columns) if _is_async(function) else await asyncio.to_thread(function, **columns)
    if len(given) != rows:
        raise ValueError(f"reward function {function_name(function)!r} gave {len(given)} rewards for {rows} responses")
    rewards = [None if reward is None else as_number(reward) for reward in given]
    non_finite = sum(reward is not None and not math.isfinite(reward) for reward in rewards)
    if non_finite:
        logger.warning(
            "reward function %r gave no finite number for %d of %d responses; they have no reward",
            function_name(function),
            non_finite,
            rows,
        )
    return rewards


def weighted_sum(parts: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Add the parts of a reward; None where one is missing, or the sum is not a finite number."""
    total = 0.0
    for part, weight in zip(parts, weights, strict=True):
        if part is None:
            return None
        total += weight * part
    return total if math.isfinite(total) else None


def function_name(function: RewardFunction) -> str:
    """Name a function as TRL does."""
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
    """Criteria by digest. Digests name immutable contents, so that nothing here grows old."""

    def __init__(self) -> None:
        self._criteria: dict[str, tuple[Criterion, ...]] = {}
        self._digests: dict[str, str] = {}

    def get(self, digest: str | None) -> tuple[Criterion, ...] | None:
        """Give the criteria, or None where they were not fetched."""
        return self._criteria.get(digest or "")

    async def fetch(self, client: AsyncClient, wanted: Mapping[str, str]) -> None:
        """Fetch what is not there yet; where that fails it is said, and tried again by the next call.

        Args:
            client: of the service that judged.
            wanted: a reference for each digest.
        """
        for digest, reference in wanted.items():
            if digest in self._criteria:
                continue
            try:
                found = await client.rubric(reference)
            except AdjudgeError as error:
                logger.warning("the criteria of %s could not be fetched: %s", reference, error)
                continue
            if found.digest == digest:
                self._criteria[digest] = found.criteria
            else:
                logger.warning("rubric %s is %s, and the service judged by %s", reference, found.digest, digest)

    async def criteria_for_rows(
        self,
        client: AsyncClient,
        column: Sequence[Any],
        default: RubricOrReference | None,
        pins: RubricPins,
        seconds: float,
    ) -> list[tuple[Criterion, ...]]:
        """Give the criteria that rows will be judged by, before they are; a reference is pinned by this.

        Args:
            client: of the service that will judge.
            column: each row's own rubric, or None.
            default: the rubric of rows without one.
            pins: of the run.
            seconds: how long each reference may take.

        Returns:
            The criteria of each row; none where it has no rubric, or where that cannot be fetched, which is said.
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
        try:
            async with asyncio.timeout(seconds):
                found = await client.rubric(pins.pinned(reference))
        except (AdjudgeError, TimeoutError) as error:
            logger.warning("the criteria of %s could not be fetched: %s", reference, error or "no answer in time")
            return
        pins.pin_from_answer(
            reference, found.digest, [PinnedRubric(name=found.name, version=found.version, digest=found.digest)]
        )
        self._criteria[found.digest] = found.criteria
        self._digests[pins.pinned(reference)] = found.digest


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a call.

    Attributes:
        group: the id of its group, equal on all ranks.
        reward: as it was returned, other reward functions included; None where a part of it is missing.
        answer: the service's: the judge's own reward, verdicts, steps. None where there was none.
        criteria: what it was judged by, where that is known: the rubric was given inline, or `needs_criteria` is set.
        failures: the kinds of what went wrong, each once; empty where nothing did.
        response: as it was sent.
        reasoning: what of the response's thinking was judged.
        without_rubric: whether it had none, and was judged by its final answer alone or not at all.
        rubric: what it was judged by, as its user wrote it: a reference that is not pinned, or the rubric itself.
        fields: its group's fields on the wire, but the responses and the rubric.
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

    @property
    def text(self) -> str:
        """What the spans of the answer's steps count in."""
        return judged_text(self.response, self.reasoning)


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """What one call saw, in the order of its rows."""

    rows: Sequence[ScoredRow]


def judged_text(response: Response, reasoning: ReasoningPart) -> str:
    """Give what the steps' spans of an answer to a response count in."""
    return response.text if isinstance(response.text, str) else judged_content(response, reasoning).text


def judged_reward(answer: ResponseReward | None) -> float | None:
    """Give the judge's reward; None where there is none, or no finite number."""
    if answer is None or answer.reward is None or not math.isfinite(answer.reward):
        return None
    return answer.reward


def failed_to_reward(answer: ResponseReward | None) -> bool:
    """Whether the judge's verdicts made no reward: there is none, or a failure policy made it 0."""
    return judged_reward(answer) is None or (answer is not None and answer.policy_applied in ZERO_POLICIES)


def failures_of(answer: ResponseReward | None, kind: str) -> tuple[str, ...]:
    """Name what went wrong with a row, each kind once.

    Args:
        answer: the row's.
        kind: why there is none.
    """
    if answer is None:
        return (kind,)
    kinds = dict.fromkeys(v.failure.kind if v.failure else "engine" for v in answer.verdicts if v.status == "failed")
    if judged_reward(answer) is None and not kinds:
        return ("not_finite" if answer.reward is not None else "unscored",)
    return tuple(kinds)


ACCEPTED_ANSWER = ResponseReward(reward=1.0, status="scored", verdicts=())
"""The answer of a row without criteria, which nothing judges: every gate lets it pass."""

_MIN_FETCH_TIMEOUT_S = 1.0
"""How long criteria may take to come where judging took all the time there was."""


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """What a reward is the weighted sum of, and what is done beside it.

    Attributes:
        weights: of the rubric's reward and of each other function's.
        others: these functions.
        arguments: what TRL calls them with.
        work: what else is done while the judge is waited for, piece by piece.
    """

    weights: Sequence[float]
    extra_rewards: Sequence[RewardFunction]
    arguments: Mapping[str, Any]
    work: Iterable[None] = ()


@dataclass(frozen=True, slots=True)
class RankResult:
    """What came of a call on this rank. `wait_s` is in wall seconds."""

    rows: Sequence[ScoredRow]
    usage: Sequence[Usage]
    last_error: str | None
    wait_s: float

    @property
    def kinds(self) -> Counter[str]:
        """What went wrong with the rows that verdicts made no reward of, by rows."""
        return Counter(kind for row in self.rows if failed_to_reward(row.answer) for kind in row.failures)

    @property
    def unscored(self) -> int:
        """How many rows have no reward that verdicts made; those that a failure policy made 0 are among them."""
        return sum(failed_to_reward(row.answer) for row in self.rows)


async def judge_and_reward(
    client: AsyncClient,
    rows: RowBatch,
    config: ScoringConfig,
    terms: RewardTerms,
    pins: RubricPins,
    cache: RubricCache | None,
    grace_s: float,
) -> RankResult:
    """Judge all rows, call the other functions meanwhile, and do the work that there is.

    Args:
        cache: where criteria are looked up that rows were judged by, if they are needed.

    Raises:
        Exception: the first that any of them raises; that a judge failed is none.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    waited = 0.0

    async def judging() -> RowAnswers:
        nonlocal waited
        row_answers = await judge(client, rows, config, pins, grace_s=grace_s)
        if cache is not None:
            left = config.deadline_s + grace_s - (loop.time() - began)
            wanted = {digest: pins.pinned(rubric) for digest, rubric in _references(rows, config, row_answers)}
            await gather_with_timeout(max(left, _MIN_FETCH_TIMEOUT_S), [cache.fetch(client, wanted)])
        waited = loop.time() - began
        return row_answers

    row_answers, _, *extra_rewards = await _gather_or_cancel(
        judging(),
        _run_cooperatively(terms.work),
        *(call_extra_reward(function, terms.arguments, len(rows.responses)) for function in terms.extra_rewards),
    )
    scored = _score_rows(rows, config, row_answers, extra_rewards, terms.weights, cache)
    result = RankResult(scored, row_answers.usage, row_answers.last_error, waited)
    if result.unscored or row_answers.surplus:
        logger.warning(
            "%d of %d responses have no reward from %s (%s)%s%s",
            result.unscored,
            len(scored),
            client.base_url,
            format_counts(result.kinds) or "nothing failed",
            f"; it sent {row_answers.surplus} rewards that were not asked for" if row_answers.surplus else "",
            f"; the last error: {row_answers.last_error}" if row_answers.last_error else "",
        )
    return result


def rank_summary(result: RankResult | None, error: Exception | None, rows: int, pins: Mapping[str, str]) -> RankSummary:
    """Say what the other ranks are told: what came of N rows here, or the error that came instead."""
    if result is None:
        return RankSummary(rows, fatal=(type(error).__name__, str(error)), pins=pins)
    return RankSummary(rows, result.unscored, result.kinds, result.last_error, pins=pins)


async def _run_cooperatively(work: Iterable[None]) -> None:
    """Do work on the event loop, everything else that is ready going before each piece."""
    for _ in work:
        await asyncio.sleep(0)


async def _gather_or_cancel(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Give what all come to; the first error ends the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _references(rows: RowBatch, config: ScoringConfig, row_answers: RowAnswers) -> set[tuple[str, str]]:
    """Give the digests that rows were judged by and the references that named them."""
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
    scored: list[ScoredRow | None] = [None] * len(rows.responses)
    for row, id_ in rows.accepted.items():
        scored[row] = ScoredRow(
            group=id_,
            reward=weighted_sum([judged_reward(ACCEPTED_ANSWER), *(other[row] for other in extra_rewards)], weights),
            answer=ACCEPTED_ANSWER,
            criteria=(),
            failures=(),
            response=rows.responses[row],
            reasoning=config.reasoning,
            without_rubric=True,
        )
    for group in rows.groups:
        rubric = group.rubric or config.rubric
        inline: tuple[Criterion, ...] | None = rubric.criteria if isinstance(rubric, RubricContent) else None
        for row in group.rows:
            answer = row_answers.answers[row]
            scored[row] = ScoredRow(
                group=group.id,
                reward=weighted_sum([judged_reward(answer), *(other[row] for other in extra_rewards)], weights),
                answer=answer,
                criteria=cache.get(row_answers.digests[row]) if inline is None and cache is not None else inline,
                failures=failures_of(answer, row_answers.kinds[row]),
                response=rows.responses[row],
                reasoning=config.reasoning,
                without_rubric=row in rows.without_rubric,
                rubric=rubric,
                fields=group.fields,
            )
    return [row for row in scored if row is not None]
