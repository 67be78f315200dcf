"""Rubrics of levels: `{"scale": {"min": 0, "max": 3}, "criteria": [{"id", "title", "levels": {"0": "…", "3": "…"}}]}`.

Each criterion becomes a graded one, whose levels are its scoring guide. A criterion may have a `scale` of its own, and
without any scale its levels are the scale. The lowest level is the grade 0.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    RubricDocument,
    criterion_id,
    find_list,
    read_items,
)
from rubric_store.formats.grades import graded_fields
from trainer_client.wire.base import RequestModel

_EXPECTED = 'a list [{"title": "…", "levels": {"0": "…", "3": "…"}}], alone or under "criteria"'
_TEXTS = ("description", "text", "label", "title", "name", "criteria", "expected_outcome")
_VALUES = ("score", "level", "value", "points", "grade")


class _Item(RequestModel):
    id: str | int | None = None
    title: str | None = None
    name: str | None = None
    description: str | None = None
    weight: float = 1.0
    category: str | None = None
    scale: JsonValue = None
    levels: JsonValue = None


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    items = value.get("criteria") if isinstance(value, dict) else value
    return isinstance(items, list) and any(
        isinstance(item, dict) and isinstance(item.get("levels"), dict | list) for item in items
    )


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML, a whole object or just its list; raises `InvalidValueError`."""
    path, items = find_list(value, (("criteria",),), _EXPECTED)
    shared = value.get("scale") if isinstance(value, dict) else None
    taken: set[str] = set()

    def fields(index: int, item: _Item) -> dict[str, Any]:
        title = item.title or item.name
        taken.add(id_ := criterion_id(title if item.id is None else item.id, index, taken))
        scale = item.scale if item.scale is not None else shared
        levels = _levels(item.levels) or _levels(scale.get("labels") if isinstance(scale, dict) else None)
        low, high = _bounds(scale, [level for level, _ in levels])
        try:
            graded, notes = graded_fields(levels, low, high, avoided=item.weight < 0)
        except ValueError as error:
            raise InvalidValueError.at(("levels",), str(error)) from None
        changes.extend(((*path, index), note) for note in notes)
        return {
            "id": id_,
            "name": title and title[:200],
            "description": item.description or title,
            "weight": item.weight,
            "tags": (item.category,) if item.category else (),
            **{key: one for key, one in graded.items() if one},
        }

    return read_items(items, path, _Item, fields, changes=changes)


def _levels(value: object) -> list[tuple[float, str]]:
    """The levels of a mapping from values to texts, or of a list of texts or objects, from the lowest."""
    pairs: list[tuple[object, object]]
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = [
            (next((one[key] for key in _VALUES if key in one), place) if isinstance(one, dict) else place, one)
            for place, one in enumerate(value)
        ]
    else:
        return []
    levels = []
    for given, text in pairs:
        try:
            number = float(str(given).removeprefix("level_").removeprefix("score_"))
        except ValueError:
            message = f"{str(given)[:40]!r} is not a number; name each level by its value"
            raise InvalidValueError.at(("levels",), message) from None
        levels.append((number, _text(text)))
    return sorted(levels)


def _text(level: object) -> str:
    if isinstance(level, Mapping):
        return ": ".join(str(level[key]) for key in ("label", "description") if level.get(key)) or str(
            next((level[key] for key in _TEXTS if level.get(key)), "")
        )
    return str(level)


def _bounds(scale: object, levels: list[float]) -> tuple[float, float]:
    """The lowest and the highest value: of the scale if it says them, else of the levels."""
    fields = scale if isinstance(scale, dict) else {"max": scale} if isinstance(scale, int | float) else {}
    given = [fields.get(name) for name in ("min", "max")]
    low, high = (float(one) if isinstance(one, int | float) else None for one in given)
    if low is None:
        low = 0.0 if high is not None and min(levels, default=0.0) >= 0 else min(levels, default=0.0)
    return low, max(levels, default=4.0) if high is None else high
