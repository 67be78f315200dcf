"""HealthBench's format: `[{"criterion": "…", "points": 5, "tags": ["…"]}]`, points from -10 to 10.

A whole published row is read as well: HealthBench keeps the list under `rubrics`, RuscaRL under
`reward_model.rubrics`. All else in a row (prompts, answers) is not ours to know.
"""

from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from rubric_store.formats.errors import FormatError, first_problem
from rubric_store.formats.json_text import parse_json
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.base import Request


class _Item(Request):
    criterion: str
    points: Annotated[float, Field(strict=True)]
    tags: tuple[str, ...] = ()


_ITEMS = TypeAdapter(tuple[_Item, ...])


def read(text: str) -> RubricContent:
    """Read a rubric from JSON text: criteria `c1`, `c2`…, each of kind `point` with its points as weight.

    Raises:
        FormatError: naming the line or field.
    """
    return from_json(parse_json(text))


def from_json(value: object) -> RubricContent:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `FormatError` naming the field."""
    place, items = _find_list(value)
    try:
        parsed = _ITEMS.validate_python(items)
    except ValidationError as error:
        raise first_problem(error, place) from None
    criteria = [_criterion(i, item, place) for i, item in enumerate(parsed)]
    try:
        return RubricContent(criteria=tuple(criteria))
    except ValidationError as error:
        raise FormatError(place, first_problem(error, place).problem) from None


def _find_list(value: object) -> tuple[str, list[object]]:
    place = "rubrics"
    if isinstance(value, dict) and "rubrics" not in value and isinstance(value.get("reward_model"), dict):
        value, place = value["reward_model"], "reward_model.rubrics"
    if isinstance(value, dict):
        value = value.get("rubrics")
    if not isinstance(value, list):
        raise FormatError(place, 'expected a list [{"criterion": "…", "points": 5, "tags": []}]')
    return place, value


def _criterion(index: int, item: _Item, place: str) -> Criterion:
    try:
        return Criterion(id=f"c{index + 1}", description=item.criterion, weight=item.points, tags=item.tags)
    except ValidationError as error:
        problem = first_problem(error, "").problem
        raise FormatError(f"{place}[{index}].criterion", problem) from None
