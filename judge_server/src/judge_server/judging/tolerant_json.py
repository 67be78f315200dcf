"""Find the JSON values in a text in one pass: between prose, in other dialects, and cut off at the end.

JSON is read as models write it: with comments, trailing commas, single or typographic quotes, unquoted keys, line
breaks in strings, braces doubled as in a format string, and other spellings of true, false and null. Nothing is
repaired: a value ends where it stops being that. `judge_server.judging.items` gives the values a meaning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

MAX_DEPTH = 32
"""How deep a value may nest; a deeper one ends the search."""

_BRACKET = re.compile(r"[{\[]")
_SPACE = re.compile(r"(?:\s++|//[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))*+")
_STRING = re.compile(r""""(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+'|[“”„](?:[^“”\\]++|\\.)*+[“”]""", re.DOTALL)
_KEY = re.compile(r"""(?:"([^"\\\n]*+)"|'([^'\\\n]*+)'|[“”„]([^“”\\\n]*+)[“”]|([A-Za-z_]\w*+))""", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?(?![\w.])")
_WORD = re.compile(r"[-+]?[A-Za-z]++(?!\w)")
_TAIL = re.compile(r"""(?:["'“”„][^"'“”\n]*+|[-+.\w]*+)\Z""")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)

_WORDS: dict[str, float | None] = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "null": None,
    "NULL": None,
    "None": None,
}
_WORDS |= {sign + word: float(sign + word) for word in ("NaN", "Infinity") for sign in ("", "+", "-")}
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_Container = dict[str, object] | list[object]


class _DuplicateKey:
    def __repr__(self) -> str:
        return "given more than once"


DUPLICATE_KEY = _DuplicateKey()
"""The value of a key that occurs more than once in an object."""


@dataclass(frozen=True, slots=True)
class ParsedValue:
    """An outermost object or array in a text.

    Numbers are floats. `ended` tells how it ended: `whole`, `cut` by the end of the text, or `broken` where it stopped
    being JSON. `unfinished` holds the parts, itself included, that were still open there.
    """

    value: _Container
    ended: Literal["whole", "cut", "broken"]
    unfinished: tuple[_Container, ...]

    def finished(self, part: object) -> bool:
        """Whether a part of the value was read to its end."""
        return all(part is not container for container in self.unfinished)


def find_values(text: str) -> Iterator[ParsedValue]:
    """Yield every outermost object and array in `text`, in order, in time linear in the text.

    The search continues after a broken value, unless it broke right after a string: then a quotation mark was
    misplaced, what follows cannot be told from quoted text, and the search ends.
    """
    scan = _Scanner(text)
    while scan.to_next_container():
        yield scan.container()


class _Scanner:
    """A position in a text that only moves forward."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._behind_string = False
        self._doubled: set[int] = set()

    def to_next_container(self) -> bool:
        match = _BRACKET.search(self._text, self._at)
        self._at = match.start() if match else len(self._text)
        return match is not None

    def container(self) -> ParsedValue:
        """Read the object or array that begins here; move to its end, or to where it stopped being JSON."""
        self._doubled.clear()
        root = self._opened()
        stack: list[_Container] = [root]
        try:
            self._fill(stack)
        except _ParseStopped:
            ended: Literal["cut", "broken"] = "cut" if _TAIL.match(self._text, self._at) else "broken"
            if self._behind_string or len(stack) > MAX_DEPTH:
                self._at = len(self._text)
            return ParsedValue(root, ended, tuple(stack))
        return ParsedValue(root, "whole", ())

    def _fill(self, stack: list[_Container]) -> None:
        comma = True
        while stack:
            self._space()
            inner = stack[-1]
            if self._closes(inner):
                self._doubled.discard(id(stack.pop()))
                comma = False
            elif not comma:
                self._need(",")
                comma = True
            else:
                key = self._key() if isinstance(inner, dict) else ""
                value = self._value()
                if isinstance(inner, list):
                    inner.append(value)
                else:
                    inner[key] = DUPLICATE_KEY if key in inner else value
                comma = isinstance(value, dict | list)
                if isinstance(value, dict | list):
                    stack.append(value)
                    if len(stack) > MAX_DEPTH:
                        raise _ParseStopped

    def _opened(self) -> _Container:
        self._behind_string = False
        doubled = self._text.startswith("{{", self._at)
        opened: _Container = {} if self._text[self._at] == "{" else []
        if doubled:
            self._doubled.add(id(opened))
        self._at += 1 + doubled
        return opened

    def _closes(self, container: _Container) -> bool:
        if isinstance(container, list):
            return self._accept("]")
        return (id(container) in self._doubled and self._accept("}}")) or self._accept("}")

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _accept(self, mark: str) -> bool:
        taken = self._text.startswith(mark, self._at)
        if taken:
            self._at += len(mark)
            self._behind_string = False
        return taken

    def _need(self, mark: str) -> None:
        if not self._accept(mark):
            raise _ParseStopped

    def _key(self) -> str:
        match = _KEY.match(self._text, self._at)
        if match is None:
            raise _ParseStopped
        self._at = match.end()
        self._behind_string = match[4] is None
        self._space()
        self._need(":")
        self._space()
        return match[match.lastindex or 0]

    def _value(self) -> object:
        mark = self._text[self._at : self._at + 1]
        if mark and mark in "{[":
            return self._opened()
        if mark and mark in "\"'“”„":
            match = _STRING.match(self._text, self._at)
            self._at = match.end() if match else len(self._text)
            if match is None:
                raise _ParseStopped
            self._behind_string = True
            return _unescaped(match[0][1:-1])
        self._behind_string = False
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return float(match[0])
        match = _WORD.match(self._text, self._at)
        if match is None or match[0] not in _WORDS:
            raise _ParseStopped
        self._at = match.end()
        return _WORDS[match[0]]


class _ParseStopped(Exception):
    """The value cannot be read any further."""


def _unescaped(body: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _ESCAPED.get(m[2], m[2]), body)
