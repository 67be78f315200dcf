"""Checks that other tools name, as verifications by a program."""

import re
from collections.abc import Sequence
from typing import Any


def word_count(minimum: int, maximum: int | None) -> dict[str, Any]:
    """Satisfied by a response of `minimum` to `maximum` words, which whitespace separates.

    The pattern matches in time linear in the text.
    """
    words = rf"\s*+\S++(?:\s++\S++){{{max(minimum - 1, 0)},{'' if maximum is None else maximum - 1}}}+\s*+"
    pattern = words if minimum else rf"(?:{words})?\s*"
    return {"method": "regex", "match": "full", "pattern": r"\s*" if maximum == 0 else pattern}


def present(texts: Sequence[str], *, any_of: bool = False, case_sensitive: bool) -> dict[str, Any]:
    """Satisfied if all texts occur, or with `any_of` one of them."""
    return {"method": "contains", "any_of" if any_of else "all_of": list(texts), "case_sensitive": case_sensitive}


def absent(texts: Sequence[str], *, all_of: bool = False, case_sensitive: bool, words: bool = False) -> dict[str, Any]:
    r"""Satisfied if none of the texts occurs, or with `all_of` if one of them is missing.

    With `words`, a text occurs only as whole words.
    """
    edge = r"\b" if words else ""
    found = [rf"[\s\S]*?{edge}{re.escape(text)}{edge}" for text in texts]
    ahead = "".join(f"(?={one})" for one in found) if all_of else f"(?:{'|'.join(found)})"
    return {
        "method": "regex",
        "match": "full",
        "pattern": rf"(?!{ahead})[\s\S]*",
        "case_sensitive": case_sensitive,
    }


def unmatched(pattern: str, *, case_sensitive: bool) -> dict[str, Any]:
    """Satisfied if an expression matches nowhere."""
    return {
        "method": "regex",
        "match": "full",
        "pattern": rf"(?![\s\S]*?(?:{pattern}))[\s\S]*",
        "case_sensitive": case_sensitive,
    }


def matched(pattern: str, *, case_sensitive: bool = True) -> dict[str, Any]:
    """Satisfied if an expression matches anywhere."""
    return {"method": "regex", "match": "search", "pattern": pattern, "case_sensitive": case_sensitive}
