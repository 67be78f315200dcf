"""Ask a judge about labelled examples through a client of the service, and keep what it answered.

Judgements are written to a log as they arrive, so that an interrupted evaluation continues where it stopped. The log
holds digests, verdicts and costs, and none of the texts. A judgement is taken from it only if the judge still has the
fingerprint that it had, which one question finds out.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter

from judge_server.evaluation.labelled import Example, LabelledPair, LabelledResponse, without_unlabelled
from trainer_client import AsyncClient
from trainer_client.errors import InvalidRequest
from trainer_client.wire import Comparison, ComparisonRequest, JudgeInfo, RubricContent, Usage, Verdict
from trainer_client.wire.options import request_options

Variant: TypeAlias = Literal["", "order", "paraphrase", "length"]
"""How an example was changed before it was judged; '' if it was not."""

FILLER = (
    "I hope that this answers your question. Please let me know if anything is unclear, or if you would like me to go "
    "through any part of it again in more detail. I am happy to help with whatever else you may need."
)
"""What the variant `length` adds to a response: nothing that a criterion asks about."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge answered about an example.

    Attributes:
        example: the example as it was labelled.
        variant: how it was changed before it was judged.
        verdicts: the verdicts on a response, by criterion id; empty for a pair.
        comparison: the comparison of a pair; None for a response.
        usage: the cost of the request.
        model, fingerprint, uncalibrated: the judge, and the fingerprint that it has without a calibration.
        problem: why the service refused the example; empty if it did not.
        suspicious: whether the response was judged to meet a decoy criterion; None if none was asked.
    """

    example: Example
    variant: Variant
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    comparison: Comparison | None = None
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    fingerprint: str = ""
    uncalibrated: str = ""
    problem: str = ""
    suspicious: bool | None = None

    @property
    def pair_right(self) -> float | None:
        """How far a pair was judged right, with disagreement of the two orders as a half; None without a score."""
        score = None if self.comparison is None else self.comparison.score
        if score is None or not isinstance(self.example, LabelledPair):
            return None
        return score if self.example.preferred == "a" else 1 - score


@dataclass(frozen=True, slots=True)
class JudgeChoice:
    """Which of a service's judges is asked, and how: the fields of `judging` in a request."""

    judge: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asks_together(self) -> bool:
        """Whether several criteria share a call, so that their order may matter."""
        per_call = self.options.get("criteria_per_call")
        return per_call not in (None, 1) or self.options.get("protocol") == "checklist"


_JUDGEMENT = TypeAdapter(Judgement)
_NOT_LOGGED: Any = {
    "example": True,
    "variant": True,
    "problem": True,
    "verdicts": {"__all__": {"rationale"}},
    "comparison": {"orders": {"__all__": {"rationale"}}},
}
"""The fields of a judgement that hold texts, or that a log is searched by."""


class JudgementLog:
    """The judgements in a JSONL file, by fingerprint and request. Without a file it remembers nothing.

    A line that cannot be read, such as the last one of a killed process, is skipped; its example is judged again.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lines: dict[tuple[str, str], dict[str, Any]] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    row = json.loads(line)
                    self._lines[row["fingerprint"], row["key"]] = row
                except (ValueError, KeyError, TypeError):
                    continue

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, fingerprint: str, key: str, example: Example, variant: Variant) -> Judgement | None:
        """Return the judgement of a request by a judge, if it is in the log."""
        row = self._lines.get((fingerprint, key))
        if row is None:
            return None
        try:
            return _JUDGEMENT.validate_python({**row, "example": example, "variant": variant})
        except ValueError:  # of another release; it is asked for again
            return None

    def add(self, key: str, judgement: Judgement) -> None:
        """Append a judgement. One with a failed verdict is left out, so that it is asked for again."""
        failed = any(verdict.status == "failed" for verdict in judgement.verdicts.values())
        if self._file is None or judgement.problem or failed or not judgement.fingerprint:
            return
        if judgement.comparison is not None and judgement.comparison.status == "failed":
            return
        row = {"key": key, **_JUDGEMENT.dump_python(judgement, mode="json", exclude=_NOT_LOGGED)}
        self._lines[judgement.fingerprint, key] = row
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab+") as file:
            torn = file.tell() > 0 and (file.seek(-1, 2), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")


def varied(example: LabelledResponse, variant: Variant) -> LabelledResponse:
    """Return an example changed in a way that must not change its labels."""
    if variant == "order":
        return replace(example, criteria=example.criteria[::-1])
    if variant == "paraphrase":
        changed = [one.model_copy(update={"description": paraphrase(one.description)}) for one in example.criteria]
        return replace(example, criteria=tuple(changed))
    if variant == "length":
        return replace(example, response=f"{example.response}\n\n{FILLER}")
    return example


def paraphrase(description: str) -> str:
    """Put a criterion into other words that mean the same."""
    if description.rstrip().endswith("?"):
        return f"The answer to the following question about the response is yes: {description}"
    return f"The following holds of the response: {description}"


async def judge_examples(
    client: AsyncClient,
    work: Sequence[tuple[Example, Variant]],
    choice: JudgeChoice,
    log: JudgementLog,
    *,
    concurrency: int = 4,
    deadline_s: float = 3600.0,
    advance: Callable[[], None] = lambda: None,
) -> list[Judgement]:
    """Judge examples, or take them from the log, which gets every new judgement; return the judgements in order.

    `work` has the examples, each with the variant to judge. `advance` is called after each judgement.

    Raises:
        AdjudgeError: the service cannot be asked, or refuses every request. What was judged is in the log.
    """
    slots = asyncio.Semaphore(concurrency)
    fingerprints: dict[type, str] = {}

    async def judge(example: Example, variant: Variant) -> Judgement:
        request, key = request_for(example, variant, choice)
        known = log.find(fingerprints.get(type(example), ""), key, example, variant)
        if known is None:
            async with slots:
                known = await _ask(client, example, variant, request, deadline_s)
            log.add(key, known)
        advance()
        return known

    judgements: dict[int, Judgement] = {}
    for kind in (LabelledResponse, LabelledPair):
        places = [place for place, (example, _) in enumerate(work) if isinstance(example, kind)]
        for place in places:  # until one is accepted, which tells the judge's fingerprint
            judgements[place] = await judge(*work[place])
            if judgements[place].fingerprint:
                fingerprints[kind] = judgements[place].fingerprint
                break
        rest = [place for place in places if place not in judgements]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {place: group.create_task(judge(*work[place])) for place in rest}
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        judgements |= {place: task.result() for place, task in tasks.items()}
    return [judgements[place] for place in range(len(work))]


def request_for(example: Example, variant: Variant, choice: JudgeChoice) -> tuple[dict[str, Any], str]:
    """Return the keyword arguments of the client's call, and the digest that names it in the log."""
    if isinstance(example, LabelledResponse):
        shown = varied(without_unlabelled(example) if example.labels else example, variant)
        material = {
            name: getattr(shown, name)
            for name in ("grounding", "reference_answer", "ground_truth")
            if getattr(shown, name) is not None
        }
        group = {"id": "example", "prompt": shown.prompt, "responses": [shown.response], **material}
        rubric = RubricContent(criteria=shown.criteria).model_dump(mode="json", exclude_defaults=True)
        request = {"groups": [group], "rubric": rubric, "judge": choice.judge, **choice.options}
    else:
        pair = {"id": "example", "prompt": example.prompt, "a": example.a, "b": example.b}
        pair |= {n: getattr(example, n) for n in ("grounding", "reference_answer") if getattr(example, n) is not None}
        own = {n: v for n, v in choice.options.items() if n in request_options(ComparisonRequest)}
        request = {"pairs": [pair], "judge": choice.judge, **own}
    return request, hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


async def _ask(
    client: AsyncClient, example: Example, variant: Variant, request: Mapping[str, Any], deadline_s: float
) -> Judgement:
    given: Any = {**request, "deadline_s": deadline_s}
    try:
        if isinstance(example, LabelledPair):
            compared = await client.compare(**given)
            return Judgement(example, variant, {}, compared.pairs[0], compared.usage, *_names(compared.judge))
        answer = await client.verdicts(**given)
        response = answer.groups[0].responses[0]
        verdicts = {verdict.criterion: verdict for verdict in response.verdicts}
        names = _names(answer.judge)
        return Judgement(example, variant, verdicts, None, answer.usage, *names, suspicious=response.suspicious)
    except InvalidRequest as error:
        return Judgement(example, variant, problem=str(error))


def _names(judge: JudgeInfo | None) -> tuple[str, str, str]:
    return ("", "", "") if judge is None else (judge.model, judge.fingerprint, judge.uncalibrated or "")
