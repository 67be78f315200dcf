"""HealthBench's and RuscaRL's format: `[{"criterion": "…", "points": 5, "tags": ["…"]}]`, points from -10 to 10.

A whole published row is read as well: HealthBench keeps the list under `rubrics`, RuscaRL under `reward_model.rubrics`.
All other fields of a row (prompts, answers) are ignored. Criteria get the ids `c1`, `c2`… and kind `point`. A pitfall
is written with negative points, since points are what the mistake costs.

RuscaRL marks criteria that a program decides by tags, in a list or as an object: `verifier:rule`, `function:…` and
`parameters:…`. They become the criterion's verification. A rule that no program here implements is rejected; otherwise
the judge would decide what it was not meant to.
"""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from rubric_store.formats.documents import InvalidValueError, RubricDocument, find_list, read_items
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

PATHS = (("rubrics",), ("reward_model", "rubrics"))
_EXPECTED = 'a list [{"criterion": "…", "points": 5, "tags": []}], alone or under "rubrics"'


_RULES = "math_verify with an answer, and word_count_range with min_count and max_count"


def _as_list(tags: object) -> object:
    if not isinstance(tags, dict):
        return tags
    return [f"{key}:{value if isinstance(value, str) else json.dumps(value)}" for key, value in tags.items()]


class _Item(RequestModel):
    criterion: str
    points: Annotated[float, Field(strict=True)]
    tags: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()


def from_value(value: object) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    field_names = {"description": "criterion", "weight": "points"}
    return RubricDocument(content=read_items(items, path, _Item, _fields, field_names))


def write(document: RubricDocument) -> str:
    """Write the list as JSON."""
    return dump_json([_serialize(criterion) for criterion in document.content.criteria])


def _fields(index: int, item: _Item) -> dict[str, Any]:
    fields = {"id": f"c{index + 1}", "description": item.criterion, "weight": item.points, "tags": item.tags}
    verification = _verification(item.tags)
    return fields if verification is None else {**fields, "verification": verification}


def _verification(tags: tuple[str, ...]) -> dict[str, Any] | None:
    """The verification that tags name; None if the judge decides the criterion."""
    tag_values: dict[str, str] = {}
    for tag in tags:
        key, colon, value = tag.partition(":")
        if colon and key.strip() in ("verifier", "function", "parameters"):
            tag_values.setdefault(key.strip(), value.strip())
    verifier = tag_values.get("verifier")
    if verifier in (None, "llm", "judge"):
        return None
    if verifier != "rule":
        raise _unknown_rule(f"verifier:{verifier} is neither rule nor llm")
    try:
        parameters: object = json.loads(tag_values.get("parameters", "{}"))
    except (ValueError, RecursionError):
        parameters = tag_values["parameters"]
    match tag_values.get("function"), parameters:
        case "math_verify", {"answer": str() | int() | float() as answer}:
            return _math(answer)
        case "math_verify", str() | int() | float() as answer:
            return _math(answer)
        case "word_count_range", {"min_count": int() as minimum, "max_count": int() as maximum} if (
            0 <= minimum <= maximum
        ):
            return {"method": "regex", "match": "full", "pattern": _word_count_pattern(minimum, maximum)}
    raise _unknown_rule(
        f"function:{tag_values.get('function')} with parameters:{tag_values.get('parameters')} is not a known rule"
    )


def _math(answer: object) -> dict[str, Any]:
    return {"method": "math", "expected": str(answer), "of": "response"}


def _word_count_pattern(minimum: int, maximum: int) -> str:
    """A pattern that matches in time linear in the text."""
    if maximum == 0:
        return r"\s*"
    words = rf"\s*+\S++(?:\s++\S++){{{max(minimum - 1, 0)},{maximum - 1}}}+\s*+"
    return words if minimum else rf"(?:{words})?\s*"


def _unknown_rule(what: str) -> InvalidValueError:
    message = f"{what[:200]}, so no program can verify it. Use {_RULES}; or let the judge decide, with verifier:llm"
    return InvalidValueError([(("tags",), message)])


def _serialize(criterion: Criterion) -> dict[str, Any]:
    points = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    return {"criterion": criterion.description, "points": plain_number(points), "tags": list(criterion.tags)}
