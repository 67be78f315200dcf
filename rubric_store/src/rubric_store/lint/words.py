"""The English word lists, and how texts are looked through with them. Another language is another folder of lists."""

import re
from functools import cache
from importlib.resources import files

_REMARK = re.compile(r"\((?:justification|rationale|reason|explanation|note|why)\s*:.*", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@cache
def load_word_list(name: str) -> tuple[str, ...]:
    """The entries of a list, longest first, so that a longer one is found before one that it begins with."""
    text = (files("rubric_store.lint") / "english" / f"{name}.txt").read_text(encoding="utf-8")
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(sorted(found, key=len, reverse=True))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """A list as an expression that finds any of its entries as whole words; `*` stands for any ending."""
    alternatives = "|".join(
        re.escape(entry).replace(r"\*", r"\w*").replace(r"\ ", r"\s+") for entry in load_word_list(name)
    )
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])", re.IGNORECASE)


@cache
def word_set(name: str) -> frozenset[str]:
    """A list as a set of words."""
    return frozenset(load_word_list(name))


def strip_remarks(text: str) -> str:
    """What a criterion asks for: its text without remarks on why, such as `(Justification: …)`."""
    return _REMARK.sub(" ", text).strip()


def words(text: str) -> list[str]:
    """A text's words in lower case."""
    return [match.lower() for match in _WORD.findall(text)]
