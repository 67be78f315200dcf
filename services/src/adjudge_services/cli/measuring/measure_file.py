"""Measure the responses of files with a judge, alone or compared in pairs.

`FileMeasuring` turns a file's groups into judged trajectories: final answers compared, rewards by a rubric, steps
judged one by one. `compare_sides` has the judge compare the responses of two files or runs to the same prompts, in both
orders.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from adjudge_services.cli.measuring.measure_ledger import RecordedResponse
from adjudge_services.cli.scoring.score_file import GroupLine, MeasuredLine, score_groups
from judge_server.evaluation.measuring.embeddings import EmbeddingEndpoint, semantic_distances
from judge_server.evaluation.measuring.trajectories import (
    STEP_CRITERION,
    LoopLimits,
    ProblemResponses,
    Trajectory,
    by_kind,
    satisfied,
    step_groups,
)
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.errors import ConnectionFailed
from trainer_client.measures import LoopSigns, loops, self_bleu
from trainer_client.text.thinking import judged_content
from trainer_client.wire import (
    NEEDS_NO_RUBRIC,
    Comparison,
    Criterion,
    CriterionKind,
    Group,
    Pair,
    Prompt,
    ResponseReward,
    RewardMode,
)
from trainer_client.wire.groups import ResponseLike, as_response

StepScores = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class FileMeasuring:
    """How the lines of a file are judged and measured.

    Attributes:
        client: a client of the service.
        judge: the judge's name; None for the service's default.
        rubric: the rubric of lines without one of their own; without any rubric a line has no rewards, unless the mode
            needs none.
        mode: the mode of the rewards.
        steps: whether to judge each step's correctness.
        concurrency: responses to judge at a time.
        deadline_s: seconds that one response may take.
        limits: the limits from which a text counts as looping.
        embeddings: the endpoint for the semantic distance; None skips it.
    """

    client: AsyncClient
    judge: str | None
    rubric: Any
    mode: RewardMode
    steps: bool
    concurrency: int
    deadline_s: float
    limits: LoopLimits
    embeddings: EmbeddingEndpoint | None = None

    async def measure(self, lines: Sequence[MeasuredLine]) -> tuple[list[ProblemResponses], dict[int, str]]:
        """Judge lines; return the problem of each line, and the reasons of the lines that could not be judged.

        Final answers are compared with the `ground_truth` of lines that have one. A line that could not be judged keeps
        the figures that need no judge.

        Raises:
            ConnectionFailed: the service cannot be reached.
        """
        failed: dict[int, str] = {}
        correct = await self._scored([line for line in lines if line.group.ground_truth], {"mode": "outcome"}, failed)
        needs_rubric = self.mode not in NEEDS_NO_RUBRIC or self.mode == "outcome"
        rewarded = [line for line in lines if self._rubric_of(line) is not None or not needs_rubric]
        rewards = await self._scored(rewarded, {"mode": self.mode, "rubric": self.rubric}, failed)
        criteria = await self._criteria(rewarded, failed)
        steps = await self._steps(lines, failed) if self.steps else {}
        scored, problems = (correct, rewards), []
        for line in lines:
            texts = _texts(line.group)
            trajectories = []
            for place, text in enumerate(texts):
                outcome, by_rubric = (found[line.number][place] if line.number in found else None for found in scored)
                one = _trajectory(
                    loops(text, **self.limits._asdict()), outcome, by_rubric, criteria.get(line.number, {})
                )
                likelihoods = None if line.likelihoods is None else line.likelihoods[place]
                trajectories.append(replace(one, steps=steps.get((line.number, place)), likelihoods=likelihoods))
            problems.append(ProblemResponses(tuple(trajectories), self_bleu(texts) if len(texts) > 1 else None))
        if self.embeddings is not None:
            all_texts = [_texts(line.group) for line in lines]
            problems, why = await with_distances(self.embeddings, problems, all_texts, self.concurrency)
            failed = {lines[place].number: reason for place, reason in why.items()} | failed
        return problems, failed

    def _rubric_of(self, line: MeasuredLine) -> Any:
        return line.group.rubric or self.rubric

    async def _scored(
        self, lines: Sequence[MeasuredLine], options: dict[str, Any], failed: dict[int, str]
    ) -> dict[int, tuple[ResponseReward, ...]]:
        asked = options | {"judge": self.judge, "deadline_s": self.deadline_s}
        scored = await score_groups(self.client, lines, asked, concurrency=self.concurrency, advance=lambda: None)
        for number, reason in scored.refused.items():
            failed.setdefault(number, reason)
        return {number: group.responses for number, group in scored.groups.items()}

    async def _criteria(
        self, lines: Sequence[MeasuredLine], failed: dict[int, str]
    ) -> dict[int, Mapping[str, Criterion]]:
        """The criteria by id of each line's rubric; a referenced rubric is fetched once."""
        found: dict[int, Mapping[str, Criterion]] = {}
        fetched: dict[str, Sequence[Criterion]] = {}
        for line in lines:
            rubric = self._rubric_of(line)
            try:
                if isinstance(rubric, str) and rubric not in fetched:
                    fetched[rubric] = (await self.client.rubric(rubric)).criteria
            except AdjudgeError as error:
                failed.setdefault(line.number, str(error))
                continue
            criteria = () if rubric is None else fetched[rubric] if isinstance(rubric, str) else rubric.criteria
            found[line.number] = {each.id: each for each in criteria}
        return found

    async def _steps(self, lines: Sequence[MeasuredLine], failed: dict[int, str]) -> dict[tuple[int, int], StepScores]:
        slots = asyncio.Semaphore(self.concurrency)
        places = [(line, place) for line in lines for place in range(len(line.group.responses))]
        results = await asyncio.gather(*(self._steps_of(line.group, place, slots) for line, place in places))
        found: dict[tuple[int, int], StepScores] = {}
        for (line, place), result in zip(places, results, strict=True):
            if isinstance(result, AdjudgeError):
                failed.setdefault(line.number, str(result))
            else:
                found[line.number, place] = result
        return found

    async def _steps_of(self, group: Group, place: int, slots: asyncio.Semaphore) -> StepScores | AdjudgeError:
        context = {"ground_truth": group.ground_truth, "reference_answer": group.reference_answer}
        groups = step_groups(_prompt(group), _text(group, place, strip=True), **context)
        if not groups:
            return ()
        async with slots:
            try:
                answer = await self.client.verdicts(
                    groups, {"criteria": [STEP_CRITERION]}, judge=self.judge, deadline_s=self.deadline_s
                )
            except ConnectionFailed:
                raise
            except AdjudgeError as error:
                return error
        return tuple([verdict.score for each in answer.groups for verdict in each.responses[0].verdicts])


async def with_distances(
    embeddings: EmbeddingEndpoint,
    problems: Sequence[ProblemResponses],
    texts: Sequence[Sequence[str]],
    concurrency: int,
) -> tuple[list[ProblemResponses], dict[int, str]]:
    """Add the semantic distance of each problem's texts; also return failures by position. Closes `embeddings`."""
    try:
        found = await semantic_distances(embeddings, texts, concurrency=concurrency)
    finally:
        await embeddings.close()
    failed = {place: result for place, result in enumerate(found) if isinstance(result, str)}
    measured = [None if isinstance(result, str) else result for result in found]
    pairs = zip(problems, measured, strict=True)
    return [replace(problem, semantic_distance=distance) for problem, distance in pairs], failed


def _trajectory(
    looping: LoopSigns,
    outcome: ResponseReward | None,
    by_rubric: ResponseReward | None,
    criteria: Mapping[str, Criterion],
) -> Trajectory:
    verdicts = () if by_rubric is None else by_rubric.verdicts
    scores = [(*_kind(criteria.get(verdict.criterion)), verdict.score) for verdict in verdicts]
    return Trajectory(
        looping,
        correct=None if outcome is None else outcome.reward,
        reward=None if by_rubric is None else by_rubric.reward,
        satisfied=satisfied(scores),
        by_kind=by_kind(scores),
    )


def _kind(criterion: Criterion | None) -> tuple[CriterionKind, float]:
    """A criterion's kind and weight; verdicts of mode `likert` have no criterion."""
    return ("point", 1.0) if criterion is None else (criterion.kind, criterion.weight)


def _texts(group: Group) -> list[str]:
    return [_text(group, place, strip=False) for place in range(len(group.responses))]


def _text(group: Group, place: int, *, strip: bool) -> str:
    return judged_content(as_response(group.responses[place]), "strip" if strip else "keep").text


def _prompt(group: Group) -> Any:
    prompt = group.prompt
    return prompt if isinstance(prompt, str) else [message.model_dump(exclude_none=True) for message in prompt]


@dataclass(frozen=True, slots=True)
class PromptResponses:
    """One side's responses to a prompt; `context` is what else the judge gets: grounding, reference answer, rubric."""

    prompt: Prompt
    responses: tuple[ResponseLike, ...]
    context: dict[str, Any]

    @property
    def key(self) -> str:
        """The key by which the two sides' prompts are matched."""
        value = self.prompt if isinstance(self.prompt, str) else [m.model_dump(mode="json") for m in self.prompt]
        return json.dumps(value)


class WinRateResult(NamedTuple):
    """The comparisons of each problem, the number of prompts that only one side has, and the errors."""

    problems: list[tuple[Comparison, ...]]
    unmatched: int
    failed: list[str]


def side_of_lines(lines: Sequence[GroupLine]) -> list[PromptResponses]:
    """Make a side from a file's groups."""
    names = ("grounding", "reference_answer", "rubric")
    return [
        PromptResponses(
            line.group.prompt,
            line.group.responses,
            {name: value for name in names if (value := getattr(line.group, name)) is not None},
        )
        for line in lines
    ]


def side_of_run(responses: Sequence[RecordedResponse], run: str) -> list[PromptResponses]:
    """Make a side from a run that was read with its texts.

    Raises:
        ValueError: the ledger does not keep the run's texts.
    """
    grouped: dict[tuple[int | None, str], list[RecordedResponse]] = {}
    for one in responses:
        if one.prompt is None or one.text is None:
            raise ValueError(
                f"the ledger keeps no texts of run {run!r} (ADJUDGE_LEDGER=verdicts), and a comparison needs them; "
                "compare files of responses instead"
            )
        grouped.setdefault((one.step, one.problem), []).append(one)
    return [
        PromptResponses(members[0].prompt or "", tuple([one.text or "" for one in members]), {})
        for members in grouped.values()
    ]


def pairs_of(a: Sequence[PromptResponses], b: Sequence[PromptResponses]) -> tuple[list[tuple[Pair, ...]], int]:
    """Pair the first response of `a` to a prompt with the first of `b`, the second with the second, and so on.

    Repeated prompts are matched in order. The context of a pair is that of `a`.

    Returns:
        The pairs of each problem, and the number of prompts without a match on the other side.
    """
    others: dict[str, list[PromptResponses]] = {}
    for one in reversed(b):
        others.setdefault(one.key, []).append(one)
    problems = []
    for number, one in enumerate(a):
        partners = others.get(one.key)
        if partners:
            both = zip(one.responses, partners.pop().responses, strict=False)
            pairs = [
                Pair.model_validate({"id": f"{number}-{place}", "prompt": one.prompt, "a": x, "b": y, **one.context})
                for place, (x, y) in enumerate(both)
            ]
            problems.append(tuple(pairs))
    return problems, len(a) + len(b) - 2 * len(problems)


async def compare_sides(
    client: AsyncClient,
    a: Sequence[PromptResponses],
    b: Sequence[PromptResponses],
    asked: Mapping[str, Any],
    concurrency: int,
) -> WinRateResult:
    """Have the judge compare two sides, with one request per problem.

    Args:
        client: a client of the service.
        a, b: the sides; a win is one of `a`.
        asked: the options of `AsyncClient.compare`.
        concurrency: problems to compare at a time.

    Raises:
        ConnectionFailed: the service cannot be reached.
    """
    problems, unmatched = pairs_of(a, b)
    slots = asyncio.Semaphore(concurrency)

    async def one(pairs: tuple[Pair, ...]) -> tuple[Comparison, ...] | AdjudgeError:
        async with slots:
            try:
                answer = await client.compare(pairs, **asked)
            except ConnectionFailed:
                raise
            except AdjudgeError as error:
                return error
        return answer.pairs

    answers = await asyncio.gather(*(one(pairs) for pairs in problems))
    done = [each for each in answers if not isinstance(each, AdjudgeError)]
    failed = [str(each) for each in answers if isinstance(each, AdjudgeError)]
    failed += [
        f"pair {pair.id}: {order.failure.detail}"
        for pairs in done
        for pair in pairs
        if pair.score is None
        for order in pair.orders
        if order.failure is not None
    ]
    return WinRateResult(done, unmatched, failed)
