"""Two files or two runs against each other: responses to the same prompt, compared by the judge in both orders."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from adjudge_services.cli.measure_ledger import RecordedResponse
from adjudge_services.cli.score_input import GroupLine
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import Comparison, Pair, Prompt
from trainer_client.wire.messages import ResponseLike


@dataclass(frozen=True, slots=True)
class PromptResponses:
    """The responses of one side to a prompt; `about` is what else the judge is told: grounding, answer, rubric."""

    prompt: Prompt
    responses: tuple[ResponseLike, ...]
    context: dict[str, Any]

    @property
    def key(self) -> str:
        """What the same prompt of the other side has too."""
        written = self.prompt if isinstance(self.prompt, str) else [m.model_dump(mode="json") for m in self.prompt]
        return json.dumps(written)


class WinRateResult(NamedTuple):
    """The comparisons of each problem, prompts that one side alone has, and problems that could not be compared."""

    problems: list[tuple[Comparison, ...]]
    unmatched: int
    failed: list[str]


def side_of_lines(lines: Sequence[GroupLine]) -> list[PromptResponses]:
    """Take a side from a file's groups."""
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
    """Take a side from a run that was read with its texts.

    Raises:
        ValueError: the ledger does not keep them.
    """
    grouped: dict[tuple[int | None, str], list[RecordedResponse]] = {}
    for one in responses:
        if one.prompt is None or one.text is None:
            raise ValueError(
                f"the ledger keeps no texts of run {run!r} (ADJUDGE_LEDGER=verdicts), and a comparison needs them; "
                "compare files of responses"
            )
        grouped.setdefault((one.step, one.problem), []).append(one)
    return [
        PromptResponses(members[0].prompt or "", tuple([one.text or "" for one in members]), {})
        for members in grouped.values()
    ]


def pairs_of(a: Sequence[PromptResponses], b: Sequence[PromptResponses]) -> tuple[list[tuple[Pair, ...]], int]:
    """Pair the first response of `a` to a prompt with the first of `b`, the second with the second, and so on.

    A prompt that stands several times is taken in order. What else the judge is told is what `a` says.

    Returns:
        The pairs of each problem, and how many prompts have no partner on the other side.
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
) -> WinRateResult:
    """Have the judge compare two sides, a problem a request.

    Args:
        client: of the service.
        a, b: the sides; a win is one of `a`.
        rubric: tells the judge what to look at, where a line has none.
        question: what is asked of a pair, instead of the service's own.
        concurrency: problems in flight.
        deadline_s: seconds one problem may take.
    """
    problems, unmatched = pairs_of(a, b)
    slots = asyncio.Semaphore(concurrency)

    async def one(pairs: tuple[Pair, ...]) -> tuple[Comparison, ...] | AdjudgeError:
        async with slots:
            try:
                answer = await client.compare(pairs, rubric, question=question, deadline_s=deadline_s)
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
