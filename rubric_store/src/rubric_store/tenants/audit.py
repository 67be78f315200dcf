"""Audit rows: added in the transaction of the change they tell of, read newest first, never changed."""

import secrets
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.tenants.tables import audit
from trainer_client.wire.tenants import AuditEntry


async def add_entry(
    connection: AsyncConnection,
    project_id: str,
    *,
    actor: str,
    action: str,
    subject: str,
    before: str | None = None,
    after: str | None = None,
) -> None:
    """Add a row about a change that this transaction makes."""
    entry = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
    row = {"project_id": project_id, "entry": entry, "at": datetime.now(UTC), "actor": actor, "action": action}
    await connection.execute(insert(audit).values(**row, subject=subject, before=before, after=after))


def select_newest(project_id: str | None, *, subject: str | None, limit: int) -> Select[Any]:
    """The newest rows of a project, or of all; those about one subject where it is given."""
    rows = select(*[audit.c[name] for name in AuditEntry.model_fields]).order_by(audit.c.entry.desc()).limit(limit)
    if project_id is not None:
        rows = rows.where(audit.c.project_id == project_id)
    return rows if subject is None else rows.where(audit.c.subject == subject)
