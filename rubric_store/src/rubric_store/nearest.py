"""The reference a caller may have meant by one that stands for nothing."""

import difflib
import re
from collections.abc import Mapping

_NOT_IN_NAMES = re.compile(r"[^a-z0-9._/-]")
_NAME_LENGTH = 200
_ALIAS_LENGTH = 64


def split_reference(reference: str) -> tuple[str, str]:
    """The name a reference may have meant, in the characters names have, and what it asks for of it."""
    name, _, rest = reference.partition("@")
    return _NOT_IN_NAMES.sub("-", name.lower())[:_NAME_LENGTH], rest


def nearest_name(name: str, names: Mapping[str, int]) -> str | None:
    """The name that looks most like this one; None if none looks like it."""
    matches = difflib.get_close_matches(name, names, 1)
    return matches[0] if matches else None


def nearest_reference(name: str, selector: str, latest: int, aliases: Mapping[str, int]) -> str:
    """A reference to a name that exists: to the version or the alias nearest to what was asked of it, or to none."""
    if re.fullmatch(r"[1-9][0-9]{0,8}", selector):
        return f"{name}@{min(int(selector), latest)}"
    matches = difflib.get_close_matches(selector.lower()[:_ALIAS_LENGTH], aliases, 1) if selector else []
    return f"{name}@{matches[0]}" if matches else name
