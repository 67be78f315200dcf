"""Criteria, how each one is verified, and the digest of a rubric's content.

A criterion is verified by the judge, or by a program that needs no model. Programs read the response's final answer
(`of: final_answer`) or the whole response (`of: response`). The expected value is part of the criterion; where it is
optional and left out, the group's `ground_truth` is used. `contains` and `regex` can search a single `step` of the
response.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, model_validator
from pydantic import Tag as UnionTag

from trainer_client.wire.base import (
    LIMIT_ERRORS,
    MAX_MAGNITUDE,
    STRICT_NUMBER,
    Count,
    FiniteFloat,
    Flag,
    JsonObject,
    LargeFloat,
    RequestList,
    RequestModel,
    SafeInt,
)
from trainer_client.wire.names import CRITERION_ID_PATTERN

VerificationTarget = Literal["final_answer", "response"]
VerificationMethod = Literal[
    "judge", "math", "exact", "contains", "regex", "json_schema", "numeric", "tool_call", "turns"
]
CriterionScope = Literal["trajectory", "last_turn", "each_turn"]
"""What of a response a criterion is about; `Criterion.applies_to` says what each one means."""

_Expected = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
_StepNumber = Annotated[int, Field(ge=0, le=999_999_999), STRICT_NUMBER]


class JudgeVerification(RequestModel):
    """Ask the judge, even if a program could decide.

    Attributes:
        method: the judge decides.
    """

    method: Literal["judge"]


class MathVerification(RequestModel):
    """Satisfied if both answers denote the same: `1/2`, `0.5` and `\\frac12`; other answers are compared as text.

    Without `expected`, the group's `ground_truth` is used.

    Attributes:
        method: a comparison of expressions.
        expected: the expected expression; the group's `ground_truth` by default.
        of: what is compared.
    """

    method: Literal["math"]
    expected: _Expected | None = None
    of: VerificationTarget = "final_answer"


class ExactVerification(RequestModel):
    """Satisfied if both texts are equal, ignoring surrounding whitespace and collapsing runs of it.

    Letter case matters only with `case_sensitive`. Without `expected`, the group's `ground_truth` is used.

    Attributes:
        method: a comparison of texts.
        expected: the expected text; the group's `ground_truth` by default.
        of: what is compared.
        case_sensitive: whether letter case matters.
    """

    method: Literal["exact"]
    expected: _Expected | None = None
    of: VerificationTarget = "final_answer"
    case_sensitive: Flag = False


class _SearchVerification(RequestModel):
    """A search in the whole response or in one step.

    `step` is the number of the step to search, 0 for the whole response. The verdict is attributed to that step,
    satisfied or not. If the response has no such step, the criterion is not satisfied and its verdict is attributed to
    no step. Without `step`, the verdict of a satisfied criterion is attributed to the step in which the match begins,
    and that of an unsatisfied one to no step.

    Attributes:
        of: what to search in.
        step: the number of the step to search, 0 for the whole response.
    """

    of: VerificationTarget = "response"
    step: _StepNumber | None = None

    @model_validator(mode="after")
    def _step_needs_response(self) -> Self:
        if self.step is not None and self.of == "final_answer":
            raise ValueError("a final answer has no steps; leave out step, or set of to 'response'")
        return self


class ContainsVerification(_SearchVerification):
    """Satisfied if every text of `all_of` and, if given, at least one of `any_of` occurs in the text or in its `step`.

    Letter case matters only with `case_sensitive`.

    Attributes:
        method: a search for texts.
        all_of: texts that must all occur.
        any_of: texts of which one must occur.
        case_sensitive: whether letter case matters.
    """

    method: Literal["contains"]
    all_of: RequestList[_Expected] = Field(default=(), max_length=64)
    any_of: RequestList[_Expected] = Field(default=(), max_length=64)
    case_sensitive: Flag = False

    @model_validator(mode="after")
    def _has_search_text(self) -> "ContainsVerification":
        if not self.all_of and not self.any_of:
            raise ValueError("contains has nothing to search for; give texts in all_of or any_of")
        return self


class RegexVerification(_SearchVerification):
    """Satisfied if a Python regular expression matches in the text, or in its `step`.

    `match` is `search` for a match anywhere, or `full` for a match of the whole text. This model does not compile
    `pattern`: compiling can take minutes, so the service does it in a process that it can stop.

    Attributes:
        method: a search by a regular expression.
        pattern: the expression, in the syntax of Python's `re`.
        case_sensitive: whether letter case matters.
        match: `search` for a match anywhere, `full` for one of the whole text.
    """

    method: Literal["regex"]
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
    case_sensitive: Flag = True
    match: Literal["search", "full"] = "search"


class JsonSchemaVerification(RequestModel):
    """Satisfied if the text is JSON that is valid under a JSON Schema (draft 2020-12) of at most 64 KiB.

    The JSON may be the whole text or its last fenced code block.

    Attributes:
        method: validation of JSON.
        schema: the JSON Schema.
        of: what is validated.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    method: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")
    of: VerificationTarget = "response"


class NumericVerification(RequestModel):
    """Satisfied if the number differs from `expected` by at most `absolute` + `relative` * |`expected`|.

    Without `expected`, the group's `ground_truth` is used.

    Attributes:
        method: a comparison of numbers.
        expected: the expected number; the group's `ground_truth` by default.
        absolute: the greatest absolute difference; the default is at most 1e-9 of the expected number.
        relative: the greatest difference as a share of the expected number.
        of: what is compared.
    """

    method: Literal["numeric"]
    expected: LargeFloat | None = None
    absolute: LargeFloat = Field(default=1e-9, ge=0)
    relative: LargeFloat = Field(default=0.0, ge=0)
    of: VerificationTarget = "final_answer"


class _CountVerification(RequestModel):
    """A count that must lie between `at_least` and `at_most`."""

    of: ClassVar[VerificationTarget] = "response"

    at_least: SafeInt = Field(default=0, ge=0)
    at_most: Count | None = None

    @model_validator(mode="after")
    def _counts_something(self) -> Self:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most} and at_least {self.at_least}; no count lies between them")
        if self.at_most is None and self.at_least == 0:
            raise ValueError("every count satisfies this; set at_least above 0, or at_most")
        return self


class ToolCallVerification(_CountVerification):
    """Satisfied if the response calls a tool from `at_least` to `at_most` times.

    A text calls no tools.

    Attributes:
        method: `tool_call`.
        name: the tool's name; any tool, if left out.
        arguments: a JSON Schema (draft 2020-12) under which the call's arguments are valid; any, if left out.
        at_least: the fewest such calls.
        at_most: the most such calls; any number, if left out.
    """

    method: Literal["tool_call"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    arguments: JsonObject | None = None
    at_least: SafeInt = Field(default=1, ge=0)


class TurnsVerification(_CountVerification):
    """Satisfied if the response has from `at_least` to `at_most` messages of role `assistant`; a text is one.

    Attributes:
        method: `turns`.
        at_least: the fewest turns.
        at_most: the most turns; any number, if left out.
    """

    method: Literal["turns"]


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
    | Annotated[NumericVerification, UnionTag("(numeric)")]
    | Annotated[ToolCallVerification, UnionTag("(tool_call)")]
    | Annotated[TurnsVerification, UnionTag("(turns)")],
    Discriminator(
        _method,
        custom_error_type="unknown_method",
        custom_error_message=(
            "name a method: judge, math, exact, contains, regex, json_schema, numeric, tool_call or turns"
        ),
    ),
]
"""How a criterion is verified; `method` selects the variant."""


def needs_ground_truth(verification: Verification | None) -> bool:
    """Whether a program compares with the group's `ground_truth`, because the verification has nothing of its own."""
    return (
        isinstance(verification, MathVerification | ExactVerification | NumericVerification)
        and verification.expected is None
    )


CriterionKind = Literal["point", "factual", "process", "suggest", "pitfall", "bonus", "answer"]
"""The role of a criterion in the reward. `point` is a plain weighted criterion; `factual` and `process` come from
RGR-GRPO; `suggest`, `pitfall`, `bonus` and `answer` come from SRaR. A satisfied `pitfall` means that the response makes
the mistake."""

CriterionId = Annotated[str, StringConstraints(pattern=CRITERION_ID_PATTERN)]

CriterionTag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=256)]

_Element = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)]
_Elements = Annotated[tuple[_Element, ...], Field(max_length=64, fail_fast=True), LIMIT_ERRORS]
_Guide = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=20_000)]


class Criterion(RequestModel):
    """One thing to check in a response, and its weight (no unit; HealthBench's points are weights).

    The fields from `name` to `verification_method` come from Rubric-Grounded RL and give the judge more than the
    description. The judge reads them in every call, so they are bounded: `name` to 200 characters, each list to 64
    entries of 2,000 characters, and `scoring_guide` and `verification_method` to 20,000 characters, like the
    description.

    Attributes:
        id: a name that is unique in the rubric.
        description: what to check, as a statement about the response.
        kind: the role of the criterion in the reward.
        weight: how much the criterion counts in the reward; 0, or from 1e-9 to 1e6 in magnitude, and negative for a
            mistake. `RubricContent` checks this, so that criteria stored before the rule can still be read.
        scale: the highest grade of the protocol `graded`, whose grades are 0..scale.
        verification: how the criterion is checked. Without it, a criterion of kind `answer` is compared with the
            group's `ground_truth`, if there is one, and the judge decides all other criteria.
        name: a short name.
        required_elements: what a response needs for a full score.
        scoring_guide: how to give partial scores.
        expected_keywords, expected_concepts: what a good response mentions.
        verification_method: how to check the criterion, in words; use `verification` for a check by a program.
        shadow: judge and record the criterion, but never reward it: it enters no reward, no step's reward and no
            advantage, whatever its weight, and is never shown to the policy. Monitors compare it with the reward.
        applies_to: what of a response of messages the criterion is about: all of it (`trajectory`), its last message of
            role `assistant` (`last_turn`), or each such message by itself (`each_turn`). A criterion on each turn is
            satisfied if it is satisfied in every turn, and one that a good response avoids, a pitfall or one of
            negative weight, if it is satisfied in any turn; a grade is the mean. A text is one turn.
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
    shadow: Flag = False
    applies_to: CriterionScope = "trajectory"

    @model_validator(mode="after")
    def _scope_suits_the_program(self) -> Self:
        if self.applies_to == "trajectory":
            return self
        if getattr(self.verification, "step", None) is not None:
            raise ValueError("a step and applies_to both say where to look; leave out one of them")
        if isinstance(self.verification, TurnsVerification):
            raise ValueError("the number of turns is that of the whole trajectory; leave out applies_to")
        return self

    @property
    def avoided(self) -> bool:
        """Whether a good response does not meet the criterion."""
        return self.weight < 0 or self.kind == "pitfall"


def content_digest(criteria: Sequence[Criterion]) -> str:
    """Hash criteria to `sha256:<hex>`. Their order and all of their fields enter the digest.

    Fields that were added later (`scale`, `verification` and its `step`, `name` and all after it) enter the digest only
    if they are set, so that rubrics without them keep their digests.
    """
    hasher = hashlib.sha256(b"[")
    for place, criterion in enumerate(criteria):  # each for itself, so that other threads get their turn in between
        canonical = json.dumps(_content(criterion), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        hasher.update(b"," * bool(place) + canonical.encode("utf-8", "surrogatepass"))
    hasher.update(b"]")
    return "sha256:" + hasher.hexdigest()


def _content(criterion: Criterion) -> dict[str, Any]:
    unset: dict[str, Any] = {f: True for f, default in _FIELDS_ADDED_LATER.items() if getattr(criterion, f) == default}
    if getattr(criterion.verification, "step", None) is None:
        unset.setdefault("verification", {"step"})
    return criterion.model_dump(mode="json", exclude=unset)


GUIDANCE_FIELDS = (
    "name",
    "required_elements",
    "scoring_guide",
    "expected_keywords",
    "expected_concepts",
    "verification_method",
)
"""The optional fields that a judge reads in addition to the description."""


_FIELDS_ADDED_LATER = {
    field: Criterion.model_fields[field].default
    for field in ("scale", "verification", *GUIDANCE_FIELDS, "shadow", "applies_to")
}
