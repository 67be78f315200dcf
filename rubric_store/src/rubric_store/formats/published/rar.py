"""The format of Rubrics as Rewards: `[{"title": "…", "description": "Essential Criteria: …", "weight": 5}]`.

A description may begin with its category: Essential, Important, Optional or Pitfall. A weight is a number or a
category, which then weighs 1, 0.7, 0.3 or 0.9. A row may hold the list under `rubric`.

The title becomes the criterion's name, and the category a tag. A pitfall with a negative weight describes a mistake and
gets kind `pitfall`; one with a positive weight says that the mistake was avoided and gets kind `point`.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rubric_store.formats.documents import Changes, InvalidValueError, RubricDocument, find_list, read_items
from rubric_store.formats.native import dump_json, plain_number
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

PATHS = (("rubric",), ("rubrics",))
CATEGORY_WEIGHTS: Final = {"essential": 1.0, "important": 0.7, "optional": 0.3, "pitfall": 0.9}
PREFIX = re.compile(r"\s*(essential|important|optional|pitfall)\s+criteria\s*:", re.IGNORECASE)
_EXPECTED = 'a list [{"title": "…", "description": "Essential Criteria: …", "weight": 5}], alone or under "rubric"'
_Category = Literal["Essential", "Important", "Optional", "Pitfall"]


class _Item(RequestModel):
    title: str = ""
    description: str
    weight: Annotated[Annotated[float, Field(strict=True)] | _Category, Field(union_mode="left_to_right")]


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    return read_items(items, path, _Item, _fields, {"name": "title"}, changes)


def write(document: RubricDocument) -> str:
    """Write the list as JSON; a criterion's category is the first of its tags that names one."""
    return dump_json([_serialize(criterion) for criterion in document.content.criteria])


def _fields(index: int, item: _Item) -> dict[str, Any]:
    prefix = PREFIX.match(item.description)
    category = prefix[1].lower() if prefix else ""
    weight = item.weight
    if isinstance(weight, str):
        if category and weight.lower() != category:
            message = f"{weight}, but its description begins with {category.title()} Criteria; make them agree"
            raise InvalidValueError.at(("weight",), message)
        category, weight = weight.lower(), CATEGORY_WEIGHTS[weight.lower()]
    mistake = category == "pitfall" and weight < 0
    return {
        "id": f"c{index + 1}",
        "name": item.title.strip() or None,
        "description": item.description[prefix.end() :] if prefix else item.description,
        "kind": "pitfall" if mistake else "point",
        "weight": weight,
        "tags": (category,) if category and not mistake else (),
    }


def _serialize(criterion: Criterion) -> dict[str, Any]:
    mistake = criterion.kind == "pitfall"
    category = "pitfall" if mistake else next((tag for tag in criterion.tags if tag in CATEGORY_WEIGHTS), "")
    title = {"title": criterion.name} if criterion.name else {}
    return {
        **title,
        "description": f"{category.title()} Criteria: {criterion.description}" if category else criterion.description,
        "weight": plain_number(-abs(criterion.weight) if mistake else criterion.weight),
    }
