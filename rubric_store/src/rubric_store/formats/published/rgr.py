"""RGR-GRPO's format: `[{"description": "Factual Criteria: …", "weight": 3}]`.

Descriptions begin with Factual or Process; weights are 1 to 5. Factual criteria get the ids `f1`, `f2`…, process
criteria `p1`, `p2`…. A row may hold the list under `rubric` or `rubrics`.
"""

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import Field

from rubric_store.formats.documents import (
    Changes,
    FormatError,
    FormatProblem,
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
            raise InvalidValueError([(("description",), message)])
        kind = prefix[1].lower()
        seen[kind] += 1
        rest = item.description[prefix.end() :]
        return {"id": f"{kind[0]}{seen[kind]}", "kind": kind, "description": rest, "weight": item.weight}

    return RubricDocument(content=read_items(items, path, _Item, fields, changes=changes))


def write(document: RubricDocument) -> str:
    """Write the list as JSON.

    Raises:
        FormatError: a criterion is neither factual nor process, or its weight is not 1, 2, 3, 4 or 5.
    """
    criteria = document.content.criteria
    problems = [FormatProblem(f"criterion {one.id}", problem) for one in criteria for problem in _unsupported(one)]
    if problems:
        raise FormatError(problems)
    return dump_json(
        [
            {"description": f"{one.kind.title()} Criteria: {one.description}", "weight": int(one.weight)}
            for one in criteria
        ]
    )


def _unsupported(criterion: Criterion) -> list[str]:
    problems = []
    if criterion.kind not in ("factual", "process"):
        problems.append(f"RGR has only factual and process criteria, and this one has kind {criterion.kind!r}")
    if not (MIN_WEIGHT <= criterion.weight <= MAX_WEIGHT and criterion.weight.is_integer()):
        problems.append(f"RGR's weights are whole numbers from 1 to 5, and this one is {criterion.weight:g}")
    return problems
