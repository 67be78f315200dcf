"""Criteria on the wire, and the digest of a rubric's content.

Knows nothing of names and versions, nor of how a criterion is judged.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from trainer_client.wire.base import LIMIT_ERRORS, MAX_MAGNITUDE, FiniteFloat, RequestList, RequestModel, SafeInt
from trainer_client.wire.verification import Verification

CriterionKind = Literal["point", "factual", "process", "suggest", "pitfall", "bonus", "answer"]
"""What a criterion is to the reward: `point` is a plain weighted one; `factual` and `process` are RGR-GRPO's;
`suggest`, `pitfall`, `bonus` and `answer` are SRaR's. A satisfied `pitfall` means that the mistake was made."""

CriterionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]

CriterionTag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=256)]

_Element = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)]
_Elements = Annotated[tuple[_Element, ...], Field(max_length=64, fail_fast=True), LIMIT_ERRORS]
_Guide = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]


class Criterion(RequestModel):
    """One thing to check in a response, and what it weighs (no unit; HealthBench's points are weights).

    A rubric that is sent bounds weights more than this does, which also reads what was stored before: see
    `RubricContent`.

    `scale` is the highest grade of the protocol `graded`, whose grades are 0..scale. `verification` says how it is
    checked where the judge need not be asked; without one an `answer` is compared with the group's `ground_truth`,
    if there is one, and all else is judged.

    The last six are Rubric-Grounded's, what a judge is told beside the description: a short `name`; the
    `required_elements` a full score needs; a `scoring_guide` for partial scores; `expected_keywords` and
    `expected_concepts`; and in `verification_method`, in words, how to check it (a program that checks is
    `verification`). A judge reads them once per call, so they are kept short: a name has at most 200 characters, a
    list 64 entries of 2,000 characters each, the two texts 20,000 characters like a description.
    """

    id: CriterionId
    description: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]
    kind: CriterionKind = "point"
    weight: FiniteFloat = Field(default=1.0, json_schema_extra={"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE})
    tags: RequestList[CriterionTag] = ()
    scale: SafeInt = Field(default=4, ge=1, le=100)
    verification: Verification | None = None
    name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)] | None = None
    required_elements: _Elements = ()
    scoring_guide: _Guide | None = None
    expected_keywords: _Elements = ()
    expected_concepts: _Elements = ()
    verification_method: _Guide | None = None


def content_digest(criteria: Sequence[Criterion]) -> str:
    """Hash criteria to `sha256:<hex>`: order, ids, wording, kinds, weights, tags and all else count.

    What criteria learned later (`scale`, `verification` and its `step`, `name` and all after it) enters only where it
    is set, so that rubrics without it keep the digests they had before there was any.
    """
    content = [_content(c) for c in criteria]
    canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _content(criterion: Criterion) -> dict[str, Any]:
    later: dict[str, Any] = {f: True for f, default in _FIELDS_ADDED_LATER.items() if getattr(criterion, f) == default}
    if getattr(criterion.verification, "step", None) is None:
        later.setdefault("verification", {"step"})
    return criterion.model_dump(mode="json", exclude=later)


GUIDANCE_FIELDS = (
    "name",
    "required_elements",
    "scoring_guide",
    "expected_keywords",
    "expected_concepts",
    "verification_method",
)
"""The fields that tell a judge more than the description does."""

_FIELDS_ADDED_LATER = {
    field: Criterion.model_fields[field].default for field in ("scale", "verification", *GUIDANCE_FIELDS)
}
