"""HealthBench's format: `[{"criterion": "…", "points": 5, "tags": ["…"]}]`, points from -10 to 10; RuscaRL's too.

A whole published row is read as well: HealthBench keeps the list under `rubrics`, RuscaRL under
`reward_model.rubrics`. All else in a row (prompts, answers) is not ours to know. Criteria are `c1`, `c2`…, each of kind
`point`. A pitfall is written with negative points, since points are what the mistake costs.
"""

from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import RubricDocument, find_list, read_items
from rubric_store.formats.native import json_of, number
from trainer_client.wire import Criterion
from trainer_client.wire.base import Request

PATHS = (("rubrics",), ("reward_model", "rubrics"))
_EXPECTED = 'a list [{"criterion": "…", "points": 5, "tags": []}], alone or under "rubrics"'


class _Item(Request):
    criterion: str
    points: Annotated[float, Field(strict=True)]
    tags: tuple[str, ...] = ()


def from_value(value: object) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `BadValue`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    called = {"description": "criterion", "weight": "points"}
    return RubricDocument(content=read_items(items, path, _Item, _fields, called))


def write(document: RubricDocument) -> str:
    """The list as JSON text."""
    return json_of([_written(criterion) for criterion in document.content.criteria])


def _fields(index: int, item: _Item) -> dict[str, Any]:
    return {"id": f"c{index + 1}", "description": item.criterion, "weight": item.points, "tags": item.tags}


def _written(criterion: Criterion) -> dict[str, Any]:
    points = -abs(criterion.weight) if criterion.kind == "pitfall" else criterion.weight
    return {"criterion": criterion.description, "points": number(points), "tags": list(criterion.tags)}
