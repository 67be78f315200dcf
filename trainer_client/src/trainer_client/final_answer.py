r"""Finds the final answer that a response states, and the line it begins on. Whether it is right is not asked here.

Everything here takes time linear in the text, whatever a policy wrote.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_BRACES = re.compile(r"\\boxed[ \t]*\{|\\[{}]|\\\\(?!boxed)|[{}]")
_MARKED = re.compile(
    r"^[#*_ \t]*(?:(?i:(?:the[ \t]+)?final[ \t]+answer)\b|(?:(?i:answer)|A)(?=[*_ \t]*:))"
    r"[*_ \t]*(?:is\b)?[:*_ \t]*(?P<answer>.*)$",
    re.MULTILINE,
)
_ANNOUNCED = re.compile(r"^[#*_ \t]*(?i:(?:the[ \t]+)?final[ \t]+answer)[#*_ \t\r]*(?::|$|is\b)", re.MULTILINE)
_NEXT_TEXT = re.compile(r"\s*+(?P<line>[^\n]*+)")
_HASHES = re.compile(r"####(?!#)[ \t]*+(?P<answer>.+)")
_CONCLUSION = re.compile(r"[#*_ \t]*+(?:so|therefore|thus|hence|in conclusion|we (?:find|conclude|get|obtain))\b", re.I)
_THE_ANSWER_IS = re.compile(
    r"[#*_ \t]*+(?:(?:so|therefore|thus|hence)\b,?[ \t]*+)?the[ \t]++(?:answer|solution)[ \t]++is\b"
    r"[: \t]*+(?P<answer>.+)",
    re.I,
)
_FORMULA = re.compile(
    r"\$\$(?P<a>[^$]++)\$\$|\$(?P<b>[^$]++)\$|\\\((?P<c>(?:[^\\]|\\(?![()\[\]]))*+)\\\)|\\\[(?P<d>(?:[^\\]|\\(?![()\[\]]))*+)\\\]"
)
_JOINED = re.compile(r"\b(?:and|or)\b|[,;]")
_BESIDE, _JOINED_WITHIN = 10, 70


class _Place(NamedTuple):
    """A box or a formula: its span [start, end) with its marks, and its content without them."""

    start: int
    end: int
    content: str


def extract_final_answer(text: str) -> str | None:
    r"""Extract the final answer of a response, or None where it states none.

    The content of the last non-empty `\boxed{…}` (see `boxed_answer`), unless a line that opens with `Final answer`
    stands behind it. Without one: the last line, if it begins with `####` (GSM8K's form). Else what follows the last
    line opening `A:`, `Answer:` or `Final answer` (also as a heading or in bold): the rest of that line, or the next
    line with text where it has no rest. Else what the last line concludes: what follows `The answer is`, or the last
    formula of a line opening `Therefore`, `Thus`, `Hence`, `So`, `We find` or the like.
    """
    boxes = _last_boxes(text)
    marked = list(_MARKED.finditer(text))
    if boxes:
        later = [one for one in marked if one.start() >= boxes[-1].end and _ANNOUNCED.match(text, one.start())]
        return _first_answer(text, later) or _joined(boxes)
    last_line = text.rstrip().rpartition("\n")[2]
    if closing := _HASHES.fullmatch(last_line):
        return closing["answer"].strip()
    return _first_answer(text, marked) or _concluded(last_line)


def boxed_answer(text: str) -> str | None:
    r"""Give the content of the last non-empty `\boxed{…}` of a text, or None.

    Boxes that stand together are one answer, as math-verify has it: of `\boxed{2} and \boxed{3}` it is `2, 3`. A box
    belongs to the next one where fewer than 10 characters lie between them; or fewer than 70 with a comma, a
    semicolon, `and` or `or` among them, and the two differ.

    Braces nest, `\{` and `\}` do not count, a box that is never closed is none; of nested boxes the inner is
    the last.
    """
    boxes = _last_boxes(text)
    return _joined(boxes) if boxes else None


def final_answer_line(text: str) -> int | None:
    r"""Find where the line begins that states the final answer, in code points; None if no line does.

    The last line that opens with `Final answer` (or `The final answer`; also as a heading or in bold) and goes on with
    a colon, with `is`, or not at all. Without one, the line of the last non-empty `\boxed{…}`: the line on which
    `\boxed` stands, the first one's where several are one answer. `A:` and `Answer:` open no such line, since questions
    within a response do too.
    """
    announced = [line.start() for line in _ANNOUNCED.finditer(text)]
    if announced:
        return announced[-1]
    boxes = _last_boxes(text)
    return text.rfind("\n", 0, boxes[0].start) + 1 if boxes else None


def _last_boxes(text: str) -> list[_Place]:
    """The last non-empty box and those before it that belong to it, in order; none where there is none."""
    if "\\boxed" not in text:
        return []
    open_braces: list[tuple[bool, int, int]] = []
    boxes: list[_Place] = []
    for brace in _BRACES.finditer(text):
        if brace[0].startswith("\\boxed"):
            open_braces.append((True, brace.start(), brace.end()))
        elif brace[0] == "{":
            open_braces.append((False, brace.start(), brace.end()))
        elif brace[0] == "}" and open_braces:
            is_box, start, inside = open_braces.pop()
            # A box around another one is left out, so that nested boxes cost no more than their length.
            if is_box and not (boxes and boxes[-1].start > start) and text[inside : brace.start()].strip():
                boxes.append(_Place(start, brace.end(), text[inside : brace.start()].strip()))
    return _together(text, boxes)


def _together(text: str, places: Sequence[_Place]) -> list[_Place]:
    """The last place and those before it that make one answer with it."""
    kept = list(places[-1:])
    for place in reversed(places[:-1]):
        between = text[place.end : kept[-1].start] if kept[-1].start - place.end < _JOINED_WITHIN else None
        if between is None or not (
            len(between) < _BESIDE or (place.content != kept[-1].content and _JOINED.search(between))
        ):
            break
        kept.append(place)
    return kept[::-1]


def _joined(places: Sequence[_Place]) -> str:
    """The contents as one list, of equal ones in a row the first."""
    contents = [place.content for place in places]
    return ", ".join(one for index, one in enumerate(contents) if index == 0 or one != contents[index - 1])


def _first_answer(text: str, marked: Sequence[re.Match[str]]) -> str | None:
    """What the last of the lines says that says anything: on itself, or else on the next line with text."""
    for line in reversed(marked):
        answer = _plain(line["answer"])
        if not answer and (following := _NEXT_TEXT.match(text, line.end())):
            answer = _plain(following["line"])
        if answer:
            return answer
    return None


def _concluded(line: str) -> str | None:
    """What the last line of a response concludes."""
    if stated := _THE_ANSWER_IS.match(line):
        return _plain(stated["answer"]) or None
    if not _CONCLUSION.match(line):
        return None
    found = [_Place(one.start(), one.end(), (one[one.lastgroup or 0]).strip()) for one in _FORMULA.finditer(line)]
    return _joined(_together(line, found)) or None


def _plain(text: str) -> str:
    """Strip space and bold marks from a one-line answer."""
    stripped = text.strip()
    return stripped.removeprefix("**").removesuffix("**").strip()
