"""Measure the responses of files with a judge, alone or compared in pairs.

`measure_lines` turns a file's groups into judged trajectories: final answers compared, rewards by a rubric, steps
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
from judge_server.measuring.embeddings import EmbeddingEndpoint, semantic_distances
from judge_server.measuring.trajectories import (
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
from trainer_client.measures import self_bleu
from trainer_client.text.loops import loops
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


async def measure_lines(
    client: AsyncClient,
    lines: Sequence[MeasuredLine],
    rubric: Any,
    *,
    mode: RewardMode,
    steps: bool,
    concurrency: int,
    deadline_s: float,
    limits: LoopLimits,
    embeddings: EmbeddingEndpoint | None = None,
    judge: str | None = None,
) -> tuple[list[ProblemResponses], dict[int, str]]:
    """Judge lines; return the problem of each line, and the reasons of the lines that could not be judged.

    A line that could not be judged keeps the figures that need no judge.

    Args:
        client: a client of the service.
        lines: the groups; final answers are compared with the `ground_truth` of those that have one.
        rubric: the rubric of lines without one of their own; without any rubric a line has no rewards, unless the mode
            needs none.
        mode: the mode of the rewards.
        steps: whether to judge each step's correctness.
        concurrency: responses to judge at a time.
        deadline_s: seconds that one response may take.
        limits: the limits from which a text counts as looping.
        embeddings: the endpoint for the semantic distance; None skips it.
        judge: the judge's name; None for the service's default.

    Raises:
        ConnectionFailed: the service cannot be reached.
    """
    failed: dict[int, str] = {}
    known = [line for line in lines if line.group.ground_truth]
    correct = await _scored(client, known, {"mode": "outcome", "judge": judge}, concurrency, deadline_s, failed)
    lines_with_rubric = [
        line
        for line in lines
        if rubric is not None or line.group.rubric is not None or (mode in NEEDS_NO_RUBRIC and mode != "outcome")
    ]
    options = {"mode": mode, "rubric": rubric, "judge": judge}
    rewards = await _scored(client, lines_with_rubric, options, concurrency, deadline_s, failed)
    criteria = await _criteria(client, lines_with_rubric, rubric, failed)
    found = await _steps(client, lines, judge, concurrency, deadline_s, failed) if steps else {}
    problems = [_problem(line, correct, rewards, criteria.get(line.number, {}), found, limits) for line in lines]
    if embeddings is not None:
        texts = [_texts(line.group) for line in lines]
        problems, why = await with_distances(embeddings, problems, texts, concurrency)
        for place, reason in why.items():
            failed.setdefault(lines[place].number, reason)
    return problems, failed


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


async def _scored(
    client: AsyncClient,
    lines: Sequence[MeasuredLine],
    options: dict[str, Any],
    concurrency: int,
    deadline_s: float,
    failed: dict[int, str],
) -> dict[int, tuple[ResponseReward, ...]]:
    if not lines:
        return {}
    asked = options | {"deadline_s": deadline_s}
    scored = await score_groups(client, lines, asked, concurrency=concurrency, advance=lambda: None)
    if scored.unreachable is not None:
        raise scored.unreachable
    for number, reason in scored.refused.items():
        failed.setdefault(number, reason)
    answered = [line.number for line in lines if line.number not in scored.refused]
    return {number: group.responses for number, group in zip(answered, scored.groups, strict=True)}


async def _criteria(
    client: AsyncClient, lines: Sequence[MeasuredLine], shared: Any, failed: dict[int, str]
) -> dict[int, Mapping[str, Criterion]]:
    """The criteria by id of each line's rubric; a referenced rubric is fetched once."""
    found: dict[int, Mapping[str, Criterion]] = {}
    fetched: dict[str, Mapping[str, Criterion]] = {}
    for line in lines:
        rubric = line.group.rubric or shared
        try:
            if isinstance(rubric, str):
                if rubric not in fetched:
                    fetched[rubric] = {each.id: each for each in (await client.rubric(rubric)).criteria}
                found[line.number] = fetched[rubric]
            elif rubric is not None:
                found[line.number] = {each.id: each for each in rubric.criteria}
        except AdjudgeError as error:
            failed.setdefault(line.number, str(error))
    return found


async def _steps(
    client: AsyncClient,
    lines: Sequence[MeasuredLine],
    judge: str | None,
    concurrency: int,
    deadline_s: float,
    failed: dict[int, str],
) -> dict[tuple[int, int], StepScores]:
    slots = asyncio.Semaphore(concurrency)

    async def one(line: MeasuredLine, place: int) -> StepScores | AdjudgeError:
        group = line.group
        groups = step_groups(
            _prompt(group),
            _text(group, place, strip=True),
            ground_truth=group.ground_truth,
            reference_answer=group.reference_answer,
        )
        if not groups:
            return ()
        async with slots:
            try:
                rubric = {"criteria": [STEP_CRITERION]}
                answer = await client.verdicts(groups, rubric, judge=judge, deadline_s=deadline_s)
            except ConnectionFailed:
                raise
            except AdjudgeError as error:
                return error
        return tuple([verdict.score for each in answer.groups for verdict in each.responses[0].verdicts])

    places = [(line, place) for line in lines for place in range(len(line.group.responses))]
    found: dict[tuple[int, int], StepScores] = {}
    for (line, place), result in zip(places, await asyncio.gather(*(one(*at) for at in places)), strict=True):
        if isinstance(result, AdjudgeError):
            failed.setdefault(line.number, str(result))
        else:
            found[line.number, place] = result
    return found


def _problem(
    line: MeasuredLine,
    correct: dict[int, tuple[ResponseReward, ...]],
    rewards: dict[int, tuple[ResponseReward, ...]],
    criteria: Mapping[str, Criterion],
    steps: dict[tuple[int, int], StepScores],
    limits: LoopLimits,
) -> ProblemResponses:
    trajectories = []
    texts = _texts(line.group)
    for place, text in enumerate(texts):
        outcome = correct[line.number][place] if line.number in correct else None
        by_rubric = rewards[line.number][place] if line.number in rewards else None
        verdicts = () if by_rubric is None else by_rubric.verdicts
        scores = [(*_kind(criteria.get(verdict.criterion)), verdict.score) for verdict in verdicts]
        trajectories.append(
            Trajectory(
                loops(text, **limits._asdict()),
                correct=None if outcome is None else outcome.reward,
                steps=steps.get((line.number, place)),
                reward=None if by_rubric is None else by_rubric.reward,
                satisfied=satisfied(scores),
                by_kind=by_kind(scores),
                likelihoods=None if line.likelihoods is None else line.likelihoods[place],
            )
        )
    return ProblemResponses(tuple(trajectories), self_bleu(texts) if len(texts) > 1 else None)


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
    *,
    rubric: Any,
    question: str | None,
    concurrency: int,
    deadline_s: float,
    judge: str | None = None,
) -> WinRateResult:
    """Have the judge compare two sides, with one request per problem.

    Args:
        client: a client of the service.
        a, b: the sides; a win is one of `a`.
        rubric: what the judge looks at, for lines without a rubric of their own.
        question: the question about a pair, instead of the service's default.
        concurrency: problems to compare at a time.
        deadline_s: seconds that one problem may take.
        judge: the judge's name; None for the service's default.

    Raises:
        ConnectionFailed: the service cannot be reached.
    """
    problems, unmatched = pairs_of(a, b)
    slots = asyncio.Semaphore(concurrency)

    async def one(pairs: tuple[Pair, ...]) -> tuple[Comparison, ...] | AdjudgeError:
        async with slots:
            try:
                answer = await client.compare(pairs, rubric, question=question, judge=judge, deadline_s=deadline_s)
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
