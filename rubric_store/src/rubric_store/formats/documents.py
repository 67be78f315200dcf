"""Rubric documents as readers and writers share them: headers, criteria, and problems with their lines.

Criteria are read one by one, so that all problems of a file are found at once. JSON is parsed strictly. Line numbers
are computed only if something is wrong: a text without problems is parsed once, by the standard library.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count
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
    """A rubric that cannot be read or written; `problems` lists every problem in line order.

    Its text folds problems of one kind; see `fold_problems`. If the format was not recognised, name it with `--format`.
    """

    code = "rubric-format"

    def __init__(self, problems: Iterable[FormatProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(map(str, fold_problems(self.problems))))

    @classmethod
    def of(cls, message: str, line: int | None = None, place: str = "") -> "FormatError":
        """The error of one problem."""
        return cls([FormatProblem(place, message, line)])


_FOLD_ABOVE = 3
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\d+(?:\.\d+)?")
_INDEX = re.compile(r"\[\d+\]")


def fold_problems(problems: Iterable[FormatProblem]) -> list[FormatProblem]:
    """Fold problems of one kind, if there are more than three, into the first with their number.

    Problems are of one kind if they differ only in numbers and quoted texts.
    """
    kinds: dict[tuple[str, str], list[FormatProblem]] = {}
    for problem in problems:
        kind = (_INDEX.sub("[]", problem.place), _VARIABLE.sub("…", problem.message))
        kinds.setdefault(kind, []).append(problem)
    folded: list[FormatProblem] = []
    for (place, _), alike in kinds.items():
        if len(alike) <= _FOLD_ABOVE:
            folded += alike
            continue
        rows = len({problem.line for problem in alike})
        many = f"{rows:,} lines" if rows > 1 else f"{len(alike):,} times"
        same = len({problem.message for problem in alike}) == 1
        first = ", ".join(filter(None, (f"line {alike[0].line}" if alike[0].line else "", alike[0].place)))
        says = alike[0].message if same else f"{alike[0].message}, and the like"
        folded.append(FormatProblem(place, f"{says} ({many}{f'; first: {first}' if first else ''})"))
    return folded


class InvalidValueError(Exception):
    """Problems of a parsed value, each with its path; their lines are not known yet."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        super().__init__(found)
        self.found = tuple(found)

    @classmethod
    def at(cls, path: Path, message: str) -> "InvalidValueError":
        """The error of one problem."""
        return cls([(path, message)])


Changes = list[tuple[Path, str]]
"""What a reader could not keep as the file has it, each with its path; readers append to it."""


class OmittedItemError(Exception):
    """A criterion that has no counterpart here and is left out, with the reason."""


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text: its value, the lines of its parts, and the problems that did not prevent parsing."""

    value: object
    line_of: LineOf
    problems: tuple[FormatProblem, ...] = ()


def decode(content: bytes) -> str:
    """The text of a file, with line feeds at the ends of lines; raises `FormatError` if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError.of("this is not UTF-8 text; save the file as UTF-8", line) from None


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
    """One rubric with its header, as in a file.

    Attributes:
        content: the criteria.
        changes: what the rubric does not hold as the file has it; never written.
    """

    content: RubricContent
    changes: tuple[FormatProblem, ...] = Field(default=(), exclude=True, repr=False)


def as_document(content: RubricContent | RubricDocument) -> RubricDocument:
    """Wrap bare criteria in a document."""
    return content if isinstance(content, RubricDocument) else RubricDocument(content=content)


def read_items(
    value: object,
    root: Path,
    item: type[ItemT],
    convert: Callable[[int, ItemT], dict[str, Any] | Criterion],
    field_names: Mapping[str, str] | None = None,
    changes: Changes | None = None,
    places: Sequence[Path] | None = None,
) -> RubricDocument:
    """Read a list of criteria.

    Args:
        value: the parsed value that should be the list.
        root: the path to it, for problems that concern no single item.
        item: the format's model of one criterion.
        convert: converts an index in the list and the item to a criterion's fields; may raise `InvalidValueError` with
            paths that are relative to the item, or `OmittedItemError`.
        field_names: the format's names of a criterion's fields, where they differ.
        changes: receives fields that the format does not have and items that are left out. None refuses such fields.
        places: the path to each item, if they stand in several places of the file.

    Raises:
        InvalidValueError: with all problems.
    """
    if not isinstance(value, list):
        raise InvalidValueError.at(root, "expected a list of criteria")
    if not 1 <= len(value) <= MAX_CRITERIA:
        message = f"it has {len(value)} criteria; a rubric has at least 1 item and at most {MAX_CRITERIA}"
        raise InvalidValueError.at(root, message)
    places = places or [(*root, index) for index in range(len(value))]
    criteria: list[Criterion] = []
    found = _duplicate_ids(value, places) if "id" in item.model_fields else []
    omitted: Changes = []
    for index, (place, raw) in enumerate(zip(places, value, strict=True)):
        try:
            known = raw if changes is None else _known_fields(raw, item, place, changes)
            criterion = _criterion(convert(index, item.model_validate(known)), field_names or {})
        except ValidationError as error:
            found += [((*place, *path), message) for path, message in validation_problems(error)]
        except InvalidValueError as error:
            found += [((*place, *path), message) for path, message in error.found]
        except OmittedItemError as error:
            omitted.append((place, str(error)))
        else:
            criteria.append(criterion)
    if not criteria and not found:
        found = omitted
    elif len(criteria) + len(omitted) == len(value) and not _has_divisor(criteria):
        message = (
            "no criterion has a positive weight, so the reward has nothing to divide by; give one a weight above 0, or "
            "write a list of mistakes in a format that has them (native, yaml, rar, requirement)"
        )
        found.append((root, message))
    if found:
        raise InvalidValueError(found)
    if changes is not None:
        changes += omitted
    return RubricDocument(content=RubricContent(criteria=tuple(criteria)))


def _has_divisor(criteria: Sequence[Criterion]) -> bool:
    """Whether rewards can be divided by the weights: some are positive, or all criteria are pitfalls."""
    only_pitfalls = all(criterion.kind == "pitfall" and criterion.weight < 0 for criterion in criteria)
    return only_pitfalls or any(criterion.weight > 0 for criterion in criteria)


_NEAR_MISS = 0.9
"""How similar a field's name is to one of the format's from which it counts as misspelt."""


def _known_fields(raw: object, item: type[BaseModel], place: Path, changes: Changes) -> object:
    """An item without fields that its format does not have; a near miss of one that it has stays and is refused."""
    if not isinstance(raw, dict) or not item.model_fields or "root" in item.model_fields:
        return raw
    names = item.model_fields
    extra = [key for key in raw if key not in names and not get_close_matches(str(key)[:100], names, 1, _NEAR_MISS)]
    changes += [((*place, str(key)), "the field is not kept") for key in extra]
    return {key: inner for key, inner in raw.items() if key not in extra} if extra else raw


_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]+")


def criterion_id(label: object, place: int, taken: Container[str]) -> str:
    """Make an id of a label: the label itself if it can be one, else its letters, else `c` and the place.

    A number is added to an id in `taken`.
    """
    plain = unicodedata.normalize("NFKD", str(label)).encode("ascii", "ignore").decode("ascii") if label else ""
    made = _NOT_IN_IDS.sub("-", plain).strip("-._")[:120] or f"c{place + 1}"
    numbered = (f"{made}-{n}" for n in count(2))
    return made if made not in taken else next(one for one in numbered if one not in taken)


def _duplicate_ids(items: Sequence[object], places: Sequence[Path]) -> list[tuple[Path, str]]:
    first: dict[str, int] = {}
    found: list[tuple[Path, str]] = []
    for index, item in enumerate(items):
        id_ = item.get("id") if isinstance(item, dict) else None
        if isinstance(id_, str) and first.setdefault(id_, index) != index:
            message = f"{id_[:130]!r} is also the id of criterion {first[id_] + 1}; ids must differ"
            found.append(((*places[index], "id"), message))
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
    raise InvalidValueError.at((), f"expected {expected}")


_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{},:]|[^][{},:\s"]+', re.DOTALL)


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
        raise FormatError.of(f"expected JSON: {error.msg}", error.lineno, f"column {error.colno}") from None
    except RecursionError:
        raise FormatError.of("it is nested too deeply; a rubric has at most five levels", 1) from None
    except ValueError as error:
        raise FormatError.of(f"cannot be read: {error}", 1) from None
    duplicates = [
        FormatProblem(format_path(path), "given twice in one object; remove one", line)
        for path, line, duplicate in (_positions(text) if has_duplicates else ())
        if duplicate
    ]
    return ParsedText(value, lambda wanted: _json_lines(text, wanted), tuple(duplicates))


def _json_lines(text: str, wanted: Collection[Path]) -> dict[Path, int]:
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
