"""`TenantStore`: projects, API keys, ended sessions, usage and the audit log, on SQLite or PostgreSQL.

The store gets a key's id and the digest of its secret, never the secret.
"""

import operator
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import Row, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import insert_into, upsert
from rubric_store.repository import (
    BaseRepository,
    entry_from_cursor,
    from_time_cursor,
    select_newest,
    take_page,
    text_from_cursor,
    to_cursor,
    to_time_cursor,
)
from rubric_store.tenants.rows import ApiKeyRecord, TokenUsage
from rubric_store.tenants.tables import api_keys, ended_sessions, project_usage, projects
from trainer_client.wire.names import require_name
from trainer_client.wire.tenants import (
    ApiKey,
    ApiKeyList,
    AuditEntry,
    AuditTail,
    Limits,
    Project,
    ProjectList,
)

_LIMITS = [projects.c[name] for name in Limits.model_fields]
_CLOCK_TOLERANCE = timedelta(hours=1)
"""How long an ended session is kept after it expired, since it may not have expired by the clock of another host."""

_KEY = [api_keys.c[name] for name in ApiKey.model_fields if name != "id"]


class TenantStore(BaseRepository):
    """Projects and their keys. The constructor's arguments and errors are those of `RubricStore`."""

    async def create_project(self, project_id: str, limits: Limits = Limits()) -> Project:  # noqa: B008 - frozen
        """Create a project.

        Raises:
            ValueError: the name is invalid, or the project exists.
        """
        require_name(project_id, "a project")
        project = Project(id=project_id, created_at=datetime.now(UTC), limits=limits)
        async with self._begin() as connection:
            row = {"project_id": project_id, "created_at": project.created_at, **limits.model_dump()}
            added = (
                insert_into(projects, connection).values(row).on_conflict_do_nothing().returning(projects.c.project_id)
            )
            if (await connection.execute(added)).one_or_none() is None:
                raise ValueError(f"a project {project_id!r} already exists")
            await self._add_audit_entry(
                connection, project_id, "project.created", project_id, None, limits.model_dump_json(exclude_none=True)
            )
        return project

    async def project(self, project_id: str) -> Project | None:
        """A project by name; None if it does not exist."""
        rows = await self._read(_projects().where(projects.c.project_id == project_id))
        return _project(rows[0]) if rows else None

    async def projects(self) -> list[Project]:
        """Every project, by name."""
        return [_project(row) for row in await self._read(_projects().order_by(projects.c.project_id))]

    async def project_page(self, *, after: str | None = None, limit: int = 100) -> ProjectList:
        """A page of projects, by name; raises `CursorError` for a cursor that no page has given."""
        wanted = _projects().order_by(projects.c.project_id).limit(limit + 1)
        if after is not None:
            wanted = wanted.where(projects.c.project_id > text_from_cursor(after))
        rows, cursor = take_page(await self._read(wanted), limit, lambda row: to_cursor(row.id))
        return ProjectList(projects=tuple(map(_project, rows)), next_cursor=cursor)

    async def set_limits(self, project_id: str, limits: Limits) -> Project:
        """Replace the limits of a project.

        Raises:
            LookupError: the project does not exist.
        """
        async with self._begin() as connection:
            before = await _lock_project(connection, project_id)
            this = projects.c.project_id == project_id
            await connection.execute(update(projects).where(this).values(**limits.model_dump()))
            change = (before.limits.model_dump_json(exclude_none=True), limits.model_dump_json(exclude_none=True))
            await self._add_audit_entry(connection, project_id, "limits.changed", project_id, *change)
        return before.model_copy(update={"limits": limits})

    async def add_key(
        self,
        project_id: str,
        key_id: str,
        digest: bytes,
        *,
        scopes: Sequence[str],
        label: str = "",
        expires_at: datetime | None = None,
    ) -> ApiKey:
        """Store a new key.

        Raises:
            LookupError: the project does not exist.
            sqlalchemy.exc.IntegrityError: a key with this id exists.
        """
        key, row = _new_key(project_id, key_id, digest, scopes, label, expires_at)
        async with self._begin() as connection:
            await _lock_project(connection, project_id)
            await connection.execute(insert(api_keys).values(row))
            await self._add_audit_entry(connection, project_id, "key.created", key_id, None, " ".join(scopes))
        return key

    async def ensure_key(
        self, project_id: str, key_id: str, digest: bytes, *, scopes: Sequence[str], label: str = ""
    ) -> tuple[ApiKey, bool]:
        """Store a key unless it is stored already; return the key, and whether it is new.

        A key that has been revoked stays revoked.

        Raises:
            LookupError: the project does not exist.
            ValueError: another key with this id exists.
        """
        key, row = _new_key(project_id, key_id, digest, scopes, label, None)
        async with self._begin() as connection:
            await _lock_project(connection, project_id)
            added = insert_into(api_keys, connection).values(row).on_conflict_do_nothing().returning(api_keys.c.key_id)
            if (await connection.execute(added)).one_or_none() is not None:
                await self._add_audit_entry(connection, project_id, "key.created", key_id, None, " ".join(scopes))
                return key, True
            this = _keys().add_columns(api_keys.c.secret_digest).where(api_keys.c.key_id == key_id)
            stored = (await connection.execute(this)).one()
        if stored.secret_digest != digest:
            raise ValueError(f"another key with the id {key_id!r} exists; generate a new key, with an id of its own")
        return _key(stored), False

    async def keys(self, project_id: str | None = None) -> list[ApiKey]:
        """All keys of a project, or of all projects, oldest first."""
        listed = _keys().order_by(api_keys.c.created_at, api_keys.c.key_id)
        if project_id is not None:
            listed = listed.where(api_keys.c.project_id == project_id)
        return [_key(row) for row in await self._read(listed)]

    async def key_page(self, project_id: str, *, after: str | None = None, limit: int = 100) -> ApiKeyList:
        """A page of a project's keys, oldest first; raises `CursorError` for a cursor that no page has given."""
        wanted = _keys().where(api_keys.c.project_id == project_id).limit(limit + 1)
        if after is not None:
            at, id_ = from_time_cursor(after)
            same_time = and_(api_keys.c.created_at == at, api_keys.c.key_id > id_)
            wanted = wanted.where(or_(api_keys.c.created_at > at, same_time))
        found = await self._read(wanted.order_by(api_keys.c.created_at, api_keys.c.key_id))
        rows, cursor = take_page(found, limit, lambda row: to_time_cursor(row.created_at, row.id))
        return ApiKeyList(keys=tuple(map(_key, rows)), next_cursor=cursor)

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """A key by its id, usable or not; None if it does not exist."""
        found = select(*_KEY, api_keys.c.key_id.label("id"), api_keys.c.secret_digest, *_LIMITS)
        rows = await self._read(found.join_from(api_keys, projects).where(api_keys.c.key_id == key_id))
        return ApiKeyRecord(_key(rows[0]), rows[0].secret_digest, _limits(rows[0])) if rows else None

    async def revoke_key(self, key_id: str) -> ApiKey:
        """Revoke a key permanently; a revoked key stays as it is.

        Raises:
            LookupError: the key does not exist.
        """
        async with self._begin() as connection:
            this = api_keys.c.key_id == key_id
            row = (await connection.execute(_keys().where(this).with_for_update())).one_or_none()
            if row is None:
                raise LookupError(f"there is no key {key_id!r}; list the keys with: adjudge keys list")
            key = _key(row)
            if key.revoked_at is not None:
                return key
            at = datetime.now(UTC)
            await connection.execute(update(api_keys).where(this).values(revoked_at=at))
            await self._add_audit_entry(connection, key.project_id, "key.revoked", key_id, " ".join(key.scopes), None)
        return key.model_copy(update={"revoked_at": at})

    async def end_session(self, project_id: str, session_id: str, expires_at: datetime) -> None:
        """End a session of the console for good, and delete the sessions that have expired meanwhile."""
        async with self._begin() as connection:
            row = {"project_id": project_id, "session_id": session_id, "expires_at": expires_at}
            await connection.execute(insert_into(ended_sessions, connection).values(row).on_conflict_do_nothing())
            expired = ended_sessions.c.expires_at < datetime.now(UTC) - _CLOCK_TOLERANCE
            await connection.execute(delete(ended_sessions).where(expired))

    async def has_ended(self, project_id: str, session_id: str) -> bool:
        """Whether a session was ended; not whether it has expired."""
        this = select(ended_sessions.c.session_id).filter_by(project_id=project_id, session_id=session_id)
        return bool(await self._read(this))

    async def record_key_use(self, last_used: Mapping[str, datetime]) -> None:
        """Store when keys were last used; a time earlier than the stored one is ignored."""
        async with self._begin() as connection:
            for key_id, at in sorted(last_used.items()):
                earlier = api_keys.c.last_used_at.is_(None) | (api_keys.c.last_used_at < at)
                used = update(api_keys).where(api_keys.c.key_id == key_id, earlier)
                await connection.execute(used.values(last_used_at=at))

    async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        """Add requests and prompt tokens of a day, by project; unknown projects are ignored."""
        async with self._begin() as connection:
            known = {row.project_id for row in await connection.execute(select(projects.c.project_id))}
            rows = [
                {"project_id": project_id, "day": day, "requests": requests, "tokens": tokens}
                for project_id, (requests, tokens) in sorted(used.items())
                if project_id in known
            ]
            if rows:
                await connection.execute(upsert(project_usage, connection, operator.add), rows)

    async def used_tokens(self, project_id: str, day: date) -> TokenUsage:
        """The prompt tokens computed for a project on a day, and in total."""
        mine = project_usage.c.project_id == project_id
        on_day = func.coalesce(func.sum(project_usage.c.tokens).filter(project_usage.c.day == day), 0)
        total = func.coalesce(func.sum(project_usage.c.tokens), 0)
        (row,) = await self._read(select(on_day.label("on_day"), total.label("total")).where(mine))
        return TokenUsage(int(row.on_day), int(row.total))

    async def record_change(self, project_id: str, action: str, subject: str, after: str) -> None:
        """Add an audit entry for a change that is not stored here."""
        async with self._begin() as connection:
            await self._add_audit_entry(connection, project_id, action, subject, None, after)

    async def audit(
        self, project_id: str | None = None, *, subject: str | None = None, limit: int = 100, after: str | None = None
    ) -> AuditTail:
        """A page of the audit log, newest first, of one project and one subject if given.

        Raises:
            CursorError: `after` is not the `next_cursor` of a page.
        """
        before = None if after is None else entry_from_cursor(after)
        found = await self._read(select_newest(project_id, subject=subject, limit=limit + 1, before=before))
        rows, cursor = take_page(found, limit, lambda row: to_cursor(row.entry.hex()))
        entries = [AuditEntry.model_validate(dict(row._mapping)) for row in rows]
        return AuditTail(entries=tuple(entries), next_cursor=cursor)


async def _lock_project(connection: AsyncConnection, project_id: str) -> Project:
    row = (await connection.execute(_projects().where(projects.c.project_id == project_id).with_for_update())).first()
    if row is None:
        raise LookupError(f"there is no project {project_id!r}; create it with: adjudge projects create {project_id}")
    return _project(row)


def _projects() -> Select[Any]:
    return select(projects.c.project_id.label("id"), projects.c.created_at, *_LIMITS)


def _keys() -> Select[Any]:
    return select(*_KEY, api_keys.c.key_id.label("id"))


def _project(row: Row[Any]) -> Project:
    return Project(id=row.id, created_at=row.created_at, limits=_limits(row))


def _limits(row: Row[Any]) -> Limits:
    return Limits.model_validate({name: row._mapping[name] for name in Limits.model_fields})


def _new_key(
    project_id: str, key_id: str, digest: bytes, scopes: Sequence[str], label: str, expires_at: datetime | None
) -> tuple[ApiKey, dict[str, Any]]:
    """A key that is not stored yet, and its row."""
    key = ApiKey(
        id=key_id,
        project_id=project_id,
        scopes=tuple(scopes),
        label=label,
        created_at=datetime.now(UTC),
        expires_at=expires_at,
    )
    fields = {name: getattr(key, name) for name in ApiKey.model_fields if name != "id"}
    return key, {**fields, "key_id": key_id, "secret_digest": digest, "scopes": list(scopes)}


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey.model_validate({name: row._mapping[name] for name in ApiKey.model_fields})
