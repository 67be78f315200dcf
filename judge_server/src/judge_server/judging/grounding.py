"""Cuts a grounding to a budget of characters, at a place where a reader would stop."""

import re
import unicodedata

_SENTENCE_END = re.compile(
    r"""(?<![.!?…؟।۔])(?<!^\w)(?<!^\d\d)[.!?…؟।۔]++["'”’»)\]}]*+(?=\s|\Z)"""  # not "3.5", nor a list's "4."
    r"""|[。！？｡]++["'”’」』】》〉）]*+"""  # no space follows these
    r"""|(?<=\S)(?=[^\S\n]*\n[^\S\n]*\n)""",  # a paragraph's end, full stop or not
    re.MULTILINE,
)
_WORD_END = re.compile(r"(?<=\S)(?=\s)")


def fit_grounding(text: str, budget: int | None) -> tuple[str, int]:
    """Give what is shown of a grounding, and how many of its characters are not.

    What is shown is the text's beginning of at most `budget` characters (code points; None shows all). It ends with
    the last sentence or paragraph that ends within them. Where that would leave out more than half of them, as in
    tables, it ends with the last word, and in a text without words with the last character that no combining mark
    continues. The point of an abbreviation counts as a sentence's end.
    """
    if budget is None or len(text) <= budget:
        return text, 0
    end = _last_end(_SENTENCE_END, text, budget)
    if 2 * end < budget:
        end = max(end, _last_end(_WORD_END, text, budget)) or _character_end(text, budget)
    return text[:end], len(text) - end


def _last_end(pattern: re.Pattern[str], text: str, budget: int) -> int:
    last = 0
    for match in pattern.finditer(text):
        if match.end() > budget:
            break
        last = match.end()
    return last


def _character_end(text: str, budget: int) -> int:
    for end in range(budget, 0, -1):
        if not _continues(text[end - 1], text[end]):
            return end
    return budget


def _continues(before: str, after: str) -> bool:
    """Whether a character belongs to the one before it: marks, joined emoji, skin tones, surrogate halves."""
    return (
        unicodedata.category(after) in ("Mn", "Mc", "Me")
        or "\N{ZERO WIDTH JOINER}" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
    )
