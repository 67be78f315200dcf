"""FrontierScience's format: one text of `Points: 1.5, Item: …`, where an item may go on in the lines after it."""

import re
from typing import Any

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    RubricDocument,
    read_items,
    with_lines,
)
from trainer_client.wire.base import RequestModel

_LINE = re.compile(
    r"^[ \t]*+(?:(?:[-•]|\*(?!\*)|\d{1,3}[.)])[ \t]*+)?\*{0,2}points?\*{0,2}[ \t]*+:\*{0,2}[ \t]*+"
    r"(?P<points>[-+]?\d{1,6}(?:\.\d{1,6})?)[ \t]*+(?:[,;|.–-][ \t]*+)?\*{0,2}item\*{0,2}[ \t]*+:\*{0,2}[ \t]*+",
    re.IGNORECASE | re.MULTILINE,
)


class _Item(RequestModel):
    item: str
    points: float


def matches(value: object) -> bool:
    """Whether a value is a text in this format."""
    return isinstance(value, str) and _LINE.search(value) is not None


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from its text; raises `InvalidValueError`."""
    found = list(_LINE.finditer(value)) if isinstance(value, str) else []
    if not found or not isinstance(value, str):
        raise InvalidValueError.at((), 'expected lines such as "Points: 1.5, Item: what to check"')
    if before := value[: found[0].start()].strip():
        changes.append(((), f"the text before the first item is not kept: {before[:60]!r}"))
    ends = [*(match.start() for match in found[1:]), len(value)]
    items = [
        {"points": float(match["points"]), "item": value[match.end() : end].strip()}
        for match, end in zip(found, ends, strict=True)
    ]
    names = {"description": "item", "weight": "points"}
    return read_items(items, (), _Item, _fields, names)


def read_text(text: str, changes: Changes) -> RubricDocument:
    """Read a rubric from a file's text; raises `FormatError`."""
    try:
        return from_value(text, changes)
    except InvalidValueError as error:
        starts = [text.count("\n", 0, match.start()) + 1 for match in _LINE.finditer(text)]

        def lines(paths: Any) -> dict[Any, int]:
            return {path: starts[path[0]] if path else 1 for path in paths}

        raise with_lines(error, lines) from None


def _fields(index: int, item: _Item) -> dict[str, Any]:
    kind = "pitfall" if item.points < 0 else "point"
    return {"id": f"c{index + 1}", "description": item.item, "weight": item.points, "kind": kind}
