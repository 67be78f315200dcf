"""Calibrations of judges in immutable versions, with aliases that can be moved.

A calibration belongs to a deployment's judge, not to a project: all projects share the judge. Its content is a JSON
object that this package does not read.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import JSON, Integer, String, UniqueConstraint, func, insert, select

from rubric_store.database import upsert
from rubric_store.repository import BaseRepository
from rubric_store.schema import UTCDateTime, declare, key, required
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire.names import require_name

calibrations = declare(
    "judge_calibrations",
    [key("name"), *required(Integer, "version")],
    required(String(71), "digest"),
    required(JSON, "content"),
    required(UTCDateTime, "created_at"),
    UniqueConstraint("name", "digest", name="uq_judge_calibrations_digest"),
)
"""One row per version; rows never change."""

calibration_aliases = declare(
    "judge_calibration_aliases",
    [key("name"), key("alias")],
    required(Integer, "version"),
    references={"judge_calibrations": ["name", "version"]},
)
"""One row per alias of a name: the version that it points to."""


_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class CalibrationVersion(NamedTuple):
    """A stored version, its content, and the aliases that point at it."""

    name: str
    version: int
    content: Mapping[str, Any]
    created_at: datetime
    aliases: tuple[str, ...] = ()


class CalibrationStore(BaseRepository):
    """Stores calibrations. Methods raise `ConnectionError` if the database cannot be reached."""

    async def add(self, name: str, content: Mapping[str, Any]) -> tuple[CalibrationVersion, bool]:
        """Add a version, or return the existing one with the same content; True if it was added.

        Raises:
            ValueError: the name is invalid.
        """
        require_name(name, "a calibration")
        digest = "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        async with self._begin() as connection:
            same = select(calibrations).where(calibrations.c.name == name, calibrations.c.digest == digest)
            if (known := (await connection.execute(same)).one_or_none()) is not None:
                return CalibrationVersion(name, known.version, known.content, known.created_at), False
            last = select(func.coalesce(func.max(calibrations.c.version), 0)).where(calibrations.c.name == name)
            version = (await connection.execute(last)).scalar_one() + 1
            now = datetime.now(UTC)
            row = {"name": name, "version": version, "digest": digest, "content": dict(content), "created_at": now}
            await connection.execute(insert(calibrations).values(**row))
            subject = f"calibration {name}@{version}"
            await self._add_audit_entry(connection, DEFAULT_PROJECT, "calibration.add", subject, None, digest)
        return CalibrationVersion(name, version, content, now), True

    async def find(self, reference: str) -> CalibrationVersion | None:
        """Return the version that `NAME` (the newest), `NAME@3` or `NAME@ALIAS` refers to; None if there is none."""
        name, at, chosen = reference.partition("@")
        wanted = select(calibrations).where(calibrations.c.name == name)
        if at and chosen.isdecimal() and chosen.isascii():
            wanted = wanted.where(calibrations.c.version == int(chosen))
        elif at:
            pointed = select(calibration_aliases.c.version).where(
                calibration_aliases.c.name == name, calibration_aliases.c.alias == chosen
            )
            wanted = wanted.where(calibrations.c.version == pointed.scalar_subquery())
        rows = await self._read(wanted.order_by(calibrations.c.version.desc()).limit(1))
        return CalibrationVersion(rows[0].name, rows[0].version, rows[0].content, rows[0].created_at) if rows else None

    async def versions(self) -> tuple[CalibrationVersion, ...]:
        """Return every version with its aliases, by name, newest first."""
        aliases = await self._read(select(calibration_aliases).order_by(calibration_aliases.c.alias))
        rows = await self._read(select(calibrations).order_by(calibrations.c.name, calibrations.c.version.desc()))
        return tuple(
            [
                CalibrationVersion(
                    row.name,
                    row.version,
                    row.content,
                    row.created_at,
                    tuple([one.alias for one in aliases if (one.name, one.version) == (row.name, row.version)]),
                )
                for row in rows
            ]
        )

    async def move_alias(self, name: str, alias: str, version: int) -> int | None:
        """Point an alias at a version, and return the version that it pointed at before.

        Raises:
            LookupError: the version does not exist.
            ValueError: the alias is a number, which names a version, or has characters that references cannot have.
        """
        if not alias or alias.isdecimal():
            raise ValueError(f"{alias!r} cannot be an alias, because it reads as a version; use a word")
        if not _ALIAS.fullmatch(alias):
            raise ValueError(
                f"{alias[:80]!r} cannot be an alias; begin with a letter, continue with letters, digits, '.', '_' and "
                "'-', at most 64 characters"
            )
        row = calibration_aliases.c
        async with self._begin() as connection:
            known = select(calibrations.c.version).where(calibrations.c.name == name, calibrations.c.version == version)
            if (await connection.execute(known)).one_or_none() is None:
                raise LookupError(f"there is no calibration {name}@{version}")
            here = [row.name == name, row.alias == alias]
            before: int | None = (await connection.execute(select(row.version).where(*here))).scalar_one_or_none()
            pointed = {"name": name, "alias": alias, "version": version}
            await connection.execute(upsert(calibration_aliases, connection), pointed)
            subject, old = f"calibration {name}@{alias}", None if before is None else str(before)
            await self._add_audit_entry(connection, DEFAULT_PROJECT, "calibration.alias", subject, old, str(version))
        return before
