"""One rank's part of a reward call: its rows judged, and rewarded by other functions meanwhile."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_client import AsyncClient
from trainer_client.trl._judging import RowAnswers, ScoringConfig, gather_with_timeout, judge
from trainer_client.trl._others import RewardFunction, call_extra_reward, weighted_sum
from trainer_client.trl._pins import RubricPins
from trainer_client.trl._ranks import RankSummary, format_counts
from trainer_client.trl._rows import RowBatch
from trainer_client.trl._rubric_cache import RubricCache
from trainer_client.trl._scored import ScoredRow, failed_to_reward, failures_of, judged_reward
from trainer_client.wire import Criterion, ResponseReward, RubricContent, Usage

logger = logging.getLogger(__name__)

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
