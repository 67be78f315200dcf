"""Write a rubric in a format, with a report of what the format cannot hold."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from rubric_store.formats.documents import FormatError, FormatProblem, RubricDocument, as_document
from rubric_store.formats.reading import read_document
from rubric_store.formats.table import FORMATS, WRITTEN_FORMATS, RubricFormat, check_format
from trainer_client.wire import Criterion, RubricContent


@dataclass(frozen=True, slots=True)
class LostField:
    """A field that the text cannot reproduce, of a criterion, or of the rubric if `criterion` is None."""

    criterion: str | None
    field: str
    original: object
    result: object

    def __str__(self) -> str:
        criterion = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        original, result = _display(self.original) or "none", _display(self.result)
        return f"{criterion}: {self.field} {original} {f'becomes {result}' if result else 'is left out'}"


@dataclass(frozen=True, slots=True)
class SerializedRubric:
    """A rubric as text, and the fields that the text loses."""

    text: str
    losses: tuple[LostField, ...]


def write_rubric(rubric: RubricContent | RubricDocument, format: str) -> SerializedRubric:
    """Write a rubric in a format.

    Wording, order and each criterion's effect on the reward always survive: a pitfall stays a penalty. Everything else
    that the format cannot hold is left out and listed in `losses`.

    Raises:
        FormatError: the format is unknown, or cannot express a criterion; names every such criterion.
    """
    document, known = as_document(rubric), check_format(format)
    write = FORMATS[known].write
    if write is None:
        raise FormatError.of(f"{known} is only read; write one of {', '.join(WRITTEN_FORMATS)}", place="format")
    criteria = document.content.criteria
    problems = [FormatProblem(f"criterion {one.id}", reason) for one in criteria for reason in _unsupported(known, one)]
    if problems:
        raise FormatError(problems)
    text = write(document)
    try:
        reread = read_document(text, known)
    except FormatError as error:
        raise FormatError(
            [FormatProblem("", f"{known} cannot hold this rubric: {problem.message}") for problem in error.problems]
        ) from None
    pairs = list(zip(document.content.criteria, reread.content.criteria, strict=True))
    changed = [one.id for one, read in pairs if one.description != read.description]
    if changed:
        message = f"{known} would read its description differently: it begins or ends like the format's own syntax"
        raise FormatError([FormatProblem(f"criterion {id_}", f"{message}; reword it") for id_ in changed])
    losses = [loss for one, read in pairs for loss in _find_lost_fields(one.id, one, read)]
    return SerializedRubric(text, (*_find_lost_fields(None, document, reread), *losses))


def _unsupported(format: RubricFormat, criterion: Criterion) -> Iterator[str]:
    """Why a format cannot hold a criterion."""
    if criterion.shadow and format not in ("native", "yaml"):
        yield f"{format} has no shadow criteria, and would reward this one; export a version without it"
    if (not_in := FORMATS[format].not_in) is not None:
        yield from not_in(criterion)


def _find_lost_fields(
    criterion: str | None, original: Criterion | RubricDocument, read: Criterion | RubricDocument
) -> list[LostField]:
    fields = [field for field in type(original).model_fields if field not in ("content", "changes")]
    compared = [LostField(criterion, field, getattr(original, field), getattr(read, field)) for field in fields]
    return [loss for loss in compared if loss.original != loss.result]


def _display(value: object) -> str:
    if value is None or value == () or value == {}:
        return ""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    shown = f"{plain:g}" if isinstance(plain, float) else json.dumps(plain, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
