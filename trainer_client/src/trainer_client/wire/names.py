"""Texts that name something: the pattern of each kind, and the words in which errors say what it allows."""

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import StringConstraints

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]{0,63}$"
RUBRIC_NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$"
ALIAS_PATTERN: Final = r"^[a-z][a-z0-9._-]{0,63}$"
TAG_PATTERN: Final = r"^[a-z0-9][a-z0-9._:/-]{0,63}$"
CRITERION_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
MEASURE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,99}$"

_LOWER_CASE = "use lower-case letters, digits, '.', '_' and '-'"
_AT_THE_START = "beginning with a letter or a digit"

ALLOWED: Final[Mapping[str, str]] = {
    NAME_PATTERN: f"{_LOWER_CASE}, {_AT_THE_START}, at most 64 characters, such as team-math",
    RUBRIC_NAME_PATTERN: (
        f"{_LOWER_CASE}, in parts separated by '/', each {_AT_THE_START}, at most 200 characters, such as math/algebra"
    ),
    ALIAS_PATTERN: f"{_LOWER_CASE}, beginning with a letter, at most 64 characters, such as production",
    TAG_PATTERN: (
        f"use lower-case letters, digits, '.', '_', ':', '/' and '-', {_AT_THE_START}, at most 64 characters, such as "
        "topic:algebra"
    ),
    CRITERION_ID_PATTERN: (
        f"use letters of a to z, digits, '.', '_' and '-', {_AT_THE_START}, at most 128 characters, such as shows-work"
    ),
    MEASURE_PATTERN: (
        f"use letters of a to z, digits, '_', '.', '/' and '-', {_AT_THE_START}, at most 100 characters, such as loss"
    ),
}
"""What each pattern allows, as an advice with an example."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""The name of a judge, a template set, a project or a calibration."""


_NAME = re.compile(NAME_PATTERN)


def require_name(text: str, what: str) -> str:
    """Return a text that names `what`, such as "a project"; raise `ValueError` if it cannot be a `Name`."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:64]!r} cannot name {what}; {ALLOWED[NAME_PATTERN]}")
    return text
