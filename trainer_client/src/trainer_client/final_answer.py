r"""Finds the final answer that a response states, and the line it begins on. Whether it is right is not asked here."""

import re

_BRACES = re.compile(r"\\boxed[ \t]*\{|\\[{}]|\\\\(?!boxed)|[{}]")
_MARKED = re.compile(
    r"^[#*_ \t]*(?:(?i:(?:the[ \t]+)?final[ \t]+answer)\b|(?:(?i:answer)|A)(?=[*_ \t]*:))"
    r"[*_ \t]*(?:is\b)?[:*_ \t]*(?P<answer>.*)$",
    re.MULTILINE,
)
_ANNOUNCED = re.compile(r"^[#*_ \t]*(?i:(?:the[ \t]+)?final[ \t]+answer)[#*_ \t\r]*(?::|$|is\b)", re.MULTILINE)
_CLOSING_HASHES = re.compile(r"(?:^|\n)####(?!#)[ \t]*(?P<answer>[^\n]+)\Z")


def extract_final_answer(text: str) -> str | None:
    r"""Extract the final answer of a response, or None where it states none.

    The content of the last non-empty `\boxed{…}`, its braces balanced. Without one: the last line, if it
    begins with `####` (GSM8K's form). Else what follows the last line opening `A:`, `Answer:` or `Final
    answer` (also as a heading or in bold): the rest of that line, or the next line with text
    where it has no rest.
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    if closing := _CLOSING_HASHES.search(text.rstrip()):
        return closing["answer"].strip()
    for marked in reversed(list(_MARKED.finditer(text))):
        answer = _plain(marked["answer"]) or _plain(text[marked.end() :].lstrip().partition("\n")[0])
        if answer:
            return answer
    return None


def boxed_answer(text: str) -> str | None:
    r"""Give the content of the last non-empty `\boxed{…}` of a text, or None.

    Braces nest, `\{` and `\}` do not count, a box that is never closed is none; of nested boxes the inner is
    the last. One pass, so that a hostile text costs no more than its length.
    """
    box = _last_box(text)
    return None if box is None else text[box[0] : box[1]].strip()


def final_answer_line(text: str) -> int | None:
    r"""Find where the line begins that states the final answer, in code points; None if no line does.

    The last line that opens with `Final answer` (or `The final answer`; also as a heading or in bold) and goes on with
    a colon, with `is`, or not at all. Without one, the line of the last non-empty `\boxed{…}`: the line on which
    `\boxed` stands. `A:` and `Answer:` open no such line, since questions within a response do too.
    """
    announced = [line.start() for line in _ANNOUNCED.finditer(text)]
    if announced:
        return announced[-1]
    box = _last_box(text)
    return None if box is None else text.rfind("\n", 0, box[0]) + 1


def _last_box(text: str) -> tuple[int, int] | None:
    """Where the content of the last non-empty box begins and ends."""
    open_braces: list[tuple[bool, int]] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0].startswith("\\boxed"):
            open_braces.append((True, brace.end()))
        elif brace[0] == "{":
            open_braces.append((False, brace.end()))
        elif brace[0] == "}" and open_braces:
            is_box, start = open_braces.pop()
            if is_box and (last is None or start > last[0]) and text[start : brace.start()].strip():
                last = (start, brace.start())
    return last


def _plain(text: str) -> str:
    """Strip space and bold marks from a one-line answer."""
    stripped = text.strip()
    return stripped.removeprefix("**").removesuffix("**").strip()
