"""Criteria, how each one is verified, and the digest of a rubric's content.

Criteria on the wire, and the digest of a rubric's content.

Knows nothing of names and versions, nor of how a criterion is judged.

How a criterion is verified: by the judge, or by a program that needs no model.

Programs read the response's final answer (`of: final_answer`) or all of it (`of: response`). What each compares with
is part of the criterion, or the group's `ground_truth` where it may be left out. `contains` and `regex` can look in one
`step` of the response alone.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic import (
    Tag as UnionTag,
)

from trainer_client.wire.base import (
    LIMIT_ERRORS,
    MAX_MAGNITUDE,
    STRICT_NUMBER,
    FiniteFloat,
    Flag,
    JsonObject,
    LargeFloat,
    RequestList,
    RequestModel,
    SafeInt,
)

VerificationTarget = Literal["final_answer", "response"]
VerificationMethod = Literal["judge", "math", "exact", "contains", "regex", "json_schema", "numeric"]

_Expected = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
_StepNumber = Annotated[int, Field(ge=0, le=999_999_999), STRICT_NUMBER]


class JudgeVerification(RequestModel):
    """Asked of the judge, also where a program could decide."""

    method: Literal["judge"]


class MathVerification(RequestModel):
    """Equal as mathematics, by math-verify: `1/2`, `0.5` and `\\frac12` are one answer."""

    method: Literal["math"]
    expected: _Expected | None = None
    of: VerificationTarget = "final_answer"


class ExactVerification(RequestModel):
    """The same text, but for space around it and runs of space inside; letter case counts only if asked."""

    method: Literal["exact"]
    expected: _Expected | None = None
    of: VerificationTarget = "final_answer"
    case_sensitive: Flag = False


class _SearchVerification(RequestModel):
    """Something that is looked for, in all of it or in one step.

    `step` is the number of the only step to look in, 0 for the whole response. It is also the step that the verdict
    belongs to, satisfied or not. In a response without such a step the criterion is not satisfied, and its verdict
    belongs to no step. Where `step` is left out, a satisfied criterion belongs to the step in which what was looked
    for begins, and one that is not to no step.
    """

    of: VerificationTarget = "response"
    step: _StepNumber | None = None

    @model_validator(mode="after")
    def _step_needs_response(self) -> Self:
        if self.step is not None and self.of == "final_answer":
            raise ValueError("a final answer has no steps; leave out step, or look in the response")
        return self


class ContainsVerification(_SearchVerification):
    """Every text of `all_of` and, where given, one of `any_of` stands in it, or in the `step` of it.

    Letter case counts only if asked.
    """

    method: Literal["contains"]
    all_of: RequestList[_Expected] = Field(default=(), max_length=64)
    any_of: RequestList[_Expected] = Field(default=(), max_length=64)
    case_sensitive: Flag = False

    @model_validator(mode="after")
    def _has_search_text(self) -> "ContainsVerification":
        if not self.all_of and not self.any_of:
            raise ValueError("contains looks for nothing; name texts in all_of or any_of")
        return self


class RegexVerification(_SearchVerification):
    """A Python regular expression matches somewhere (`search`), or all of it (`full`), or of the `step` of it.

    Whether `pattern` is one is not looked at here: compiling it may take minutes, so the service has that done where it
    can be ended.
    """

    method: Literal["regex"]
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
    case_sensitive: Flag = True
    match: Literal["search", "full"] = "search"


class JsonSchemaVerification(RequestModel):
    """It is JSON, bare or in its last fenced block, that satisfies a JSON Schema (draft 2020-12) of at most 64 KiB."""

    model_config = ConfigDict(serialize_by_alias=True)

    method: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")
    of: VerificationTarget = "response"


class NumericVerification(RequestModel):
    """A number within `absolute` + `relative` * |expected| of the expected one."""

    method: Literal["numeric"]
    expected: LargeFloat | None = None
    absolute: LargeFloat = Field(default=1e-9, ge=0)
    relative: LargeFloat = Field(default=0.0, ge=0)
    of: VerificationTarget = "final_answer"


def _method(value: object) -> str:
    method = value.get("method") if isinstance(value, dict) else getattr(value, "method", None)
    return f"({method})" if isinstance(method, str) else ""


Verification = Annotated[
    Annotated[JudgeVerification, UnionTag("(judge)")]
    | Annotated[MathVerification, UnionTag("(math)")]
    | Annotated[ExactVerification, UnionTag("(exact)")]
    | Annotated[ContainsVerification, UnionTag("(contains)")]
    | Annotated[RegexVerification, UnionTag("(regex)")]
    | Annotated[JsonSchemaVerification, UnionTag("(json_schema)")]
    | Annotated[NumericVerification, UnionTag("(numeric)")],
    Discriminator(
        _method,
        custom_error_type="unknown_method",
        custom_error_message="name a method: judge, math, exact, contains, regex, json_schema or numeric",
    ),
]
"""How a criterion is verified, by the `method` it names."""


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
