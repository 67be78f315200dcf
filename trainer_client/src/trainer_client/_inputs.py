"""What a user hands over, in the forms that the service takes: columns of a dataset, and criteria."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from trainer_client.modes import UNTAGGED, Term
from trainer_client.wire import RubricContent
from trainer_client.wire.criteria import Criterion, CriterionKind
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rewards import FailureKind

RubricOrReference = str | RubricContent
"""A rubric's reference, or its criteria."""


def parse_rubric(given: object, *, drop_nulls: bool = False) -> RubricOrReference | None:
    """Read a rubric; None and empty text mean that there is none.

    Args:
        given: the value of a row, or of a user's argument.
        drop_nulls: drop keys whose value is None. Set this for values of a dataset, where Arrow pads every object of a
            column with the keys of all others. Nothing is dropped from JSON text, so use that for a rubric in which a
            null matters.

    Raises:
        ValueError: the value has none of these forms, or breaks the wire contract.
    """
    given = to_plain_data(given) if drop_nulls and not isinstance(given, RubricContent) else given
    if given is None or isinstance(given, RubricContent):
        return given
    if isinstance(given, str):
        return _read_text(given.strip())
    fields = {"criteria": given} if isinstance(given, Sequence) else given
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"a rubric cannot be of type {type(given).__name__}; give a reference, a list of criteria, or JSON text"
        )
    try:
        return RubricContent.model_validate(fields)
    except ValidationError as error:
        errors = field_errors(error.errors(include_url=False, include_input=False))
        raise ValueError("; ".join(f"{e.field}: {e.message}".removeprefix(": ") for e in errors[:3])) from error


def is_empty_rubric(given: object) -> bool:
    """Whether a row's value is a rubric without criteria: an empty list, `{"criteria": []}`, or JSON text of these."""
    given = to_plain_data(given)
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip().startswith(("[", "{")) else None
        except (ValueError, RecursionError):
            return False
    if isinstance(given, Mapping):
        given = given.get("criteria", given or [])
    return given in ([], {})


def _read_text(text: str) -> RubricOrReference | None:
    if not text.startswith(("[", "{")):
        return text or None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this begins like JSON but is invalid: {error}") from None
    return parse_rubric(parsed)


def to_plain_data(value: Any) -> Any:
    """Convert mappings and sequences of any library to dicts and lists, without keys whose value is None."""
    if isinstance(value, Mapping):
        return {key: to_plain_data(item) for key, item in value.items() if item is not None}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain_data(item) for item in value]
    return value


def as_text(name: str, value: Any) -> str | None:
    """Convert a value to text. Numbers, common as ground truths, are written as by hand: 2.0 becomes `2`.

    Raises:
        ValueError: the value is neither text nor a number; the message calls it `name`.
    """
    value = value.item() if getattr(value, "shape", None) == () else value  # a numpy scalar
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return None  # pandas writes a missing value as NaN
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"{name} is of type {type(value).__name__}; it must be text or a number")


Score = Any
"""A number in [0, 1] (float, int, bool, a numpy or tensor scalar), or None if judging failed."""

_KINDS = frozenset(get_args(CriterionKind))


CriterionLike = Criterion | Mapping[str, Any]
"""A `Criterion`, or a mapping with its `kind` (default `point`), `weight` (default 1), `shadow` (default False), `tags`
(default none) and, for messages, `id`."""


def read_criteria(criteria: Sequence[CriterionLike | Term]) -> list[Term]:
    """Read criteria in order. Terms stay as they are, so that a rubric can be read once for many responses.

    Raises:
        ValueError: a kind is unknown, or a weight is not a finite number; the message names the index.
    """
    return [_term(index, criterion) for index, criterion in enumerate(criteria)]


def _term(index: int, criterion: CriterionLike | Term) -> Term:
    if isinstance(criterion, Term):
        return criterion
    if isinstance(criterion, Criterion):  # a check for Mapping would be slow
        label, kind, given, shadow = criterion.id, criterion.kind, criterion.weight, criterion.shadow
        tags: Sequence[str] = criterion.tags
    else:
        label = criterion.get("id", f"criteria[{index}]")
        kind, given = criterion.get("kind", "point"), criterion.get("weight", 1.0)
        shadow, tags = bool(criterion.get("shadow", False)), criterion.get("tags") or ()
    if kind not in _KINDS:
        raise ValueError(f"criteria[{index}].kind is {kind!r}; use one of {', '.join(sorted(_KINDS))}")
    weight = given if type(given) is float else as_number(given)
    if not math.isfinite(weight):
        raise ValueError(f"criteria[{index}].weight is {given!r}; a weight must be a finite number")
    return Term(str(label), kind, weight, shadow, str(tags[0]) if tags else UNTAGGED)


def read_scores(scores: Sequence[Score], count: int) -> list[float | None]:
    """Read the scores of `count` criteria; None stays None.

    Raises:
        ValueError: there are not `count` scores, or one is not a number in [0, 1]; the message names the index.
    """
    if len(scores) != count:
        raise ValueError(
            f"{len(scores)} scores for {count} criteria; give one for each criterion, None where judging failed"
        )
    return [None if score is None else _score(index, score) for index, score in enumerate(scores)]


def _score(index: int, given: Score) -> float:
    score = given if type(given) is float else as_number(given)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"scores[{index}] is {given!r}; use a number in [0, 1], or None if judging failed")
    return score


def as_number(given: Any) -> float:
    """Convert a scalar to a float; NaN if it is not a number. Text is never a number."""
    if isinstance(given, str | bytes | bytearray):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_failures(failures: Sequence[FailureKind | None] | None, count: int) -> Sequence[FailureKind | None]:
    """Read the kinds of failure beside `count` scores; none if not given. Raises ValueError for another number."""
    if failures is None:
        return [None] * count
    if len(failures) != count:
        raise ValueError(
            f"{len(failures)} failures for {count} scores; give one for each score, None where judging did not fail"
        )
    return failures


def read_uncertain(uncertain: Sequence[bool] | None, values: Sequence[float | None]) -> Sequence[bool]:
    """Read which scores are missing because the verdict is uncertain; none if not given.

    Raises:
        ValueError: there is not one for each score, or an uncertain verdict has a score.
    """
    if uncertain is None:
        return [False] * len(values)
    if len(uncertain) != len(values):
        raise ValueError(f"{len(uncertain)} uncertain for {len(values)} scores; give one for each score")
    for index, (doubt, value) in enumerate(zip(uncertain, values, strict=True)):
        if doubt and value is not None:
            raise ValueError(
                f"scores[{index}] is {value!r} and uncertain[{index}] true; an uncertain verdict has no score"
            )
    return uncertain
