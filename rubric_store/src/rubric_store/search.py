"""The words rubrics are searched by, the same on both databases, and how each keeps and finds them.

PostgreSQL keeps them as a text search vector under an index, SQLite as text it reads through. What a word is
decides Python, not the database: letters, digits and underscores, after NFKC and case folding. Scripts that
put no space between words are searched by the beginnings of what stands between two other characters.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Text, and_, bindparam, cast, func, literal
from sqlalchemy.dialects.postgresql import TSQUERY

MAX_WORD_LENGTH = 100
MAX_WORDS_BYTES = 262_144
"""How much is kept of one rubric's words; those after are not found."""

_WORD = re.compile(r"\w+")


def words_of(texts: Iterable[str]) -> list[str]:
    """The distinct words of texts, in order of appearance, as far as they are kept."""
    words: dict[str, None] = {}
    room = MAX_WORDS_BYTES
    for text in texts:
        for found in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
            word = found[:MAX_WORD_LENGTH]
            if word in words:
                continue
            room -= len(word.encode()) + 1
            if room < 0:
                return list(words)
            words[word] = None
    return list(words)


def words_parameter(dialect: str) -> ColumnElement[object]:
    """The expression that keeps the words of a parameter named `words`, as `kept_words` makes it."""
    if dialect == "postgresql":
        return func.array_to_tsvector(cast(bindparam("words"), ARRAY(Text)))
    return bindparam("words", type_=Text)


def kept_words(dialect: str, words: list[str]) -> object:
    """Words as a value for `words_parameter`."""
    return words if dialect == "postgresql" else "".join(f" {word}" for word in words)


def has_words(dialect: str, column: ColumnElement[Any], words: Sequence[str]) -> ColumnElement[bool]:
    """Whether kept words have, for each of these, one that begins with it."""
    if dialect == "postgresql":
        # A word holds neither quotes nor backslashes, so that this text is the query it looks like.
        query = " & ".join(f"'{word}':*" for word in words)
        return column.op("@@", is_comparison=True)(cast(literal(query, Text), TSQUERY))
    return and_(*[func.instr(column, f" {word}") > 0 for word in words])
