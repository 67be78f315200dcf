"""Rubric documents as readers and writers share them: headers, criteria, and problems with their lines.

Criteria are read one by one, so that all problems of a file are found at once. JSON is parsed strictly. Line numbers
are computed only if something is wrong: a text without problems is parsed once, by the standard library.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer_client.wire import Criterion, Lineage, NewRubricName, RubricContent, RubricTag
from trainer_client.wire.base import JsonObject
from trainer_client.wire.rubrics import MAX_TAGS

Path = tuple[int | str, ...]
"""A path into parsed values, such as `("criteria", 2, "weight")`."""

LineOf = Callable[[Collection[Path]], dict[Path, int]]
"""Maps paths, or their longest known prefixes, to line numbers."""

_MESSAGES = {
    "extra_forbidden": "this field is not permitted here; correct its spelling or remove it",
    "missing": "this field is required",
    "string_pattern_mismatch": "only letters, digits and . _ - are permitted, a letter or digit first; in names and "
    "tags letters are lower-case, and / is permitted between words",
    "model_type": "expected an object with fields",
}


@dataclass(frozen=True, slots=True)
class FormatProblem:
    """One problem: its place, what is wrong or was expected, and its line (from 1; None if it has none)."""

    place: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.place)))
        return f"{where}: {self.message}" if where else self.message


class FormatError(ValueError):
    """A rubric that cannot be read or written; `problems` lists every problem in line order."""

    def __init__(self, problems: Iterable[FormatProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(map(str, self.problems)))


class InvalidValueError(Exception):
    """Problems of a parsed value, each with its path; their lines are not known yet."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        super().__init__(found)
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text: its value, the lines of its parts, and the problems that did not prevent parsing."""

    value: object
    line_of: LineOf
    problems: tuple[FormatProblem, ...] = ()


def with_lines(error: InvalidValueError, line_of: LineOf) -> FormatError:
    """Add line numbers to the problems of an error."""
    lines = line_of([path for path, _ in error.found])
    return FormatError([FormatProblem(format_path(path), message, lines.get(path)) for path, message in error.found])


def validation_problems(error: ValidationError) -> list[tuple[Path, str]]:
    """All problems that validation found, each with its path."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    return [(one["loc"], _MESSAGES.get(one["type"], one["msg"].removeprefix("Value error, "))) for one in errors]


def format_path(path: Path) -> str:
    """A path in the notation `criteria[2].weight`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:60]}" for step in path if not _is_label(step))
    return "".join(steps).removeprefix(".")


def _is_label(step: int | str) -> bool:
    return isinstance(step, str) and step.startswith("(")


MAX_CRITERIA: Final = 512
ItemT = TypeVar("ItemT", bound=BaseModel)


class RubricHeader(BaseModel):
    """What a file may hold beside the criteria: the rubric's name, tags, metadata and lineage."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: NewRubricName | None = None
    tags: tuple[RubricTag, ...] = Field(default=(), max_length=MAX_TAGS)
    metadata: JsonObject | None = None
    lineage: Lineage | None = None


class RubricDocument(RubricHeader):
    """One rubric with its header, as in a file."""

    content: RubricContent


def as_document(content: RubricContent | RubricDocument) -> RubricDocument:
    """Wrap bare criteria in a document."""
    return content if isinstance(content, RubricDocument) else RubricDocument(content=content)


def read_items(
    value: object,
    root: Path,
    item: type[ItemT],
    convert: Callable[[int, ItemT], dict[str, Any] | Criterion],
    field_names: Mapping[str, str] | None = None,
) -> RubricContent:
    """Read a list of criteria.

    Args:
        value: the parsed value that should be the list.
        root: the path to it, for problems.
        item: the format's model of one criterion.
        convert: converts an index in the list and the item to a criterion's fields; may raise `InvalidValueError` with
            paths that are relative to the item.
        field_names: the format's names of a criterion's fields, where they differ.

    Raises:
        InvalidValueError: with all problems.
    """
    if not isinstance(value, list):
        raise InvalidValueError([(root, "expected a list of criteria")])
    if not 1 <= len(value) <= MAX_CRITERIA:
        raise InvalidValueError(
            [(root, f"it has {len(value)} criteria; a rubric has at least 1 item and at most {MAX_CRITERIA}")]
        )
    criteria: list[Criterion] = []
    found = _duplicate_ids(value, root)
    for index, raw in enumerate(value):
        try:
            criterion = _criterion(convert(index, item.model_validate(raw)), field_names or {})
        except ValidationError as error:
            found += [((*root, index, *path), message) for path, message in validation_problems(error)]
        except InvalidValueError as error:
            found += [((*root, index, *path), message) for path, message in error.found]
        else:
            criteria.append(criterion)
    only_pitfalls = all(criterion.kind == "pitfall" and criterion.weight < 0 for criterion in criteria)
    if len(criteria) == len(value) and not only_pitfalls and not any(criterion.weight > 0 for criterion in criteria):
        message = (
            "no criterion has a positive weight, so the reward has nothing to divide by; give one a weight above 0, or "
            "write a list of mistakes in a format that has them (native, yaml, rar, requirement)"
        )
        found.append((root, message))
    if found:
        raise InvalidValueError(found)
    return RubricContent(criteria=tuple(criteria))


def _duplicate_ids(items: Sequence[object], root: Path) -> list[tuple[Path, str]]:
    first: dict[str, int] = {}
    found: list[tuple[Path, str]] = []
    for index, item in enumerate(items):
        id_ = item.get("id") if isinstance(item, dict) else None
        if isinstance(id_, str) and first.setdefault(id_, index) != index:
            message = f"{id_[:130]!r} is also the id of criterion {first[id_] + 1}; ids must differ"
            found.append(((*root, index, "id"), message))
    return found


def _criterion(fields: dict[str, Any] | Criterion, field_names: Mapping[str, str]) -> Criterion:
    if isinstance(fields, Criterion):
        return fields
    try:
        return Criterion.model_validate(fields)
    except ValidationError as error:
        renamed = [
            ((*(field_names.get(str(step), step) for step in path[:1]), *path[1:]), message)
            for path, message in validation_problems(error)
        ]
        raise InvalidValueError(renamed) from None


def find_list(value: object, paths: Sequence[tuple[str, ...]], expected: str) -> tuple[Path, object]:
    """Find the criteria in a row: the value itself if it is a list, else the first of these paths that exists.

    Raises:
        InvalidValueError: none of the paths exists.
    """
    if isinstance(value, list):
        return (), value
    for path in paths:
        inner, depth = value, 0
        while depth < len(path) and isinstance(inner, dict) and path[depth] in inner:
            inner, depth = inner[path[depth]], depth + 1
        if depth == len(path):
            return path, inner
    raise InvalidValueError([((), f"expected {expected}")])


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:\s"]+', re.DOTALL)
DUPLICATE_FIELD = "given twice in one object; remove one"
_TOO_DEEP = "it is nested too deeply; a rubric has at most five levels"


def parse_json(text: str) -> ParsedText:
    """Parse a JSON text; duplicate fields become `problems` of the result.

    Raises:
        FormatError: the text is not JSON (with line and column), or is nested too deeply.
    """
    has_duplicates = False

    def one_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal has_duplicates
        fields = dict(pairs)
        has_duplicates = has_duplicates or len(fields) < len(pairs)
        return fields

    try:
        value: object = json.loads(text, object_pairs_hook=one_object)
    except json.JSONDecodeError as error:
        raise FormatError(
            [FormatProblem(f"column {error.colno}", f"expected JSON: {error.msg}", error.lineno)]
        ) from None
    except RecursionError:
        raise FormatError([FormatProblem("", _TOO_DEEP, 1)]) from None
    except ValueError as error:
        raise FormatError([FormatProblem("", f"cannot be read: {error}", 1)]) from None
    duplicates = (
        [
            FormatProblem(format_path(path), DUPLICATE_FIELD, line)
            for path, line, duplicate in _positions(text)
            if duplicate
        ]
        if has_duplicates
        else []
    )
    return ParsedText(value, lambda wanted: json_lines(text, wanted), tuple(duplicates))


def json_lines(text: str, wanted: Collection[Path]) -> dict[Path, int]:
    """The line of each path in a valid JSON text, or of its longest existing prefix."""
    missing = {path for path in wanted if path}
    known: dict[Path, int] = {}
    positions = _positions(text) if missing else iter(())
    for path, line, _ in positions:
        known[path] = line
        missing.discard(path)
        if not missing:
            break
    return nearest_lines(known, wanted)


def nearest_lines(known: dict[Path, int], wanted: Iterable[Path]) -> dict[Path, int]:
    """The line of each path, or of its longest prefix whose line is known, else 1."""
    return {path: next((known[path[:n]] for n in range(len(path), 0, -1) if path[:n] in known), 1) for path in wanted}


def _positions(text: str) -> Iterator[tuple[Path, int, bool]]:
    """Every member and element of a valid JSON text: path, line, and whether it duplicates a field of its object."""
    frames: list[
        tuple[list[int], set[str] | None]
    ] = []  # the current index of an array, or the fields seen in an object
    path: list[int | str] = []
    line, end, key = 1, 0, None
    for match in _TOKEN.finditer(text):
        line += text.count("\n", end, match.start())
        end, piece = match.start(), match.group()
        if piece in "]}":
            frames.pop()
            path[len(frames) :] = []
        elif piece == ":" and frames and frames[-1][1] is not None and key is not None:
            name, at = key
            path[len(frames) - 1 :] = [name]
            yield tuple(path), at, name in frames[-1][1]
            frames[-1][1].add(name)
        elif piece == ",":
            if frames[-1][1] is None:
                frames[-1][0][0] += 1
        else:
            if frames and frames[-1][1] is None:
                path[len(frames) - 1 :] = [frames[-1][0][0]]
                yield tuple(path), line, False
            if piece in "[{":
                frames.append(([0], set() if piece == "{" else None))
            elif piece[0] == '"':
                key = (str(json.loads(piece, strict=False)), line)
