"""Text compared as text: what counts as the same, and how an answer's dress (LaTeX, Markdown) is taken off."""

import re
from bisect import bisect_right
from collections.abc import Sequence

from trainer_client.final_answer import boxed_answer

LAYERS = 16
"""How many times marks around an answer are taken off, one within another."""

_WRAPPED = re.compile(
    r"\$\$(?P<a>[^$]*)\$\$|\$(?P<b>[^$]*)\$|\\\((?P<c>.*)\\\)|\\\[(?P<d>.*)\\\]|\*\*(?P<e>[^*]*)\*\*"
    r"|`(?P<f>[^`]*)`",
    re.DOTALL,
)
_SENTENCE = re.compile(
    r"(?P<subject>[^\d,;:=\\]{1,200}?)\b(?:is|are|was|equals)\b[ \t]*:?[ \t]+(?P<told>\S.*)", re.DOTALL
)
_COPULA = re.compile(r"\b(?:is|are|was|equals)\b")
_HEDGE = re.compile(r"\b(?:or|either|neither|nor|not|if|unless|whether)\b", re.IGNORECASE)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mbox)\s*\{(?P<inside>[^{}]*)\}")


def texts_equal(a: str, b: str, *, case_sensitive: bool) -> bool:
    """Whether two texts agree but for space around them and runs of space inside."""
    return _folded(" ".join(a.split()), case_sensitive) == _folded(" ".join(b.split()), case_sensitive)


def find(text: str, all_of: Sequence[str], any_of: Sequence[str], *, case_sensitive: bool) -> int | None:
    """Find every text of `all_of` and, unless it is empty, one of `any_of`; None where they are not in `text`.

    Returns:
        Where in `text` the first of `all_of` begins or, without any, the one of `any_of` that comes first.
    """
    searched = _folded(text, case_sensitive)
    all_found, any_found = (
        [searched.find(_folded(needle, case_sensitive)) for needle in needles] for needles in (all_of, any_of)
    )
    there = [at for at in any_found if at >= 0]
    if -1 in all_found or (any_found and not there):
        return None
    at = all_found[0] if all_found else min(there)
    if len(searched) == len(text):  # folding makes no character shorter, so each kept its place
        return at
    return bisect_right(range(len(text)), at, key=lambda end: len(_folded(text[:end], case_sensitive))) - 1


def strip_markup(answer: str) -> str:
    r"""Give an answer without `\boxed{…}`, `$…$`, `\(…\)`, `\[…\]`, `**…**` or backticks around it, or a full stop.

    Up to `LAYERS` of them are taken off, so that the work is bounded by that many readings of the answer.
    """
    for _ in range(LAYERS):
        stripped = answer.strip()
        if stripped.endswith(".") and not stripped.endswith(".."):
            stripped = stripped[:-1].rstrip()
        if wrapped := _WRAPPED.fullmatch(stripped):
            stripped = next(inside for inside in wrapped.groups() if inside is not None)
        if stripped.startswith("\\boxed"):
            stripped = boxed_answer(stripped) or stripped
        if stripped == answer:
            break
        answer = stripped
    return answer


def stated_value(answer: str) -> str | None:
    """Give what a sentence says of its subject, `80 km/h` of `The average speed is 80 km/h.`; None where it is none.

    The sentence has one verb ("is", "are", "was", "equals") and nothing before it that could be an answer itself: no
    number, no formula, no list and no "or". So a sentence that offers several answers is read as none of them.
    """
    bare = strip_markup(answer)
    match = _SENTENCE.fullmatch(bare)
    if match is None or _HEDGE.search(match["subject"]) or len(_COPULA.findall(bare)) > 1:
        return None
    return match["told"]


def without_text_commands(answer: str) -> str:
    r"""Give an answer with `\text{…}`, `\mathrm{…}` and their like replaced by what is in them."""
    return _TEXT_COMMAND.sub(lambda command: f" {command['inside']} ", answer)


def _folded(text: str, case_sensitive: bool) -> str:
    return text if case_sensitive else text.casefold()
