"""Writes rubrics, and says what a format could not hold.

What is lost is not declared by a format but found: what was written is read back and compared with the rubric. So
nothing is lost unsaid.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

from rubric_store.formats import dro, grounded, healthbench, native, rar, requirement, rgr, srar, yaml_format
from rubric_store.formats.documents import RubricDocument, whole
from rubric_store.formats.errors import FormatError, Problem
from rubric_store.formats.reading import check_format, read_document
from rubric_store.formats.recognition import RubricFormat
from trainer_client.wire import Criterion, RubricContent

_WRITERS: dict[RubricFormat, Callable[[RubricDocument], str]] = {
    "native": native.write,
    "yaml": yaml_format.write,
    "healthbench": healthbench.write,
    "rar": rar.write,
    "srar": srar.write,
    "rgr": rgr.write,
    "grounded": grounded.write,
    "dro": dro.write,
    "requirement": requirement.write,
}
SUFFIXES: dict[RubricFormat, str] = {
    **dict.fromkeys(_WRITERS, ".json"),
    "yaml": ".yaml",
    "srar": ".txt",
}
"""What files of each format end in."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that reading the text back would not give: a field of a criterion, or of the rubric (no criterion)."""

    criterion: str | None
    field: str
    was: object
    becomes: object

    def __str__(self) -> str:
        whose = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        becomes = _shown(self.becomes)
        return f"{whose}: {self.field} {_shown(self.was)} {f'becomes {becomes}' if becomes else 'is left out'}"


@dataclass(frozen=True, slots=True)
class Written:
    """A rubric as text, and all that the text does not say."""

    text: str
    losses: tuple[Loss, ...]


def write_rubric(rubric: RubricContent | RubricDocument, format: str) -> Written:
    """Write a rubric in a format.

    Wording and order always survive, and so does what a criterion means to the reward: a pitfall stays something that
    costs. What else the format has no place for is left out, and named in `losses`.

    Raises:
        FormatError: the format is unknown, or some criterion cannot be said in it; names every one that cannot.
    """
    document, known = whole(rubric), check_format(format)
    text = _WRITERS[known](document)
    try:
        back = read_document(text, known)
    except FormatError as error:
        raise FormatError(
            [Problem("", f"{known} cannot hold this rubric: {problem.message}") for problem in error.problems]
        ) from None
    pairs = list(zip(document.content.criteria, back.content.criteria, strict=True))
    changed = [one.id for one, read in pairs if one.description != read.description]
    if changed:
        message = f"{known} would read its description differently: it begins or ends like something of the format"
        raise FormatError([Problem(f"criterion {id_}", f"{message}; reword it") for id_ in changed])
    losses = [loss for one, read in pairs for loss in _lost(one.id, one, read)]
    return Written(text, (*_lost(None, document, back), *losses))


def _lost(whose: str | None, was: Criterion | RubricDocument, read: Criterion | RubricDocument) -> list[Loss]:
    fields = [field for field in type(was).model_fields if field != "content"]
    found = [Loss(whose, field, getattr(was, field), getattr(read, field)) for field in fields]
    return [loss for loss in found if loss.was != loss.becomes]


def _shown(value: object) -> str:
    if value is None or value == () or value == {}:
        return ""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    shown = f"{plain:g}" if isinstance(plain, float) else json.dumps(plain, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
