"""One rank's part of a reward call: judge its rows, and meanwhile call the extra reward functions.

Extra reward functions are called as TRL calls them, and their rewards added to the rubric's by weight. Criteria of
rubrics given by reference are fetched once.
"""

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_client import AsyncClient
from trainer_client.errors import AdjudgeError, NotReady
from trainer_client.rewards import as_number
from trainer_client.rows.judging import RowAnswers, RubricPins, ScoringConfig, gather_with_timeout, judge
from trainer_client.rows.reading import RowBatch
from trainer_client.rows.tables import RubricOrReference, is_empty_rubric, parse_rubric
from trainer_client.trl.scoring.ranks import RankSummary, format_counts
from trainer_client.trl.scoring.results import ScoredRow, failed_to_reward, failures_of, judged_reward
from trainer_client.wire import Criterion, PinnedRubric, ResponseReward, RubricContent, RubricVersion, Usage

logger = logging.getLogger(__name__)

RewardFunction = Callable[..., Any]
"""A sync or async reward function as TRL takes it, but not a model or the name of one."""


@dataclass(frozen=True, slots=True)
class ExtraRewards:
    """Reward functions, and the weights of the rubric's reward and of each of theirs."""

    functions: tuple[RewardFunction, ...] = ()
    weights: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, functions: Sequence[RewardFunction], weights: Sequence[float] | None) -> "ExtraRewards":
        """Check functions and weights, which are 1 each by default.

        Raises TypeError if one is not a function (reward models must be given to the trainer), and ValueError if there
        is not one finite weight for each.
        """
        torch = sys.modules.get("torch")
        for function in functions:
            if not callable(function) or (torch is not None and isinstance(function, torch.nn.Module)):
                raise TypeError(
                    f"extra_rewards contains a {type(function).__name__}, but takes functions only; give reward models "
                    "to the trainer"
                )
        count = len(functions) + 1
        given = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
        if len(given) != count or not all(map(math.isfinite, given)):
            raise ValueError(
                f"weights is {weights!r}; give {count} finite numbers: the rubric's, then one for each of extra_rewards"
            )
        return cls(tuple(functions), given)


async def call_extra_reward(function: RewardFunction, columns: Mapping[str, Any], rows: int) -> list[float | None]:
    """Call a function and return its N rewards, None where it gives none. Log rewards that are not finite.

    Raises ValueError if it does not return N rewards.
    """
    given = await function(**columns) if _is_async(function) else await asyncio.to_thread(function, **columns)
    name = _name(function)
    if len(given) != rows:
        raise ValueError(f"reward function {name!r} returned {len(given)} rewards for {rows} responses")
    rewards = [None if reward is None else as_number(reward) for reward in given]
    if non_finite := sum(reward is not None and not math.isfinite(reward) for reward in rewards):
        logger.warning(
            "reward function %r did not return a finite number for %d of %d responses; they have no reward",
            name,
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


def _name(function: RewardFunction) -> str:
    """The name under which TRL logs a function."""
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
        """Fetch criteria that are not cached yet, by a reference for each digest.

        Failures are logged, and the next call tries again.
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
        """Look up the criteria that rows will be judged by, which pins their references.

        `column` holds each row's own rubric, or None for the default, and `seconds` limits each lookup. A row has no
        criteria if it has no rubric, or if the rubric cannot be fetched, which is logged.
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


ACCEPTED_ANSWER = ResponseReward(reward=1.0, status="scored", verdicts=())
"""The answer of an accepted row without criteria, which is not judged. It passes every gate."""

_MIN_FETCH_TIMEOUT_S = 1.0
"""The least time for fetching criteria, in seconds, even if judging took the whole deadline."""


class RankBatch:
    """The rows of a call on this rank, and what became of them.

    Args:
        read: the rows.
        config: how they are judged.
        arguments: the arguments that TRL calls reward functions with.
        extra: the extra reward functions, and the weights of all parts of the reward.
        work: makes work to do, piece by piece, while the judge answers.

    Attributes:
        rows: the scored rows, after `score`.
        wait_s: how long judging took, in wall seconds.
    """

    def __init__(
        self,
        read: RowBatch,
        config: ScoringConfig,
        arguments: Mapping[str, Any],
        extra: ExtraRewards,
        work: Callable[[], Iterable[None]] = tuple,
    ) -> None:
        self._read, self._config = read, config
        self._arguments, self._extra, self._work = arguments, extra, work
        self._answers: RowAnswers | None = None
        self._extra_rewards: list[list[float | None]] | None = None
        self.rows: Sequence[ScoredRow] = ()
        self.wait_s = 0.0

    async def score(self, client: AsyncClient, pins: RubricPins, cache: RubricCache | None) -> None:
        """Judge all rows, or those for which the judge was away the last time.

        With a cache, the criteria that rows were judged by are fetched. Raises the first error of judging, of a reward
        function or of the work; a failure of the judge is not raised.
        """
        earlier, self._answers = self._answers, None  # after an error, everything is judged again
        if self._extra_rewards is None:
            work, count = self._work(), len(self._read.responses)
            answers, _, *extra_rewards = await _gather_or_cancel(
                self._judge(client, pins, cache, earlier),
                _run_cooperatively(work),
                *(call_extra_reward(function, self._arguments, count) for function in self._extra.functions),
            )
            self._extra_rewards = extra_rewards
        else:
            answers = await self._judge(client, pins, cache, earlier)
        self._answers = answers
        self.rows = self._scored_rows(answers, self._extra_rewards, cache)
        if unscored := self.unscored:
            logger.warning(
                "%d of %d responses have no reward from %s (%s)%s",
                unscored,
                len(self.rows),
                client.base_url,
                format_counts(self._failures) or "nothing failed",
                f"; the last error: {answers.last_error}" if answers.last_error else "",
            )

    async def _judge(
        self, client: AsyncClient, pins: RubricPins, cache: RubricCache | None, earlier: RowAnswers | None
    ) -> RowAnswers:
        loop, config = asyncio.get_running_loop(), self._config
        began = loop.time()
        answers = await judge(client, self._read, config, pins, earlier)
        if cache is not None:
            left = config.deadline_s + config.grace_s - (loop.time() - began)
            wanted = {digest: pins.pinned(reference) for digest, reference in self._references(answers)}
            await gather_with_timeout(max(left, _MIN_FETCH_TIMEOUT_S), [cache.fetch(client, wanted)])
        self.wait_s += loop.time() - began
        return answers

    def _references(self, answers: RowAnswers) -> set[tuple[str, str]]:
        """Return pairs of the digest that rows were judged by and the reference that named it."""
        used = set()
        for group in self._read.groups:
            rubric = group.rubric or self._config.rubric
            if isinstance(rubric, str):
                used |= {(digest, rubric) for row in group.rows if (digest := answers.rows[row].digest) is not None}
        return used

    def _scored_rows(
        self, answers: RowAnswers, extra_rewards: Sequence[Sequence[float | None]], cache: RubricCache | None
    ) -> list[ScoredRow]:
        read, options = self._read, self._config.options

        def scored_row(row: int, group: str, answer: ResponseReward | None, **more: Any) -> ScoredRow:
            parts = [judged_reward(answer), *(other[row] for other in extra_rewards)]
            return ScoredRow(
                group=group,
                reward=weighted_sum(parts, self._extra.weights),
                answer=answer,
                response=read.responses[row],
                options=options,
                **more,
            )

        scored = {
            row: scored_row(row, id_, ACCEPTED_ANSWER, criteria=(), failures=(), without_rubric=True)
            for row, id_ in read.accepted.items()
        }
        for group in read.groups:
            rubric = group.rubric or self._config.rubric
            inline: tuple[Criterion, ...] | None = rubric.criteria if isinstance(rubric, RubricContent) else None
            for row in group.rows:
                given = answers.rows[row]
                scored[row] = scored_row(
                    row,
                    group.id,
                    given.answer,
                    criteria=cache.get(given.digest) if inline is None and cache is not None else inline,
                    failures=failures_of(given.answer, given.failure),
                    without_rubric=row in read.without_rubric,
                    rubric=rubric,
                    fields=group.fields,
                    component_weights=given.component_weights,
                )
        return [scored[row] for row in sorted(scored)]

    @property
    def usage(self) -> Sequence[Usage]:
        """The usage of each completed request."""
        return () if self._answers is None else self._answers.usage

    @property
    def unscored(self) -> int:
        """The number of rows without a reward from verdicts, including those that a failure policy set to 0."""
        return sum(failed_to_reward(row.answer) for row in self.rows)

    @property
    def _failures(self) -> Counter[str]:
        """The number of these rows by kind of failure."""
        return Counter(kind for row in self.rows if failed_to_reward(row.answer) for kind in row.failures)

    def summary(self, pins: RubricPins, waited_s: float, *, compares_responses: bool) -> RankSummary:
        """Summarize the batch for the other ranks.

        `waited_s` says how long this rank has waited for the judge, and `compares_responses` whether rewards depend on
        the other responses of a group, which may be split over ranks.
        """
        assert self._answers is not None  # `score` raised otherwise
        return RankSummary(
            len(self.rows),
            self.unscored,
            missing=sum(row.reward is None for row in self.rows),
            kinds=self._failures,
            last_error=self._answers.last_error,
            pins=pins.state(),
            compared=Counter(row.group for row in self.rows) if compares_responses else {},
            away=self._answers.away,
            waited_s=waited_s,
        )


def error_summary(error: Exception, rows: int, pins: RubricPins, waited_s: float) -> RankSummary:
    """Summarize for the other ranks why N rows were not scored."""
    away = str(error) if isinstance(error, NotReady) else None
    fatal = type(error).__name__, str(error)
    return RankSummary(rows, fatal=fatal, pins=pins.state(), away=away, waited_s=waited_s)


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
