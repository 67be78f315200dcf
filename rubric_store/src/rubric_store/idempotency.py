"""`SQLIdempotencyKeys`: the answers given under each `Idempotency-Key`, on SQLite or PostgreSQL.

Stores digests of requests and answers as bytes. Migration 0009 creates the table; a test compares the two.
"""

import asyncio
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Index, Integer, LargeBinary, Row, Text, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store.database import insert_into
from rubric_store.repository import BaseRepository
from rubric_store.schema import UTCDateTime, declare, digest, key, optional, required
from rubric_store.tenants.rows import IDEMPOTENCY_KEY_TTL, KeyClaim, StoredAnswer

idempotency_keys = declare(
    "idempotency_keys",
    [key("project_id"), digest("key_digest")],
    digest("asked"),
    required(UTCDateTime, "first_at", "held_until", "expires_at"),
    optional(Integer, "status"),
    optional(Text, "location"),
    optional(LargeBinary, "body"),
    Index("ix_idempotency_keys_expires_at", "expires_at"),
)
"""One row per key, by its SHA-256. `asked` is the digest of the request that first used the key. While `status` is NULL
the request is unanswered, and claimed until `held_until`. Bodies are compressed."""


_LONGEST_CLAIM = timedelta(minutes=65)
"""Longer than any claim lasts, which is an hour for a task of ROLL, and than the clocks of hosts differ."""

_PURGE_INTERVAL = timedelta(minutes=10)


def _now() -> datetime:
    return datetime.now(UTC)


class SQLIdempotencyKeys(BaseRepository):
    """Idempotency keys in a database, given by URL or as an engine that stays the caller's; `clock` returns UTC.

    Every method raises `ConnectionError` if the database cannot be reached.
    """

    def __init__(self, database: str | AsyncEngine, *, clock: Callable[[], datetime] = _now) -> None:
        super().__init__(database)
        self._clock = clock
        self._purged_at = datetime.min.replace(tzinfo=UTC)

    async def claim(self, project_id: str, key: str, asked: bytes, *, hold_s: float = 0.0) -> KeyClaim:
        """Claim a key for the request with the digest `asked`; the claim expires after `hold_s` seconds.

        Of several concurrent callers one gets the claim, and the others how long it may still last (`wait_s`). Once a
        claim has expired, the next caller gets it. A key that has an answer returns the answer.

        Raises:
            ValueError: the key was used for another request.
        """
        now = self._clock()
        held_until = now + timedelta(seconds=hold_s)
        async with self._begin() as connection:
            while not await _insert_claim(connection, project_id, key, asked, now, held_until):
                locked = select(idempotency_keys).filter_by(**_key(project_id, key)).with_for_update()
                if (row := (await connection.execute(locked)).one_or_none()) is not None:
                    return await _claim_existing(connection, row, asked, now, held_until)
        await self._purge(now)
        return KeyClaim(now)

    async def store_answer(self, project_id: str, key: str, answer: StoredAnswer) -> None:
        """Store the answer to the request of a claimed key."""
        body = await asyncio.to_thread(zlib.compress, answer.body)
        kept = update(idempotency_keys).filter_by(**_key(project_id, key))
        async with self._begin() as connection:
            await connection.execute(kept.values(status=answer.status, location=answer.location, body=body))

    async def release(self, project_id: str, key: str) -> None:
        """Delete a claimed key that has no answer."""
        async with self._begin() as connection:
            await connection.execute(delete(idempotency_keys).filter_by(**_key(project_id, key), status=None))

    async def _purge(self, now: datetime) -> None:
        """Delete expired keys, at most every ten minutes; after a connection error the next purge deletes them."""
        if now - self._purged_at < _PURGE_INTERVAL:
            return
        self._purged_at = now
        with suppress(ConnectionError):
            async with self._begin() as connection:
                await connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))


async def _insert_claim(
    connection: AsyncConnection, project_id: str, key: str, asked: bytes, now: datetime, held_until: datetime
) -> bool:
    """Insert a key, or replace it if it has expired; False if it exists and has not expired."""
    values: dict[str, Any] = {
        "asked": asked,
        "first_at": now,
        "held_until": held_until,
        "expires_at": now + IDEMPOTENCY_KEY_TTL,
        "status": None,
        "location": None,
        "body": None,
    }
    added = insert_into(idempotency_keys, connection).values(**_key(project_id, key), **values)
    upsert = added.on_conflict_do_update(
        index_elements=list(idempotency_keys.primary_key), set_=values, where=idempotency_keys.c.expires_at <= now
    )
    return (await connection.execute(upsert.returning(idempotency_keys.c.first_at))).one_or_none() is not None


async def _claim_existing(
    connection: AsyncConnection, row: Row[Any], asked: bytes, now: datetime, held_until: datetime
) -> KeyClaim:
    """Claim a key that exists and is locked."""
    if row.asked != asked:
        raise ValueError("this key was used for a different request; use a new key for each request")
    if row.status is not None:
        body = await asyncio.to_thread(zlib.decompress, row.body)
        return KeyClaim(row.first_at, StoredAnswer(row.status, row.location, body))
    if now < row.held_until <= now + _LONGEST_CLAIM:  # later only if the host's clock was set back
        return KeyClaim(row.first_at, wait_s=(row.held_until - now).total_seconds())
    same_key = update(idempotency_keys).filter_by(project_id=row.project_id, key_digest=row.key_digest)
    await connection.execute(same_key.values(held_until=held_until))
    return KeyClaim(row.first_at)


def _key(project_id: str, key: str) -> dict[str, Any]:
    """The columns of the primary key."""
    return {"project_id": project_id, "key_digest": sha256(key.encode("utf-8", "surrogatepass")).digest()}
