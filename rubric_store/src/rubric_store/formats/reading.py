"""Reads rubrics: in the format named, or in the one that the text shows where it shows one."""

import re
from collections.abc import Callable
from typing import Final, Literal, cast, get_args

from rubric_store.formats import dro, grounded, healthbench, native, rar, requirement, rgr, srar
from rubric_store.formats.documents import RubricDocument
from rubric_store.formats.errors import FormatError, FormatProblem, InvalidValueError, ParsedText, with_lines
from rubric_store.formats.json_text import parse_json
from rubric_store.formats.recognition import EXPECTED, RubricFormat, detect_formats
from rubric_store.formats.yaml_text import parse_yaml
from trainer_client.wire import RubricContent

MAX_TEXT_LENGTH: Final = 16_000_000
"""Characters. The largest rubric that the store takes is some 10 million."""

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
    """Read a rubric, and what its file says beside the criteria.

    Args:
        text: the whole rubric.
        format: one of `RubricFormat`; None recognises it.

    Raises:
        FormatError: the format is unknown, unrecognised or ambiguous, or the text breaks it; lists every problem with
            its line, and what was expected.
    """
    text = text.removeprefix("\ufeff")
    known = None if format is None else check_format(format)
    if len(text) > MAX_TEXT_LENGTH:
        raise FormatError(
            [FormatProblem("", f"it has {len(text)} characters; a rubric is at most {MAX_TEXT_LENGTH} long", 1)]
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
        raise FormatError([FormatProblem("", f"no known format; {EXPECTED}", 1)])
    parsed = parse_json(text)
    return _from_value(known or _detect_format(parsed), parsed)


def check_format(format: str) -> RubricFormat:
    """The format of this name; raises `FormatError` with those there are."""
    for known in get_args(RubricFormat):
        if format == known:
            return cast(RubricFormat, known)
    names = ", ".join(get_args(RubricFormat))
    raise FormatError([FormatProblem("format", f"{format[:40]!r} is unknown; use one of {names}")])


def _detect_format(parsed: ParsedText) -> RubricFormat:
    candidates = detect_formats(parsed.value)
    if len(candidates) == 1:
        return candidates[0]
    several = f"this could be {' or '.join(candidates)}; say which format it is" if candidates else ""
    raise FormatError([*parsed.problems, FormatProblem("", several or f"no known format; {EXPECTED}", 1)])


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
        raise InvalidValueError([((), 'expected tagged lines, or a row that has them under "rubric"')])
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
