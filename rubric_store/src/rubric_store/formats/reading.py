"""Read rubrics and files of rubrics, in a named format or in the one that the text shows.

The format of parsed JSON is detected by the names of its fields and the words that its descriptions begin with. A file
holds one rubric, or one per line if it is JSONL, and is read as a whole: if one of its rubrics cannot be read, none is.

Rubrics are also written here, with a report of what a format cannot hold.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal, cast, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from rubric_store.formats import dro, grounded, healthbench, native, rar, requirement, rgr, srar, yaml_format
from rubric_store.formats.documents import (
    FormatError,
    FormatProblem,
    InvalidValueError,
    ParsedText,
    RubricDocument,
    as_document,
    parse_json,
    validation_problems,
    with_lines,
)
from rubric_store.formats.yaml_format import parse_yaml
from trainer_client.wire import Criterion, NewRubricName, RubricContent
from trainer_client.wire.criteria import GUIDANCE_FIELDS

RubricFormat = Literal["native", "yaml", "healthbench", "rar", "srar", "rgr", "grounded", "dro", "requirement"]
EXPECTED = (
    'expected {"criteria": […]} as JSON or YAML (native, yaml), [{"criterion": …, "points": …}] (healthbench), '
    '[{"title": …, "description": …, "weight": …}] (rar), [{"description": "Factual Criteria: …", "weight": …}] (rgr), '
    '[{"requirement": …, "weight": …}] (requirement), '
    'a record with "question" and "criteria" (grounded), questions (dro), or lines such as '
    "<SUGGEST> what to check (srar)"
)


def detect_formats(value: object) -> list[RubricFormat]:
    """The formats that a value may be in: one if it is clear, several if it is ambiguous, none if unknown."""
    if requirement.matches(value):
        return ["requirement"]
    if isinstance(value, list):
        return _detect_by_items(value)
    if not isinstance(value, dict):
        return []
    if "criteria" in value:
        return ["grounded"] if value.keys() & {*grounded.METADATA_FIELDS, "passage"} else ["native"]
    if value.keys() & {"questions", "decomposed_questions"}:
        return ["dro"]
    if isinstance(value.get("rubric"), str):
        return ["srar"]
    for key in ("rubrics", "rubric"):
        if isinstance(value.get(key), list):
            return _detect_by_items(value[key])
    return ["healthbench"] if value.keys() & {"rubrics", "reward_model"} else []


def _detect_by_items(items: list[object]) -> list[RubricFormat]:
    if items and all(isinstance(item, str) for item in items):
        return ["dro"]
    objects = [item for item in items if isinstance(item, dict)]
    fields = {field for item in objects for field in item}
    if fields & {"criterion", "points"}:
        return ["healthbench"]
    if fields & {*GUIDANCE_FIELDS} and "id" in fields:
        return ["grounded"]
    if "title" in fields:
        return ["rar"]
    if "id" in fields or "description" not in fields:
        return []
    begins = [str(item.get("description")) for item in objects]
    factual = any(rgr.PREFIX.match(text) for text in begins)
    essential = any(rar.PREFIX.match(text) for text in begins) or any(
        isinstance(item.get("weight"), str) for item in objects
    )
    if factual != essential:
        return ["rgr"] if factual else ["rar"]
    return ["rar", "rgr"]


MAX_TEXT_LENGTH: Final = 16_000_000
"""Characters. The largest rubric that the store accepts has about 10 million."""

_YAML = re.compile(
    r"^(?:---|(?:criteria|name|tags|metadata|lineage|sections|rubric)[ \t]*:"
    r"|-[ \t]+(?:weight|requirement|criteria|name|title)[ \t]*:)",
    re.MULTILINE,
)
_VALUE_READERS: Final[dict[RubricFormat, Callable[[object], RubricDocument]]] = {
    "native": native.from_value,
    "healthbench": healthbench.from_value,
    "rar": rar.from_value,
    "rgr": rgr.from_value,
    "grounded": grounded.from_value,
    "dro": dro.from_value,
    "requirement": requirement.from_value,
}


def read_rubric(text: str, format: str | None = None) -> RubricContent:
    """Read the criteria of a rubric; see `read_document`."""
    return read_document(text, format).content


def read_document(text: str, format: str | None = None) -> RubricDocument:
    """Read a rubric with its header.

    Args:
        text: the whole rubric.
        format: one of `RubricFormat`; None detects it.

    Raises:
        FormatError: the format is unknown, undetected or ambiguous, or the text breaks it; lists every problem with its
            line and what was expected.
    """
    text = text.removeprefix("\ufeff")
    known = None if format is None else check_format(format)
    if len(text) > MAX_TEXT_LENGTH:
        raise FormatError(
            [FormatProblem("", f"it has {len(text)} characters; a rubric has at most {MAX_TEXT_LENGTH}", 1)]
        )
    syntax = _detect_syntax(text)
    if known == "yaml" or (known is None and syntax == "yaml"):
        parsed = parse_yaml(text)
        return _from_value("requirement" if known is None and requirement.matches(parsed.value) else "native", parsed)
    if known == "requirement" and syntax != "json":
        return _from_value(known, parse_yaml(text))
    if syntax != "json" and (known == "srar" or (known is None and syntax == "srar")):
        return srar.read_lines(text)
    if syntax != "json" and (known == "dro" or (known is None and syntax == "dro")):
        return dro.read_lines(text)
    if known is None and syntax is None:
        raise FormatError([FormatProblem("", f"unknown format; {EXPECTED}", 1)])
    parsed = parse_json(text)
    return _from_value(known or _detect_format(parsed), parsed)


def check_format(format: str) -> RubricFormat:
    """Check a format's name; raises `FormatError` with the known ones."""
    for known in get_args(RubricFormat):
        if format == known:
            return cast(RubricFormat, known)
    names = ", ".join(get_args(RubricFormat))
    raise FormatError([FormatProblem("format", f"the format {format[:40]!r} is unknown; use one of {names}")])


def _detect_format(parsed: ParsedText) -> RubricFormat:
    candidates = detect_formats(parsed.value)
    if len(candidates) == 1:
        return candidates[0]
    ambiguous = f"this could be {' or '.join(candidates)}; say which format it is" if candidates else ""
    raise FormatError([*parsed.problems, FormatProblem("", ambiguous or f"unknown format; {EXPECTED}", 1)])


def _from_value(format: RubricFormat, parsed: ParsedText) -> RubricDocument:
    read = _read_tagged_lines if format == "srar" else _VALUE_READERS[format]
    try:
        document = read(parsed.value)
    except InvalidValueError as error:
        raise FormatError([*parsed.problems, *with_lines(error, parsed.line_of).problems]) from None
    if parsed.problems:
        raise FormatError(parsed.problems)
    return document


def _read_tagged_lines(row: object) -> RubricDocument:
    lines = row.get("rubric") if isinstance(row, dict) else None
    if not isinstance(lines, str):
        raise InvalidValueError([((), 'expected tagged lines, or a row with them under "rubric"')])
    try:
        return srar.read_lines(lines)
    except FormatError as error:
        raise InvalidValueError([(("rubric",), str(problem)) for problem in error.problems]) from None


def _detect_syntax(text: str) -> Literal["json", "yaml", "srar", "dro"] | None:
    if text.lstrip().startswith(("{", "[")):
        return "json"
    if _YAML.search(text):
        return "yaml"
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if any(line.startswith("<") for line in lines):
        return "srar"
    return "dro" if lines and all(line.endswith("?") for line in lines) else None


JSONL_EXTENSIONS: Final = frozenset({".jsonl", ".ndjson"})
"""Extensions of files with one rubric per line."""

FILE_EXTENSIONS: Final = frozenset({".json", ".yaml", ".yml", ".txt", ".srar", *JSONL_EXTENSIONS})
"""Extensions of the files that are read from a folder."""

_ROW_IDS = ("name", "id", "prompt_id", "example_id", "uid", "doc_hash")
_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class NamedRubric:
    """A rubric of a file, with its name and the line where it begins."""

    name: str
    document: RubricDocument
    line: int


def read_file(content: bytes, path: PurePath, format: str | None = None, prefix: str = "") -> list[NamedRubric]:
    """Read every rubric of a file.

    Args:
        content: the bytes of the file, UTF-8.
        path: the part of its path that names are made from: `math/Quadratics.yaml` gives `math/quadratics`. A row of a
            JSONL file adds its id, or else its line: `health/dev/line-12`.
        format: see `read_document`.
        prefix: put before every name, also before a name given in the file.

    Raises:
        FormatError: with every problem of the file and its line.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError([FormatProblem("", "this is not UTF-8 text; save the file as UTF-8", line)]) from None
    stem = "/".join(part for part in map(_as_name, (*path.parts[:-1], path.stem)) if part)
    if path.suffix.lower() not in JSONL_EXTENSIONS:
        document = read_document(text, format)
        return [NamedRubric(_check_name(prefix + (document.name or stem), 1), document, 1)]
    read: list[NamedRubric] = []
    problems: list[FormatProblem] = []
    for line, row in _rows(text):
        try:
            document = read_document(row, format)
            name = document.name or f"{stem}/{_row_id(row) or f'line-{line}'}".lstrip("/")
            read.append(NamedRubric(_check_name(prefix + name, line), document, line))
        except FormatError as error:
            problems += [FormatProblem(problem.place, problem.message, line) for problem in error.problems]
    if not read and not problems:
        problems.append(FormatProblem("", "no line contains a rubric", 1))
    lines: dict[str, int] = {}
    for rubric in read:
        if lines.setdefault(rubric.name, rubric.line) != rubric.line:
            message = f"line {lines[rubric.name]} also names a rubric {rubric.name!r}; names in a file must differ"
            problems.append(FormatProblem("", message, rubric.line))
    if problems:
        raise FormatError(problems)
    return read


def _rows(text: str) -> Iterator[tuple[int, str]]:
    for line, row in enumerate(text.split("\n"), start=1):
        if row.strip():
            yield line, row


def _row_id(row: str) -> str:
    value = parse_json(row).value
    if not isinstance(value, dict):
        return ""
    row_id = next((value[key] for key in _ROW_IDS if isinstance(value.get(key), str | int)), "")
    return _as_name(str(row_id))


def _as_name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-._")[:100]


def _check_name(name: str, line: int) -> str:
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        reason = "; ".join(message for _, message in validation_problems(error))
        raise FormatError(
            [FormatProblem("name", f"{name[:80]!r} is not a valid rubric name: {reason}", line)]
        ) from None


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
"""The file extension of each format."""


@dataclass(frozen=True, slots=True)
class LostField:
    """A field that the text cannot reproduce, of a criterion, or of the rubric if `criterion` is None."""

    criterion: str | None
    field: str
    original: object
    result: object

    def __str__(self) -> str:
        criterion = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        result = _display(self.result)
        return f"{criterion}: {self.field} {_display(self.original)} {f'becomes {result}' if result else 'is left out'}"


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
    text = _WRITERS[known](document)
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


def _find_lost_fields(
    criterion: str | None, original: Criterion | RubricDocument, read: Criterion | RubricDocument
) -> list[LostField]:
    fields = [field for field in type(original).model_fields if field != "content"]
    compared = [LostField(criterion, field, getattr(original, field), getattr(read, field)) for field in fields]
    return [loss for loss in compared if loss.original != loss.result]


def _display(value: object) -> str:
    if value is None or value == () or value == {}:
        return ""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    shown = f"{plain:g}" if isinstance(plain, float) else json.dumps(plain, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
