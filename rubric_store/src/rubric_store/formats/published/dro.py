"""DRO's format: a list of yes/no questions, as JSON `["Does the response …?", …]` or one per line.

Lines may be numbered or bulleted. A row may hold the list under `questions`, `rubrics`, `rubric` or InFoBench's
`decomposed_questions`. Questions become criteria `q1`, `q2`… of weight 1, satisfied if the answer is yes. A list may
hold statements instead, as data sets of plans have them: `{"Rubric": ["The plan names a budget.", …]}`.
"""

import re
from collections.abc import Iterator
from typing import Any

from pydantic import RootModel

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

PATHS = (("questions",), ("rubrics",), ("decomposed_questions",), ("rubric",), ("criteria",), ("rubric_items",))
_BULLET = re.compile(r"\A\s*+(?:[-*•]|\(?[0-9]{1,3}[.)])\s++")
_EXPECTED = 'a list of questions ["Does the response …?"], alone or under "questions"'


class _Item(RootModel[str]):
    pass


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON, a whole row or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, PATHS, _EXPECTED)
    return read_items(items, path, _Item, _fields, changes=changes)


def read_lines(text: str) -> RubricDocument:
    """Read a rubric from lines; raises `FormatError` with every line that is not a question."""
    lines = [(number, _BULLET.sub("", line).strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    wrong = [number for number, line in lines if not line.endswith("?")]
    if wrong or not lines:
        raise FormatError(
            [FormatProblem("", f"expected a question that ends with ?, or {_EXPECTED}", n) for n in wrong or [1]]
        )
    try:
        return from_value([line for _, line in lines], [])
    except InvalidValueError as error:
        numbers = [lines[path[0]][0] if path and isinstance(path[0], int) else 1 for path, _ in error.found]
        raise FormatError(
            [FormatProblem("", message, n) for n, (_, message) in zip(numbers, error.found, strict=True)]
        ) from None


def write(document: RubricDocument) -> str:
    """Write the list as JSON.

    Raises:
        FormatError: a criterion's weight is not positive, or it is a pitfall: in this format a yes is always good.
    """
    criteria = document.content.criteria
    if error := FormatError.of_criteria(criteria, _unsupported):
        raise error
    return dump_json([criterion.description for criterion in criteria])


def _unsupported(criterion: Criterion) -> Iterator[str]:
    if criterion.weight <= 0 or criterion.kind == "pitfall":
        yield "in DRO's lists a yes is always good; reword it as a criterion with a positive weight"


def _fields(index: int, item: _Item) -> dict[str, Any]:
    return {"id": f"q{index + 1}", "description": item.root}
