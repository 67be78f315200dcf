"""HealthBench's, RuscaRL's, RubricHub's and ResearchRubrics' format: `[{"criterion": "…", "points": 5, "tags": […]}]`.

A whole published row is read as well: HealthBench keeps the list under `rubrics`, RuscaRL under `reward_model.rubrics`.
All other fields of a row (prompts, answers) are ignored. Criteria get the ids `c1`, `c2`… and kind `point`. A pitfall
is written with negative points, since points are what the mistake costs. ResearchRubrics has `weight` for the points
and an `axis`, which becomes a tag.

RuscaRL and RubricHub mark criteria that a program decides by tags, in a list or as an object: `verifier:rule`,
`function:…` and `parameters:…`. They become the criterion's verification. A rule that no program here implements is
left out and named; otherwise the judge would decide what it was not meant to.
"""

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rubric_store.formats import programs
from rubric_store.formats.documents import Changes, OmittedItemError, RubricDocument, find_list, read_items
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

PATHS = (("rubrics",), ("reward_model", "rubrics"), ("rubric",), ("criteria",))
_EXPECTED = 'a list [{"criterion": "…", "points": 5, "tags": []}], alone or under "rubrics"'


_MARKS = ("verifier", "function", "parameters")


def _as_list(tags: object) -> object:
    """Tags of an object as texts, without empty values and null parameters."""
    if not isinstance(tags, dict):
        return tags
    if isinstance(parameters := tags.get("parameters"), dict):
        tags = {**tags, "parameters": {key: value for key, value in parameters.items() if value is not None}}
    return [
        f"{key}:{value if isinstance(value, str) else json.dumps(value)}"
        for key, value in tags.items()
        if value not in (None, "", [], {})
    ]


class _Item(RequestModel):
    criterion: str
    points: Annotated[float, Field(strict=True)]
    axis: str | None = None
    tags: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    weighted = isinstance(items, list) and any(isinstance(one, dict) and "weight" in one for one in items)
    if isinstance(items, list) and weighted:
        items = [_with_points(one) for one in items]
    field_names = {"description": "criterion", "weight": "weight" if weighted else "points"}
    return read_items(items, path, _Item, _fields, field_names, changes)


def _with_points(item: object) -> object:
    if not isinstance(item, dict) or "points" in item or "weight" not in item:
        return item
    return {"points" if key == "weight" else key: value for key, value in item.items()}


def write(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json([_serialize(criterion) for criterion in document.content.criteria])


def not_in_healthbench(criterion: Criterion) -> Iterator[str]:
    """Why the format cannot hold a criterion: in it, the criterion's tags name a rule that no program implements."""
    try:
        _verification(criterion.tags)
    except OmittedItemError:
        yield "its tags name a rule of HealthBench's format that no program implements; change its tags"


def _fields(index: int, item: _Item) -> dict[str, Any]:
    tags = (item.axis, *item.tags) if (item.axis or "").strip() else item.tags
    fields = {"id": f"c{index + 1}", "description": item.criterion, "weight": item.points, "tags": tags}
    verification = _verification(item.tags)
    return fields if verification is None else {**fields, "verification": verification}


def _verification(tags: tuple[str, ...]) -> dict[str, Any] | None:
    """The verification that tags name; None if the judge decides the criterion."""
    tag_values: dict[str, str] = {}
    for tag in tags:
        key, colon, value = tag.partition(":")
        if colon and key.strip() in _MARKS:
            tag_values.setdefault(key.strip(), value.strip())
    verifier = tag_values.get("verifier")
    if verifier in (None, "", "llm", "judge"):
        return None
    if verifier != "rule":
        raise _unknown_rule(f"verifier:{verifier} is neither rule nor llm")
    try:
        parameters: object = json.loads(tag_values.get("parameters", "{}"))
    except (ValueError, RecursionError):
        parameters = tag_values["parameters"]
    function = tag_values.get("function", "")
    check = _rule(function.rpartition(":")[2], parameters)
    if check is None:
        raise _unknown_rule(f"function:{function} with parameters:{tag_values.get('parameters')} is not a known rule")
    return check


def _rule(function: str, parameters: object) -> dict[str, Any] | None:
    """The program of a rule, by the names of RuscaRL, IFEval and open-instruct; None if there is none."""
    match function, parameters:
        case "math_verify", {"answer": str() | int() | float() as answer}:
            return _math(answer)
        case "math_verify", str() | int() | float() as answer:
            return _math(answer)
        case "word_count_range", {"min_count": int() as minimum, "max_count": int() as maximum} if (
            0 <= minimum <= maximum
        ):
            return programs.word_count(minimum, maximum)
        case (("existence" | "verify_keywords"), {"keywords": [*texts]} | {"keyword_list": [*texts]}) if _all_texts(
            texts
        ):
            return programs.present(texts, case_sensitive=False)
        case (("forbidden_words" | "validate_forbidden_words"), {"forbidden_words": [*texts]}) if _all_texts(texts):
            return programs.absent(texts, case_sensitive=False, words=True)
        case (("end_checker" | "validate_end"), {"end_phrase": str() as phrase}) if phrase.strip():
            return programs.matched(rf'{re.escape(phrase.strip())}"?\s*\Z', case_sensitive=False)
        case (("quotation" | "validate_quotation"), _):
            return programs.matched(r'\A\s*"[\s\S]*"\s*\Z')
        case (("no_comma" | "validate_no_commas"), _):
            return programs.absent([","], case_sensitive=True)
        case (("json_format" | "validate_json_format"), _):
            return {"method": "json_schema", "schema": {}}
    return None


def _all_texts(values: list[object]) -> bool:
    return 1 <= len(values) <= 64 and all(isinstance(value, str) and value.strip() for value in values)


def _math(answer: object) -> dict[str, Any]:
    return {"method": "math", "expected": str(answer), "of": "response"}


def _unknown_rule(what: str) -> OmittedItemError:
    return OmittedItemError(
        f"{what[:200]}, so no program can verify it; the criterion is left out. Give it verifier:llm for the judge"
    )


def _serialize(criterion: Criterion) -> dict[str, Any]:
    points = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    return {"criterion": criterion.description, "points": plain_number(points), "tags": list(criterion.tags)}
