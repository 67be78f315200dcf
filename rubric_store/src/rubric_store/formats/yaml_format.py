"""Adjudge's own rubric format as YAML, read safely and strictly.

The shape is that of `rubric_store.formats.native`. Values follow YAML 1.2's core schema, so `no` and `12:30` are text.
Aliases, anchors, tags and duplicate fields are rejected. No objects are constructed: values are built from the parser's
events, each with its line.
"""

import math
import re
from typing import Any, Final

import yaml

from rubric_store.formats import native
from rubric_store.formats.documents import (
    FormatError,
    FormatProblem,
    ParsedText,
    Path,
    RubricDocument,
    format_path,
    nearest_lines,
)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 64
MAX_YAML_LENGTH: Final = 4_000_000
"""Characters. Reading YAML is about fifty times slower than JSON."""

_CONSTANTS: Final[dict[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,400}|0o[0-7]{1,400}|0x[0-9a-fA-F]{1,400}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)


def parse_yaml(text: str) -> ParsedText:
    """Parse a YAML text of one document; aliases, tags and duplicate fields become `problems` of the result.

    Raises:
        FormatError: the text is not YAML, too long, or nested too deeply; with every problem up to that point.
    """
    if len(text) > MAX_YAML_LENGTH:
        message = f"it has {len(text)} characters, and YAML may have at most {MAX_YAML_LENGTH}; write it as JSON"
        raise FormatError.of(message, 1)
    builder = _ValueBuilder()
    try:
        for event in yaml.parse(text, Loader=_Loader):
            builder.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        detail = " ".join(filter(None, (error.context, error.problem)))
        builder.add_problem("", f"expected YAML: {detail}", mark.line + 1 if mark else 1)
    except yaml.reader.ReaderError as error:
        position = error.position if isinstance(error.position, int) else 0
        message = f"YAML does not allow the character {error.character!r} here; escape it in double quotes"
        builder.add_problem("", message, text.count("\n", 0, position) + 1)
    except _TooDeepError as error:
        builder.add_problem("", f"it is nested more than {_MAX_DEPTH} levels deep", error.line)
    else:
        return ParsedText(builder.value, lambda wanted: nearest_lines(builder.lines, wanted), tuple(builder.problems))
    raise FormatError(builder.problems)


def needs_quotes(text: str) -> bool:
    """Whether a text written without quotes would be read as a different value."""
    return text in _CONSTANTS or bool(_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text))


class _TooDeepError(Exception):
    """The text is nested too deeply. The parser's time grows with the square of the depth."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _Frame:
    """An open list, or an open mapping with the key whose value comes next."""

    def __init__(self, value: list[object] | dict[str, object], path: Path) -> None:
        self.value, self.path = value, path
        self.key: str | None = None


class _ValueBuilder:
    """Builds the value from a stream of parser events."""

    def __init__(self) -> None:
        self.value: object = None
        self.lines: dict[Path, int] = {}
        self.problems: list[FormatProblem] = []
        self._open: list[_Frame] = []
        self._documents = 0

    def add_problem(self, place: str, message: str, line: int) -> None:
        """Record a problem."""
        self.problems.append(FormatProblem(place, message, line))

    def feed(self, event: Any) -> None:
        """Process the next event of the parser."""
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self.add_problem("", "a second document begins; a file holds one rubric", line)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._node(event, line)

    def _node(self, event: Any, line: int) -> None:
        if len(self._open) >= _MAX_DEPTH:
            raise _TooDeepError(line)
        if event.anchor is not None:
            name = "an alias" if isinstance(event, yaml.AliasEvent) else "an anchor"
            self.add_problem(
                "", f"{name} ({event.anchor[:40]!r}) is not allowed in a rubric; write the value out", line
            )
        if (tag := getattr(event, "tag", None)) is not None and tag != "!":
            self.add_problem("", f"a tag ({tag[:60]!r}) is not allowed in a rubric; remove it", line)
        frame = self._open[-1] if self._open else None
        if frame is not None and isinstance(frame.value, dict) and frame.key is None:
            self._key(frame, event, line)
        else:
            self._put(frame, event, line)

    def _key(self, frame: _Frame, event: Any, line: int) -> None:
        assert isinstance(frame.value, dict)
        if not isinstance(event, yaml.ScalarEvent):
            self.add_problem(format_path(frame.path), "a field's name must be text", line)
            if not isinstance(event, yaml.AliasEvent):
                self._open.append(_Frame([] if isinstance(event, yaml.SequenceStartEvent) else {}, frame.path))
            frame.key = ""
            return
        frame.key = event.value
        path = (*frame.path, event.value)
        if event.value in frame.value:
            self.add_problem(
                format_path(path), f"given twice, first in line {self.lines.get(path, 1)}; remove one", line
            )
        else:
            self.lines[path] = line

    def _put(self, frame: _Frame | None, event: Any, line: int) -> None:
        value = _value(event)
        path: Path = ()
        if frame is not None and isinstance(frame.value, list):
            path = (*frame.path, len(frame.value))
            frame.value.append(value)
            self.lines[path] = line
        elif frame is not None and isinstance(frame.value, dict):
            path = (*frame.path, frame.key or "")
            frame.value[frame.key or ""] = value
            frame.key = None
        else:
            self.value = value
        if isinstance(value, list | dict):
            self._open.append(_Frame(value, path))


def _value(event: Any) -> object:
    if isinstance(event, yaml.SequenceStartEvent):
        return []
    if isinstance(event, yaml.MappingStartEvent):
        return {}
    if isinstance(event, yaml.AliasEvent):
        return None
    text: str = event.value
    if event.style or event.tag == "!":
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _RubricDumper(_Dumper):  # type: ignore[misc]
    """Writes multi-line text as blocks, and quotes text that would otherwise be read as another value."""


def _represent(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if needs_quotes(text) else style)


_RubricDumper.add_representer(str, _represent)


def write(document: RubricDocument) -> str:
    """Write a document as YAML."""
    return str(
        yaml.dump(
            native.to_value(document), Dumper=_RubricDumper, sort_keys=False, allow_unicode=True, width=110, indent=2
        )
    )
