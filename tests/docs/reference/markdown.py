"""Markdown from docstrings and tables."""

import inspect
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]+`)")
_ADDRESS = re.compile(r"docs/[\w./-]+\.md")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines])


def cell(text: str) -> str:
    """Text as a cell of a table: in one line, with nothing that Markdown would read as a mark."""
    return prose(text).replace("|", "\\|")


def prose(text: str) -> str:
    """Text in one line. What looks like a tag is written so that Markdown shows it."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def paragraphs(docstring: str | None) -> list[str]:
    """The paragraphs of a docstring before its sections, each in one line; lists and formulas stay as they are."""
    text = re.split(r"^(?:Args|Attributes|Raises|Returns|Yields):$", inspect.cleandoc(docstring or ""), flags=re.M)[0]
    found = [part for part in text.strip().split("\n\n") if part]
    return [part if part.startswith(("- ", "    ")) else prose(part) for part in found]


def entries(docstring: str | None) -> dict[str, str]:
    """What the sections `Args` and `Attributes` of a docstring say, by name."""
    found: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", inspect.cleandoc(docstring or ""), re.M):
        for names, text in re.findall(r"^    (\w[\w, ]*): ((?:.|\n(?=        ))*)", section, re.M):
            found |= dict.fromkeys(re.split(r",\s*", names), " ".join(text.split()))
    return found


def sentence(text: str) -> str:
    """Text that begins with a capital letter and ends with a full stop."""
    text = text.strip()
    return text if not text else text[:1].upper() + text[1:] + ("" if text.endswith((".", "…", ":")) else ".")
