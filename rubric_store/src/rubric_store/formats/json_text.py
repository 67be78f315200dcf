"""JSON texts read strictly, and where in a text each of its values stands.

Lines are looked for only where something is wrong: a text without problems is parsed once, by the standard library.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator

from rubric_store.formats.errors import FormatError, FormatProblem, ParsedText, Path, format_path

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:\s"]+', re.DOTALL)
DUPLICATE_FIELD = "given twice in one object; keep one"
_TOO_DEEP = "it is nested too deeply; a rubric needs no more than five levels"


def parse_json(text: str) -> ParsedText:
    """Parse a JSON text; fields given twice are problems of what is returned.

    Raises:
        FormatError: the text is no JSON (line and column named), or nests too deeply.
    """
    repeats = False

    def one_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeats
        fields = dict(pairs)
        repeats = repeats or len(fields) < len(pairs)
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
        if repeats
        else []
    )
    return ParsedText(value, lambda wanted: json_lines(text, wanted), tuple(duplicates))


def json_lines(text: str, wanted: Collection[Path]) -> dict[Path, int]:
    """The line of each path in a JSON text that parses, or of the longest beginning of it that is there."""
    missing = {path for path in wanted if path}
    known: dict[Path, int] = {}
    places = _positions(text) if missing else iter(())
    for path, line, _ in places:
        known[path] = line
        missing.discard(path)
        if not missing:
            break
    return nearest_lines(known, wanted)


def nearest_lines(known: dict[Path, int], wanted: Iterable[Path]) -> dict[Path, int]:
    """For each path its line, or that of the longest beginning of it whose line is known, or else 1."""
    return {path: next((known[path[:n]] for n in range(len(path), 0, -1) if path[:n] in known), 1) for path in wanted}


def _positions(text: str) -> Iterator[tuple[Path, int, bool]]:
    """Every member and element of a text that parses: path, line, and whether its object had that field already."""
    frames: list[tuple[list[int], set[str] | None]] = []  # an array counts, an object knows its fields
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
