"""RGR-GRPO's format: `[{"description": "Factual Criteria: …", "weight": 3}]`.

Descriptions begin with Factual or Process; weights are 1 to 5. Factual criteria get the ids `f1`, `f2`…, process
criteria `p1`, `p2`…. A row may hold the list under `rubric` or `rubrics`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import (
    Changes,
    FormatError,
    InvalidValueError,
    RubricDocument,
    find_list,
    read_items,
)
from rubric_store.formats.native import dump_json
from trainer_client.wire import Criterion
from trainer_client.wire.base import RequestModel

PATHS = (("rubric",), ("rubrics",), ("criteria",))
PREFIX = re.compile(r"\s*(factual|process)\s+criteria\s*:", re.IGNORECASE)
MIN_WEIGHT, MAX_WEIGHT = 1, 5
_EXPECTED = 'a list [{"description": "Factual Criteria: …", "weight": 3}], alone or under "rubric"'


class _Item(RequestModel):
    description: str
    weight: Annotated[int, Field(strict=True, ge=MIN_WEIGHT, le=MAX_WEIGHT)]


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    seen: Counter[str] = Counter()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        prefix = PREFIX.match(item.description)
        if prefix is None:
            message = 'its category is missing; begin it with "Factual Criteria:" or "Process Criteria:"'
            raise InvalidValueError.at(("description",), message)
        kind = prefix[1].lower()
        seen[kind] += 1
        rest = item.description[prefix.end() :]
        return {"id": f"{kind[0]}{seen[kind]}", "kind": kind, "description": rest, "weight": item.weight}

    return read_items(items, path, _Item, fields, changes=changes)


def write(document: RubricDocument) -> str:
    """Write the list as JSON.

    Raises:
        FormatError: a criterion is neither factual nor process, or its weight is not 1, 2, 3, 4 or 5.
    """
    criteria = document.content.criteria
    if error := FormatError.of_criteria(criteria, _unsupported):
        raise error
    return dump_json(
        [
            {"description": f"{one.kind.title()} Criteria: {one.description}", "weight": int(one.weight)}
            for one in criteria
        ]
    )


def _unsupported(criterion: Criterion) -> Iterator[str]:
    if criterion.kind not in ("factual", "process"):
        yield f"RGR has only factual and process criteria, and this one has kind {criterion.kind!r}"
    if not (MIN_WEIGHT <= criterion.weight <= MAX_WEIGHT and criterion.weight.is_integer()):
        yield f"RGR's weights are whole numbers from 1 to 5, and this one is {criterion.weight:g}"
