"""The format of Prometheus and BiGGen-Bench: a question, and what a response of each score is like.

`{"criteria": "Does …?", "score1_description": "…", …, "score5_description": "…"}`, also in a row under `score_rubric`,
or with names that begin with `orig_`; or the text `[Does …?]` and then lines `Score 1: …`. It becomes one graded
criterion. The lowest score is the grade 0.
"""

import re
from typing import Any

from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    Path,
    RubricDocument,
    read_items,
)
from rubric_store.formats.grades import graded_fields
from trainer_client.wire.base import RequestModel

_SCORE = re.compile(r"(?:orig_)?score_?(\d{1,2})(?:_(?:description|desc|rubric))?")
_CRITERIA = ("criteria", "orig_criteria", "criterion")
_TEXT = re.compile(r"\s*\[(?P<criteria>.+?)\]\s*(?=score\s*\d)", re.IGNORECASE | re.DOTALL)
_TEXT_SCORE = re.compile(r"^[ \t]*score[ \t]*(\d{1,2})[ \t]*:", re.IGNORECASE | re.MULTILINE)


class _Item(RequestModel):
    criteria: str
    levels: tuple[tuple[float, str], ...]


def matches(value: object) -> bool:
    """Whether a value is clearly in this format."""
    if isinstance(value, str):
        return _TEXT.match(value[:30_000]) is not None
    if isinstance(value, list):
        return bool(value) and all(map(_is_scored, value))
    return _is_scored(value)


def _is_scored(value: object) -> bool:
    return (
        isinstance(value, dict)
        and any(isinstance(value.get(field), str) for field in _CRITERIA)
        and any(_SCORE.fullmatch(str(key)) for key in value)
    )


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML, or from its text; raises `InvalidValueError`."""
    given = value if isinstance(value, list) else [value]
    places: list[Path] = [(index,) for index in range(len(given))] if isinstance(value, list) else [()]
    items: list[object] = [_item(_from_text(one) if isinstance(one, str) else one) for one in given]

    def fields(index: int, item: _Item) -> dict[str, Any]:
        scores = [score for score, _ in item.levels]
        try:
            graded, notes = graded_fields(item.levels, min(scores), max(scores), avoided=False)
        except ValueError as error:
            raise InvalidValueError.at((), str(error)) from None
        changes.extend((places[index], note) for note in notes)
        return {"id": f"c{index + 1}", "description": item.criteria, **graded}

    return read_items(items, (), _Item, fields, {"description": "criteria"}, places=places)


def _item(value: object) -> object:
    if not isinstance(value, dict):
        return value
    criteria = next((value[field] for field in _CRITERIA if field in value), None)
    levels = {int(match[1]): text for key, text in value.items() if (match := _SCORE.fullmatch(str(key)))}
    texts = [(score, text) for score, text in sorted(levels.items()) if isinstance(text, str) and text.strip()]
    return {"criteria": criteria, "levels": texts}


def _from_text(text: str) -> object:
    head = _TEXT.match(text)
    if head is None:
        raise InvalidValueError.at((), "expected [what to check] and then lines such as Score 1: …")
    scores = list(_TEXT_SCORE.finditer(text, head.end()))
    ends = [*(match.start() for match in scores[1:]), len(text)]
    levels = {
        f"score{match[1]}_description": text[match.end() : end].strip() for match, end in zip(scores, ends, strict=True)
    }
    return {"criteria": head["criteria"], **levels}
