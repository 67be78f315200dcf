"""The validity judge: is each criterion of a rubric true, about this question, and of its kind (SRaR)?

It judges rubrics, not responses. A criterion without a readable verdict counts as neither valid nor invalid.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError, WithJsonSchema

from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer
from trainer_client.wire import Criterion, RubricVersion
from trainer_client.wire.problems import Meaning

VALIDITY_PROMPTS = GeneratorTemplates("checker.system", "validity")
MAX_VERDICT_TOKENS = 120


class ValidityVerdict(BaseModel):
    """The judge's output about one criterion."""

    valid: bool
    reason: Annotated[str, WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 240})]


@dataclass(frozen=True, slots=True)
class ItemValidity:
    """Whether a criterion is valid; None if the judge gave no verdict, and then `reason` says why."""

    id: str
    kind: str
    valid: bool | None
    reason: str


_ITEMS: TypeAdapter[list[ItemValidity]] = TypeAdapter(list[ItemValidity])


async def judge_items(
    writer: Writer,
    criteria: Sequence[Criterion],
    *,
    question: str,
    correct: str | None,
    prompt_templates: GeneratorTemplates = VALIDITY_PROMPTS,
) -> list[ItemValidity]:
    """Judge each criterion on its own, in order; `correct` is the known answer, if there is one.

    Raises:
        WriterFailed: the engine gave no answer.
    """
    system, items = prompt_templates("checker.system"), []
    for one in criteria:
        shown = {"kind": one.kind, "negative": one.weight < 0, "description": one.description}
        prompt = prompt_templates("validity", question=question, correct=correct, **shown)
        valid: bool | None = None
        try:
            verdict = await writer.write_json(ValidityVerdict, prompt, system=system, max_tokens=MAX_VERDICT_TOKENS)
            valid, reason = verdict.valid, verdict.reason
        except RubricDiscarded as unreadable:
            reason = str(unreadable)
        items.append(ItemValidity(one.id, kind_of(one), valid, reason))
    return items


def kind_of(criterion: Criterion) -> str:
    """Return the category that rates are counted by: the kind, with negative points apart."""
    return "negative point" if criterion.kind == "point" and criterion.weight < 0 else criterion.kind


def validity_metadata(
    items: Sequence[ItemValidity], model: str, prompt_templates: GeneratorTemplates = VALIDITY_PROMPTS
) -> dict[str, JsonValue]:
    """Build the metadata of a version: verdict and reason per criterion, the judging model and the template digest."""
    return {
        "items": [asdict(item) for item in items],
        "model": model,
        "template_digest": prompt_templates.digest,
    }


def published_validity(version: RubricVersion) -> tuple[str, list[ItemValidity]] | None:
    """Return the judging model and the verdicts that a version was published with; None if it has none.

    They may cover only some of its criteria: a generator that revises a rubric judges only the criteria it adds.
    """
    kept = version.metadata.get("validity")
    if not isinstance(kept, dict):
        return None
    try:
        items = _ITEMS.validate_python(kept.get("items"))
    except ValidationError:
        return None
    model, own = kept.get("model"), {criterion.id for criterion in version.criteria}
    items = [item for item in items if item.id in own]
    return (model if isinstance(model, str) else "", items) if items else None


PUBLISHED_WARNINGS: Final[Mapping[str, Meaning]] = {
    "result_not_named": Meaning(
        "none of its factual criteria contains the ground truth, so a wrong result may satisfy them all",
        "add a criterion that states the result",
    ),
    "all_right": Meaning(
        "it was written from right solutions only", "check that it names the mistakes that responses make"
    ),
    "all_wrong": Meaning("it was written from wrong solutions only", "check that a right response satisfies it"),
    "passage_cut": Meaning(
        "it was written from the beginning of a passage that was too long",
        "check that it asks for nothing that stands further on",
    ),
    "invalid_criteria": Meaning(
        "the writing model judged {} of its criteria invalid",
        "read them with adjudge rubrics validate, and correct or drop them",
    ),
    "unjudged_criteria": Meaning(
        "the writing model gave no verdict about {} of its criteria",
        "judge them with adjudge rubrics validate",
    ),
}
"""By the flag in a version's metadata: what its generator noted, where {} is a number, and what to do."""


@dataclass(frozen=True, slots=True)
class GenerationWarning:
    """What a generator noted about a rubric that it wrote: a flag, the problem in a sentence, and what to do."""

    flag: str
    problem: str
    advice: str


def published_warnings(metadata: Mapping[str, JsonValue]) -> list[GenerationWarning]:
    """Return the warnings that a version was published with, from the flags in its metadata."""
    flags = metadata.get("flags")
    found = []
    for flag in flags if isinstance(flags, list) else []:
        name, _, number = str(flag).partition(":")
        if name in PUBLISHED_WARNINGS:
            problem, advice = PUBLISHED_WARNINGS[name]
            found.append(GenerationWarning(name, problem.format(number), advice))
    return found


def question_of(version: RubricVersion) -> str:
    """Return the question that a version's criteria are about. Raises `ValueError` if its metadata has none."""
    question = version.metadata.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(
            f"the metadata of {version.reference} has no question, so its criteria cannot be judged; published "
            "metadata cannot be changed, so publish the criteria under another name, with a question"
        )
    return question


async def judge_version(writer: Writer, version: RubricVersion) -> list[ItemValidity]:
    """Judge the criteria of a published version against the question in its metadata.

    Raises:
        ValueError: the metadata has no `question`.
        WriterFailed: the engine gave no answer.
    """
    question, correct = question_of(version), version.metadata.get("ground_truth")
    return await judge_items(
        writer, version.criteria, question=question, correct=correct if isinstance(correct, str) else None
    )


def rates_by_kind(items: Iterable[Mapping[str, Any] | ItemValidity]) -> dict[str, dict[str, float | int | None]]:
    """Count per kind: `items`, `valid`, `invalid`, `unjudged`, and `rate` = valid / judged (None if none is judged)."""
    counts: dict[str, Counter[bool | None]] = {}
    for item in items:
        fields = asdict(item) if isinstance(item, ItemValidity) else item
        counts.setdefault(fields["kind"], Counter())[fields["valid"]] += 1
    return {kind: _rate(counted) for kind, counted in sorted(counts.items())}


def _rate(counted: Counter[bool | None]) -> dict[str, float | int | None]:
    judged = counted[True] + counted[False]
    return {
        "items": counted.total(),
        "valid": counted[True],
        "invalid": counted[False],
        "unjudged": counted[None],
        "rate": counted[True] / judged if judged else None,
    }
