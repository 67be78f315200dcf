"""Rubrics on the wire: the rules a rubric must keep to be written, names, versions and references.

Knows nothing of where rubrics are stored or how they are judged.
"""

import re
from collections import Counter
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints, field_validator

from trainer_client.wire.base import Answer, Request
from trainer_client.wire.criteria import Criterion, content_digest

_NAME = r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*"
RubricName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=200)]


class RubricContent(Request):
    """The criteria of a rubric, with the rules any rubric keeps: some criterion, distinct ids, a positive weight."""

    criteria: tuple[Criterion, ...] = Field(min_length=1, max_length=512)

    @field_validator("criteria")
    @classmethod
    def _ids_are_distinct(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        repeated = [id_ for id_, n in Counter(c.id for c in criteria).items() if n > 1]
        if repeated:
            raise ValueError(f"criterion ids must differ; repeated: {', '.join(sorted(repeated))}")
        return criteria

    @field_validator("criteria")
    @classmethod
    def _some_weight_is_positive(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        if criteria and not any(c.weight > 0 for c in criteria):
            raise ValueError(
                "no criterion has a positive weight, so the reward would have nothing to divide by; "
                "give at least one criterion a weight above 0"
            )
        return criteria

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of the criteria in canonical JSON: equal content, equal digest."""
        return content_digest(self.criteria)


class RubricVersion(Answer):
    """One immutable version of a named rubric."""

    name: str
    version: int
    digest: str
    criteria: tuple[Criterion, ...]
    created_at: datetime

    @property
    def reference(self) -> str:
        """The pinned reference, `name@version`."""
        return f"{self.name}@{self.version}"


class RubricSummary(Answer):
    """A named rubric in a list: its newest version, and how many criteria that has."""

    name: str
    latest_version: int
    digest: str
    criteria_count: int
    created_at: datetime


class RubricPage(Answer):
    """A page of rubrics by name; `next_cursor` fetches the following page and is null on the last."""

    rubrics: tuple[RubricSummary, ...]
    next_cursor: str | None = None


class Reference(NamedTuple):
    """A parsed rubric reference: a digest, or a name with a version (None: the newest)."""

    name: str | None
    version: int | None
    digest: str | None


_REFERENCE = re.compile(rf"(?P<name>{_NAME})(@(?P<version>[1-9][0-9]{{0,8}}))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_reference(text: str) -> Reference:
    """Read `name`, `name@3` or `sha256:…`.

    Raises:
        ValueError: the text is none of these; the message shows the three forms.
    """
    if _DIGEST.fullmatch(text):
        return Reference(None, None, text)
    if match := _REFERENCE.fullmatch(text):
        version = match["version"]
        return Reference(match["name"], int(version) if version else None, None)
    raise ValueError(f"{text!r} is no rubric reference; write name, name@3 or sha256:<64 hex digits>")
