"""From rows to the wire's answers about versions."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row

from trainer_client.wire import RubricVersion, VersionSummary


def version_of(row: Row[Any]) -> RubricVersion:
    """A version with its criteria."""
    return RubricVersion.model_validate(_fields(row))


def summary_of(row: Row[Any], aliases: Mapping[str, int]) -> VersionSummary:
    """A version without its criteria, with those of its name's aliases that stand for it."""
    pointing_aliases = [alias for alias, version in aliases.items() if version == row.version]
    return VersionSummary.model_validate({**_fields(row), "aliases": tuple(pointing_aliases)})


def _fields(row: Row[Any]) -> dict[str, Any]:
    fields = dict(row._mapping)
    at, reason = fields.pop("retired_at"), fields.pop("retired_reason")
    return {**fields, "retirement": None if at is None else {"at": at, "reason": reason}}
