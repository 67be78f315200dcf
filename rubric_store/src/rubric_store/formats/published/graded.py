"""Graded criteria: levels with values and texts as a `scale` and a scoring guide.

A criterion's grades are 0..scale, and its score is grade / scale. Levels on another scale are placed on the smallest
one that holds them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    criterion_id,
    find_list,
    read_items,
)
from trainer_client.wire.base import RequestModel

_MAX_SCALE = 100
_TOLERANCE = 0.005
"""How far a score may move, so that 0.33 and 0.67 are thirds."""


def graded_fields(
    levels: Sequence[tuple[float, str]], low: float, high: float, *, not_applicable: str | None = None, avoided: bool
) -> tuple[dict[str, Any], list[str]]:
    """Fields of a graded criterion, and what they do not keep.

    Args:
        levels: the value and the text of each level that is described, in any order.
        low: the value whose score is 0.
        high: the value whose score is 1.
        not_applicable: the text of an option for responses that the criterion does not concern.
        avoided: whether a good response gets a low grade.

    Raises:
        ValueError: no scale of at most 100 holds the levels.
    """
    if not low < high:
        raise ValueError(f"its lowest level is {low:g} and its highest {high:g}; it needs two different ones")
    shares = [(value - low) / (high - low) for value, _ in levels]
    scale = next((n for n in range(1, _MAX_SCALE + 1) if _fits(shares, n)), None)
    if scale is None or not all(0 <= share <= 1 for share in shares):
        given = ", ".join(f"{value:g}" for value, _ in levels)
        raise ValueError(f"no scale from 0 to at most {_MAX_SCALE} has the levels {given[:100]}")
    texts: dict[int, list[str]] = {}
    for share, (_, text) in zip(shares, levels, strict=True):
        texts.setdefault(round(share * scale), []).append(" ".join(text.split()))
    lines = [f"{grade}: {' / or: '.join(one)}" for grade, one in sorted(texts.items())]
    changes = [f"judge it with the protocol graded: its levels are the grades 0 to {scale}"]
    moved = [
        f"{value:g} becomes {round(share * scale)}/{scale}"
        for share, (value, _) in zip(shares, levels, strict=True)
        if abs(share - round(share * scale) / scale) > 1e-9
    ]
    if moved:
        changes.append(f"scores are rounded to the scale: {', '.join(moved)}")
    if not_applicable is not None:
        grade = 0 if avoided else scale
        lines.append(f"Does not apply ({' '.join(not_applicable.split())}): give {grade}.")
        changes.append(
            f"grades have no {not_applicable!r}: the guide asks for {grade}, so such a response is not excluded from "
            "the mean but loses nothing"
        )
    return {"scale": scale, "scoring_guide": "\n".join(lines)}, changes


def _fits(shares: Sequence[float], scale: int) -> bool:
    """Whether each share is near a grade, and different shares have different grades."""
    if any(abs(share - round(share * scale) / scale) > _TOLERANCE for share in shares):
        return False
    return len({round(share * scale) for share in shares}) == len(set(shares))


_EXPECTED_LEVELS = 'a list [{"title": "…", "levels": {"0": "…", "3": "…"}}], alone or under "criteria"'
_TEXTS = ("description", "text", "label", "title", "name", "criteria", "expected_outcome")
_VALUES = ("score", "level", "value", "points", "grade")


class _LevelsItem(RequestModel):
    id: str | int | None = None
    title: str | None = None
    name: str | None = None
    description: str | None = None
    weight: float = 1.0
    category: str | None = None
    scale: JsonValue = None
    levels: JsonValue = None


def is_levels(value: object) -> bool:
    """Whether a value is clearly in this format."""
    items = value.get("criteria") if isinstance(value, dict) else value
    return isinstance(items, list) and any(
        isinstance(item, dict) and isinstance(item.get("levels"), dict | list) for item in items
    )


def read_levels(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML, a whole object or just its list; raises `InvalidValueError`.

    Rubrics of levels: `{"scale": {"min": 0, "max": 3}, "criteria": [{"id", "title", "levels": {"0": "…", "3": "…"}}]}`.

    Each criterion becomes a graded one, whose levels are its scoring guide. A criterion may have a `scale` of its own,
    and without any scale its levels are the scale. The lowest level is the grade 0.
    """
    path, items = find_list(value, (("criteria",),), _EXPECTED_LEVELS)
    shared = value.get("scale") if isinstance(value, dict) else None
    taken: set[str] = set()

    def fields(index: int, item: _LevelsItem) -> dict[str, Any]:
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

    return read_items(items, path, _LevelsItem, fields, changes=changes)


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
        levels.append((number, _text_of_level(text)))
    return sorted(levels)


def _text_of_level(level: object) -> str:
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


_SCORE = re.compile(r"(?:orig_)?score_?(\d{1,2})(?:_(?:description|desc|rubric))?")
_CRITERIA_FIELDS = ("criteria", "orig_criteria", "criterion")
_SCORED_TEXT = re.compile(r"\s*\[(?P<criteria>.+?)\]\s*(?=score\s*\d)", re.IGNORECASE | re.DOTALL)
_TEXT_SCORE = re.compile(r"^[ \t]*score[ \t]*(\d{1,2})[ \t]*:", re.IGNORECASE | re.MULTILINE)


class _PrometheusItem(RequestModel):
    criteria: str
    levels: tuple[tuple[float, str], ...]


def is_prometheus(value: object) -> bool:
    """Whether a value is clearly in this format."""
    if isinstance(value, str):
        return _SCORED_TEXT.match(value[:30_000]) is not None
    if isinstance(value, list):
        return bool(value) and all(map(_is_scored, value))
    return _is_scored(value)


def _is_scored(value: object) -> bool:
    return (
        isinstance(value, dict)
        and any(isinstance(value.get(field), str) for field in _CRITERIA_FIELDS)
        and any(_SCORE.fullmatch(str(key)) for key in value)
    )


def read_prometheus(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML, or from its text; raises `InvalidValueError`.

    The format of Prometheus and BiGGen-Bench: a question, and what a response of each score is like.

    `{"criteria": "Does …?", "score1_description": "…", …, "score5_description": "…"}`, also in a row under
    `score_rubric`, or with names that begin with `orig_`; or the text `[Does …?]` and then lines `Score 1: …`. It
    becomes one graded criterion. The lowest score is the grade 0.
    """
    given = value if isinstance(value, list) else [value]
    places: list[Path] = [(index,) for index in range(len(given))] if isinstance(value, list) else [()]
    items: list[object] = [_levels_of_scores(_scores_of_text(one) if isinstance(one, str) else one) for one in given]

    def fields(index: int, item: _PrometheusItem) -> dict[str, Any]:
        scores = [score for score, _ in item.levels]
        try:
            graded, notes = graded_fields(item.levels, min(scores), max(scores), avoided=False)
        except ValueError as error:
            raise InvalidValueError.at((), str(error)) from None
        changes.extend((places[index], note) for note in notes)
        return {"id": f"c{index + 1}", "description": item.criteria, **graded}

    return read_items(items, (), _PrometheusItem, fields, {"description": "criteria"}, places=places)


def _levels_of_scores(value: object) -> object:
    if not isinstance(value, dict):
        return value
    criteria = next((value[field] for field in _CRITERIA_FIELDS if field in value), None)
    levels = {int(match[1]): text for key, text in value.items() if (match := _SCORE.fullmatch(str(key)))}
    texts = [(score, text) for score, text in sorted(levels.items()) if isinstance(text, str) and text.strip()]
    return {"criteria": criteria, "levels": texts}


def _scores_of_text(text: str) -> object:
    head = _SCORED_TEXT.match(text)
    if head is None:
        raise InvalidValueError.at((), "expected [what to check] and then lines such as Score 1: …")
    scores = list(_TEXT_SCORE.finditer(text, head.end()))
    ends = [*(match.start() for match in scores[1:]), len(text)]
    levels = {
        f"score{match[1]}_description": text[match.end() : end].strip() for match, end in zip(scores, ends, strict=True)
    }
    return {"criteria": head["criteria"], **levels}
