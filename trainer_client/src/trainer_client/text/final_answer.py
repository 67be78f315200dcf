r"""Find the final answer that a response states, and the line on which it begins.

All functions take time linear in the length of the text, whatever a policy writes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_BOX = re.compile(r"\\boxed[ \t]*+\{")
_BRACES = re.compile(r"\\[{}\\]|[{}]")
_ANSWER_LINE = re.compile(
    r"^[#*_ \t]*+(?:(?i:(?:the[ \t]+)?final[ \t]+answer)\b|(?:(?i:answer)|A)(?=[*_ \t]*:)"
    r"|(?i:answer)(?=[*_ \t]*(?:\$\$|\\\[|(?:\$[^$\n]++\$|\\\([^\\\n]*+\\\))[*_. \t]*$)))"
    r"[*_ \t]*(?:is\b)?[:*_ \t]*(?P<answer>.*)$",
    re.MULTILINE,
)
_FINAL_ANSWER_LINE = re.compile(r"^[#*_ \t]*+(?i:(?:the[ \t]+)?final[ \t]+answer)[#*_ \t\r]*(?::|$|is\b)", re.MULTILINE)
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
    """A box or a formula: its span [start, end) including delimiters, and its content without them."""

    start: int
    end: int
    content: str


def extract_final_answer(text: str) -> str | None:
    r"""Extract the final answer of a response; None if it states none.

    This is the content of the last non-empty `\boxed{…}` (see `boxed_answer`), unless a line that begins with
    `Final answer` or a sentence that begins with `Final answer:` follows it. Without a box, it is the first of these
    that is not empty:

    - the last line, if it begins with `####` (GSM8K's format);
    - the text after the last line that begins with `A:`, `Answer:` or `Final answer` (also as a heading or in bold;
      `Answer` needs no colon before a formula): the rest of that line, or the next non-empty line if there is no rest;
      a displayed formula that begins there is taken to its end;
    - the conclusion of the last line: the text after the last `The answer is` or `Final answer:` that begins a sentence
      of it, or the last formula of a line that begins with `Therefore`, `Thus`, `Hence`, `So`, `We find` or the like.

    For `$5$. I hope it is correct.`, the ending in Minerva's prompt, the answer is `$5$`.
    """
    if boxes := _last_boxes(text):
        return _first_answer(text, _announcements_after(text, boxes[-1].end)) or _join_contents(boxes)
    last_line = text.rstrip().rpartition("\n")[2]
    if closing := _GSM8K_ANSWER.fullmatch(last_line):
        return closing["answer"].strip()
    return _first_answer(text, [line.start("answer") for line in _ANSWER_LINE.finditer(text)]) or _conclusion(last_line)


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last non-empty `\boxed{…}` of a text, or None.

    Adjacent boxes are one answer, as in math-verify: `\boxed{2} and \boxed{3}` gives `2, 3`. A box belongs to the next
    one if fewer than 10 characters lie between them, or if the two differ and fewer than 70 characters lie between
    them, with a comma, a semicolon, `and` or `or` among these.

    Braces nest, `\{` and `\}` do not count, and a box that is not closed is ignored. Of nested boxes, the inner one is
    the last.
    """
    boxes = _last_boxes(text)
    return _join_contents(boxes) if boxes else None


def final_answer_line(text: str) -> int | None:
    r"""Find the start of the line that states the final answer, in code points; None if no line does.

    This is the last line that begins with `Final answer` (or `The final answer`; also as a heading or in bold) and
    continues with a colon, with `is`, or not at all. Otherwise, it is the line of the last non-empty `\boxed{…}`, or of
    the first one if several are one answer. `A:` and `Answer:` do not count, since a response may also contain
    questions with answers.
    """
    announced = [line.start() for line in _FINAL_ANSWER_LINE.finditer(text)]
    if announced:
        return announced[-1]
    boxes = _last_boxes(text)
    return text.rfind("\n", 0, boxes[0].start) + 1 if boxes else None


def _last_boxes(text: str) -> list[_Span]:
    """The last non-empty box and the ones before that are joined to it, in order; empty if there are none."""
    kept: list[_Span] = []
    for box in _boxes_from_the_end(text):
        if kept and not _joins_following(text, box, kept[-1]):
            break
        kept.append(box)
    return kept[::-1]


def _boxes_from_the_end(text: str) -> Iterator[_Span]:
    """Yield the non-empty boxes that contain no other such box, the last one first, reading the text backwards."""
    closing: list[int] = []  # braces after `end` that close a brace before it, the nearest one last
    end = start_of_last = text.rfind("}") + 1  # what begins later is not closed
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
    """Whether a box or formula forms one answer with the one that follows it."""
    if following.start - place.end >= _MAX_JOINED_GAP:
        return False
    between = text[place.end : following.start]
    return len(between) < _MAX_ADJACENT_GAP or (
        place.content != following.content and _JOINING_WORD.search(between) is not None
    )


def _last_joined(text: str, places: Sequence[_Span]) -> list[_Span]:
    """The last span, and the ones before that form one answer with it."""
    kept = list(places[-1:])
    for place in reversed(places[:-1]):
        if not _joins_following(text, place, kept[-1]):
            break
        kept.append(place)
    return kept[::-1]


def _join_contents(places: Sequence[_Span]) -> str:
    """Join the contents by commas, without consecutive duplicates."""
    contents = [place.content for place in places]
    return ", ".join(each for index, each in enumerate(contents) if index == 0 or each != contents[index - 1])


def _announcements_after(text: str, end: int) -> list[int]:
    """The starts of the final answers that a line or a sentence announces after `end`."""
    lines = [
        line.start("answer")
        for line in _ANSWER_LINE.finditer(text, end)
        if _FINAL_ANSWER_LINE.match(text, line.start())
    ]
    return sorted([*lines, *[sentence.end() for sentence in _FINAL_ANSWER_SENTENCE.finditer(text, end)]])


def _first_answer(text: str, starts: Sequence[int]) -> str | None:
    """The last announced answer that is not empty: the rest of its line, or else the next non-empty line.

    Args:
        text: the response.
        starts: where the answers begin, after their announcements, in order.
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
    """Skip a repeated announcement, as in `Final answer: the final answer is 5`."""
    again = _REPEATED_ANNOUNCEMENT.match(text, start)
    return again.end() if again else start


def _conclusion(line: str) -> str | None:
    """The conclusion that the last line of a response states; None if it states none."""
    folded = line.casefold()  # searching for a string is a hundred times faster than for a pattern
    if ("answer" in folded or "solut" in folded) and (stated := list(_THE_ANSWER_IS.finditer(line))):
        return _plain(line[_after_announcement(line, stated[-1].end()) :]) or None
    if not _CONCLUSION.match(line):
        return None
    formulas = [
        _Span(each.start(), each.end(), (each[each.lastgroup or 0]).strip()) for each in _FORMULA.finditer(line)
    ]
    return _join_contents(_last_joined(line, formulas)) or None


def _plain(text: str) -> str:
    """Strip whitespace and bold marks from a one-line answer, and any sentences after it.

    These are `I hope it is correct` and everything after it, and after a formula, words without digits or formulas.
    """
    statement, hope, _ = text.partition(_MINERVA_CLOSING)
    stripped = statement.strip().removesuffix(".") if hope else statement.strip()
    bare = stripped.removeprefix("**").removesuffix("**").strip()
    formula = _FORMULA_AND_WORDS.fullmatch(bare)
    return formula["formula"] if formula else bare
