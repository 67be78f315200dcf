"""What rubrics are called: names, aliases, tags, and references to one version.

Knows nothing of what a rubric holds.
"""

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, StringConstraints

_PART = r"[a-z0-9][a-z0-9._-]*"
_NAME = rf"{_PART}(/{_PART})*"
_ALIAS = r"[a-z][a-z0-9._-]{0,63}"

LATEST_ALIAS = "latest"
"""`name@latest` means what `name` means; no alias may be called so."""

RESERVED_PARTS = frozenset({"aliases", "diff", "retirement", "tags", "versions"})
"""What stands after a rubric's name in the addresses of HTTP, and hence in no new name after a slash."""


def _no_reserved_part(name: str) -> str:
    reserved = RESERVED_PARTS.intersection(name.split("/")[1:])
    if reserved:
        raise ValueError(
            f"no part of a name after its first may be {min(reserved)!r}, which stands for something else in the "
            "addresses of HTTP; use another word"
        )
    return name


def _not_latest(alias: str) -> str:
    if alias == LATEST_ALIAS:
        raise ValueError(
            f"{LATEST_ALIAS!r} always stands for the newest version and cannot be moved; use another alias"
        )
    return alias


_NAME_LENGTH = 200
RubricName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=_NAME_LENGTH)]
NewRubricName = Annotated[RubricName, AfterValidator(_no_reserved_part)]
"""A name that something may be published under."""

AliasName = Annotated[str, StringConstraints(pattern=rf"^{_ALIAS}$"), AfterValidator(_not_latest)]
"""What a team calls the version it uses, such as `production`: moved from one version to another."""

RubricTag = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._:/-]{0,63}$")]
"""A word that rubrics are found by."""


class Reference(NamedTuple):
    """A parsed rubric reference: a digest, or a name with a version or an alias (neither: the newest)."""

    name: str | None
    version: int | None
    digest: str | None
    alias: str | None = None


_REFERENCE = re.compile(rf"(?P<name>{_NAME})(@((?P<version>[1-9][0-9]{{0,8}})|(?P<alias>{_ALIAS})))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_reference(text: str) -> Reference:
    """Read `name`, `name@3`, `name@alias` or `sha256:…`; `name@latest` is read as `name`.

    Raises:
        ValueError: the text is none of these; the message shows the four forms.
    """
    if _DIGEST.fullmatch(text):
        return Reference(None, None, text)
    match = _REFERENCE.fullmatch(text)
    if match and len(match["name"]) <= _NAME_LENGTH:
        version, alias = match["version"], match["alias"]
        return Reference(
            match["name"], int(version) if version else None, None, None if alias == LATEST_ALIAS else alias
        )
    shown = text if len(text) <= 256 else f"{text[:64]}…"
    raise ValueError(f"{shown!r} is no rubric reference; write name, name@3, name@alias or sha256:<64 hex digits>")
