"""Search a long text piece by piece: a search of Python's keeps all other threads waiting until it finds something."""

import re
from collections.abc import Iterator

PIECE = 2**14
"""Characters that are searched at a time, which takes milliseconds whatever they are."""


def find_in_pieces(pattern: re.Pattern[str], text: str, longest: int, piece: int = PIECE) -> Iterator[re.Match[str]]:
    """Yield what `pattern.finditer(text)` does, and let other threads run between pieces.

    Args:
        pattern: a pattern that matches at least one character, without `$` and `\\Z`.
        text: the text.
        longest: the most characters that a match has, with those behind it that the pattern looks at.
        piece: characters to search at a time.
    """
    begin = 0
    while begin < len(text):
        end = reached = begin + piece
        for found in pattern.finditer(text, begin, end + longest):
            if found.start() >= end:
                break
            yield found
            reached = max(end, found.end())
        begin = reached
