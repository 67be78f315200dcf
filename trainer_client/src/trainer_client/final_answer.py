r"""Finds the final answer that a response states, and the line it begins on. Whether it is right is not asked here.

Everything here takes time linear in the text, whatever a policy wrote.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_BOX = re.compile(r"\\boxed[ \t]*+\{")
_BRACES = re.compile(r"\\[{}\\]|[{}]")
_ANSWER_LINE = re.compile(
    r"^[#*_ \t]*(?:(?i:(?:the[ \t]+)?final[ \t]+answer)\b|(?:(?i:answer)|A)(?=[*_ \t]*:)"
    r"|(?i:answer)(?=[*_ \t]*(?:\$\$|\\\[|(?:\$[^$\n]++\$|\\\([^\\\n]*+\\\))[*_. \t]*$)))"
    r"[*_ \t]*(?:is\b)?[:*_ \t]*(?P<answer>.*)$",
    re.MULTILINE,
)
_FINAL_ANSWER_LINE = re.compile(r"^[#*_ \t]*(?i:(?:the[ \t]+)?final[ \t]+answer)[#*_ \t\r]*(?::|$|is\b)", re.MULTILINE)
_REPEATED_ANNOUNCEMENT = re.compile(r"(?:the[ \t]++)?(?:final[ \t]++)?answer[ \t]*+(?:is\b[ \t]*+:?|:)[ \t]*+", re.I)
_NEXT_TEXT_LINE = re.compile(r"\s*+(?P<line>[^\n]*+)")
_DISPLAYED_FORMULA = re.compile(
    r"\s*+(?:\$\$(?P<a>[^$]++)\$\$|\\\((?P<b>(?:[^\\]|\\[^()\[\]])*+)\\\)|\\\[(?P<c>(?:[^\\]|\\[^()\[\]])*+)\\\])"
    r"[*_.,; \t]*+$",
    re.MULTILINE,
)
_FORMULA_AND_WORDS = re.compile(r"(?P<formula>\$[^$]++\$|\\\([^\\]*+\\\))\.[ \t]++[A-Z][^\d$\\]*+")
_FINAL_ANSWER_SENTENCE = re.compile(r"(?<=[.!?][ \t])[*_]*+(?i:(?:the[ \t]++)?final[ \t]++answer)[*_]*+:[*_ \t]*+")
_MINERVA_CLOSING = "I hope it is correct"
_GSM8K_ANSWER = re.compile(r"####(?!#)[ \t]*+(?P<answer>.+)")
_CONCLUSION = re.compile(r"[#*_ \t]*+(?:so|therefore|thus|hence|in conclusion|we (?:find|conclude|get|obtain))\b", re.I)
_THE_ANSWER_IS = re.compile(
    r"(?:^[#*_ \t]*+|(?<=[.!?][ \t]))(?:(?:so|therefore|thus|hence)\b,?[ \t]*+)?"
    r"(?:the[ \t]++(?:final[ \t]++)?(?:answer|solution)[ \t]++is\b|final[ \t]++answer[ \t]*+:)[: \t]*+(?=\S)",
    re.I,
)
_FORMULA = re.compile(
    r"\$\$(?P<a>[^$]++)\$\$|\$(?P<b>[^$]++)\$"
    r"|\\\((?P<c>(?:[^\\]|\\(?![()\[\]]))*+)\\\)|\\\[(?P<d>(?:[^\\]|\\(?![()\[\]]))*+)\\\]"
)
_JOINING_WORD = re.compile(r"\b(?:and|or)\b|[,;]")
_MAX_ADJACENT_GAP, _MAX_JOINED_GAP = 10, 70


class _Span(NamedTuple):
    """A box or a formula: its span [start, end) with its marks, and its content without them."""

    start: int
    end: int
    content: str


def extract_final_answer(text: str) -> str | None:
    r"""Extract the final answer of a response, or None where it states none.

    The content of the last non-empty `\boxed{…}` (see `boxed_answer`), unless a line that opens with `Final answer` or
    a sentence that opens with `Final answer:` stands behind it. Without a box, the first of these that says anything:

    - the last line, if it begins with `####` (GSM8K's form);
    - what follows the last line opening `A:`, `Answer:` or `Final answer` (also as a heading or in bold; `Answer` needs
      no colon before a formula): the rest of that line, or the next line with text where it has no rest; a displayed
      formula that opens there, to its end;
    - what the last line concludes: what follows the last `The answer is` or `Final answer:` that opens a sentence of
      it, or the last formula of a line opening `Therefore`, `Thus`, `Hence`, `So`, `We find` or the like.

    Of `$5$. I hope it is correct.`, as Minerva's prompt has answers end, the answer is `$5$`.
    """
    if boxes := _last_boxes(text):
        return _first_answer(text, _announcements_after(text, boxes[-1].end)) or _join_contents(boxes)
    last_line = text.rstrip().rpartition("\n")[2]
    if closing := _GSM8K_ANSWER.fullmatch(last_line):
        return closing["answer"].strip()
    return _first_answer(text, [line.start("answer") for line in _ANSWER_LINE.finditer(text)]) or _conclusion(last_line)


def boxed_answer(text: str) -> str | None:
    r"""Give the content of the last non-empty `\boxed{…}` of a text, or None.

    Boxes that stand together are one answer, as math-verify has it: of `\boxed{2} and \boxed{3}` it is `2, 3`. A box
    belongs to the next one where fewer than 10 characters lie between them; or fewer than 70 with a comma, a
    semicolon, `and` or `or` among them, and the two differ.

    Braces nest, `\{` and `\}` do not count, a box that is never closed is none; of nested boxes the inner is
    the last.
    """
    boxes = _last_boxes(text)
    return _join_contents(boxes) if boxes else None


def final_answer_line(text: str) -> int | None:
    r"""Find where the line begins that states the final answer, in code points; None if no line does.

    The last line that opens with `Final answer` (or `The final answer`; also as a heading or in bold) and goes on with
    a colon, with `is`, or not at all. Without one, the line of the last non-empty `\boxed{…}`: the line on which
    `\boxed` stands, the first one's where several are one answer. `A:` and `Answer:` open no such line, since questions
    within a response do too.
    """
    announced = [line.start() for line in _FINAL_ANSWER_LINE.finditer(text)]
    if announced:
        return announced[-1]
    boxes = _last_boxes(text)
    return text.rfind("\n", 0, boxes[0].start) + 1 if boxes else None


def _last_boxes(text: str) -> list[_Span]:
    """The last non-empty box and those before it that belong to it, in order; none where there is none."""
    kept: list[_Span] = []
    for box in _boxes_from_the_end(text):
        if kept and not _joins_following(text, box, kept[-1]):
            break
        kept.append(box)
    return kept[::-1]


def _boxes_from_the_end(text: str) -> Iterator[_Span]:
    """Give the non-empty boxes that hold no other such box, the last one first; text before them is not read."""
    closing: list[int] = []  # braces behind `end` that close what opens before it, the nearest one last
    end = start_of_last = len(text)
    while (start := text.rfind("\\boxed", 0, end)) >= 0:
        box = _BOX.match(text, start)
        opening: list[int] = []
        unopened: list[int] = []
        for brace in _BRACES.finditer(text, box.end() if box else start, end):
            if brace[0] == "{":
                opening.append(brace.start())
            elif brace[0] == "}" and opening:
                opening.pop()
            elif brace[0] == "}":
                unopened.append(brace.start())
        del closing[max(len(closing) - len(opening), 0) :]
        closing += reversed(unopened)
        end = start
        if box and closing:
            close = closing.pop()
            content = text[box.end() : close].strip() if close < start_of_last else ""
            if content:
                start_of_last = start
                yield _Span(start, close + 1, content)


def _joins_following(text: str, place: _Span, following: _Span) -> bool:
    """Whether a box or formula is one answer with the one that follows it."""
    if following.start - place.end >= _MAX_JOINED_GAP:
        return False
    between = text[place.end : following.start]
    return len(between) < _MAX_ADJACENT_GAP or (
        place.content != following.content and _JOINING_WORD.search(between) is not None
    )


def _last_joined(text: str, places: Sequence[_Span]) -> list[_Span]:
    """The last place and those before it that make one answer with it."""
    kept = list(places[-1:])
    for place in reversed(places[:-1]):
        if not _joins_following(text, place, kept[-1]):
            break
        kept.append(place)
    return kept[::-1]


def _join_contents(places: Sequence[_Span]) -> str:
    """The contents as one list, of equal ones in a row the first."""
    contents = [place.content for place in places]
    return ", ".join(one for index, one in enumerate(contents) if index == 0 or one != contents[index - 1])


def _announcements_after(text: str, end: int) -> list[int]:
    """Where final answers begin that are announced behind a place, by a line or by a sentence within one."""
    lines = [
        one.start("answer") for one in _ANSWER_LINE.finditer(text, end) if _FINAL_ANSWER_LINE.match(text, one.start())
    ]
    return sorted([*lines, *[one.end() for one in _FINAL_ANSWER_SENTENCE.finditer(text, end)]])


def _first_answer(text: str, starts: Sequence[int]) -> str | None:
    """What the last announcement says that says anything: on its line, or else on the next line with text.

    Args:
        text: the response.
        starts: where answers begin behind their announcements, in order.
    """
    for announced in reversed(starts):
        start = _after_announcement(text, announced)
        if formula := _DISPLAYED_FORMULA.match(text, start):
            answer = (formula[formula.lastgroup or 0]).strip()
            if answer and "\n" in formula[0].strip():
                return answer
        end = text.find("\n", start)
        answer = _plain(text[start : end if end >= 0 else len(text)])
        if not answer and end >= 0 and (following := _NEXT_TEXT_LINE.match(text, end)):
            answer = _plain(text[_after_announcement(text, following.start("line")) : following.end()])
        if answer:
            return answer
    return None


def _after_announcement(text: str, start: int) -> int:
    """Where an answer begins that is announced once more: `Final answer: the final answer is 5`."""
    again = _REPEATED_ANNOUNCEMENT.match(text, start)
    return again.end() if again else start


def _conclusion(line: str) -> str | None:
    """What the last line of a response concludes."""
    if stated := list(_THE_ANSWER_IS.finditer(line)):
        return _plain(line[_after_announcement(line, stated[-1].end()) :]) or None
    if not _CONCLUSION.match(line):
        return None
    found = [_Span(one.start(), one.end(), (one[one.lastgroup or 0]).strip()) for one in _FORMULA.finditer(line)]
    return _join_contents(_last_joined(line, found)) or None


def _plain(text: str) -> str:
    """Strip space and bold marks from a one-line answer, and sentences behind it.

    These are `I hope it is correct` and all that follows it; and behind a formula, words without a digit or a formula.
    """
    statement, hope, _ = text.partition(_MINERVA_CLOSING)
    stripped = statement.strip().removesuffix(".") if hope else statement.strip()
    bare = stripped.removeprefix("**").removesuffix("**").strip()
    formula = _FORMULA_AND_WORDS.fullmatch(bare)
    return formula["formula"] if formula else bare
