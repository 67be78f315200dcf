"""One rank's part of a reward call: its rows judged, and rewarded by other functions meanwhile."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_client import AsyncClient
from trainer_client.trl._judging import Ask, Judged, judge, within
from trainer_client.trl._others import RewardFunction, call_other, weighted_sum
from trainer_client.trl._pins import Pins
from trainer_client.trl._ranks import Tally, in_words
from trainer_client.trl._rows import Rows
from trainer_client.trl._rubric_cache import RubricCache
from trainer_client.trl._scored import ScoredRow, failed_to_reward, failures_of, judged_reward
from trainer_client.wire import Criterion, ResponseReward, RubricContent, Usage

logger = logging.getLogger(__name__)

ACCEPTED = ResponseReward(reward=1.0, status="scored", verdicts=())
"""The answer of a row without criteria, which nothing judges: every gate lets it pass."""

_LAST_SECONDS = 1.0
"""How long criteria may take to come where judging took all the time there was."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a reward is the weighted sum of, and what is done beside it.

    Attributes:
        weights: of the rubric's reward and of each other function's.
        others: these functions.
        arguments: what TRL calls them with.
        work: what else is done while the judge is waited for, piece by piece.
    """

    weights: Sequence[float]
    others: Sequence[RewardFunction]
    arguments: Mapping[str, Any]
    work: Iterable[None] = ()


@dataclass(frozen=True, slots=True)
class Local:
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


async def score(
    client: AsyncClient, rows: Rows, ask: Ask, parts: Parts, pins: Pins, cache: RubricCache | None, grace_s: float
) -> Local:
    """Judge all rows, call the other functions meanwhile, and do the work that there is.

    Args:
        cache: where criteria are looked up that rows were judged by, if they are needed.

    Raises:
        Exception: the first that any of them raises; that a judge failed is none.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    waited = 0.0

    async def judging() -> Judged:
        nonlocal waited
        judged = await judge(client, rows, ask, pins, grace_s=grace_s)
        if cache is not None:
            left = ask.deadline_s + grace_s - (loop.time() - began)
            wanted = {digest: pins.pinned(rubric) for digest, rubric in _references(rows, ask, judged)}
            await within(max(left, _LAST_SECONDS), [cache.fetch(client, wanted)])
        waited = loop.time() - began
        return judged

    judged, _, *others = await _all(
        judging(),
        _piece_by_piece(parts.work),
        *(call_other(function, parts.arguments, len(rows.responses)) for function in parts.others),
    )
    scored = _rows(rows, ask, judged, others, parts.weights, cache)
    local = Local(scored, judged.usage, judged.last_error, waited)
    if local.unscored or judged.surplus:
        logger.warning(
            "%d of %d responses have no reward from %s (%s)%s%s",
            local.unscored,
            len(scored),
            client.base_url,
            in_words(local.kinds) or "nothing failed",
            f"; it sent {judged.surplus} rewards that were not asked for" if judged.surplus else "",
            f"; the last error: {judged.last_error}" if judged.last_error else "",
        )
    return local


def tally_of(local: Local | None, error: Exception | None, rows: int, pins: Mapping[str, str]) -> Tally:
    """Say what the other ranks are told: what came of N rows here, or the error that came instead."""
    if local is None:
        return Tally(rows, fatal=(type(error).__name__, str(error)), pins=pins)
    return Tally(rows, local.unscored, local.kinds, local.last_error, pins=pins)


async def _piece_by_piece(work: Iterable[None]) -> None:
    """Do work on the event loop, everything else that is ready going before each piece."""
    for _ in work:
        await asyncio.sleep(0)


async def _all(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Give what all come to; the first error ends the rest."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _references(rows: Rows, ask: Ask, judged: Judged) -> set[tuple[str, str]]:
    """Give the digests that rows were judged by and the references that named them."""
    used = set()
    for group in rows.groups:
        rubric = group.rubric or ask.rubric
        if isinstance(rubric, str):
            used |= {(digest, rubric) for row in group.rows if (digest := judged.digests[row]) is not None}
    return used


def _rows(
    rows: Rows,
    ask: Ask,
    judged: Judged,
    others: Sequence[Sequence[float | None]],
    weights: Sequence[float],
    cache: RubricCache | None,
) -> list[ScoredRow]:
    scored: list[ScoredRow | None] = [None] * len(rows.responses)
    for row, id_ in rows.accepted.items():
        scored[row] = ScoredRow(
            group=id_,
            reward=weighted_sum([judged_reward(ACCEPTED), *(other[row] for other in others)], weights),
            answer=ACCEPTED,
            criteria=(),
            failures=(),
            response=rows.responses[row],
            reasoning=ask.reasoning,
            without_rubric=True,
        )
    for group in rows.groups:
        rubric = group.rubric or ask.rubric
        inline: tuple[Criterion, ...] | None = rubric.criteria if isinstance(rubric, RubricContent) else None
        for row in group.rows:
            answer = judged.answers[row]
            scored[row] = ScoredRow(
                group=group.id,
                reward=weighted_sum([judged_reward(answer), *(other[row] for other in others)], weights),
                answer=answer,
                criteria=cache.get(judged.digests[row]) if inline is None and cache is not None else inline,
                failures=failures_of(answer, judged.kinds[row]),
                response=rows.responses[row],
                reasoning=ask.reasoning,
                without_rubric=row in rows.without_rubric,
                rubric=rubric,
                fields=group.fields,
            )
    return [row for row in scored if row is not None]
