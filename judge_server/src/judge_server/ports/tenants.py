"""Who may call, for which project, and what each project has used."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Protocol

from trainer_client.wire.tenants import ApiKeyRecord, AuditEntry, Project, TokenUsage


class ApiKeyStore(Protocol):
    """Looks keys and projects up, and keeps what was used. Keys and limits are changed elsewhere."""

    async def find_key(self, key_id: str) -> ApiKeyRecord | None:
        """A key by its id, usable or not; None where there is none."""

    async def projects(self) -> Sequence[Project]:
        """Every project with its limits."""

    async def record_key_use(self, last_used: Mapping[str, datetime]) -> None:
        """Keep when keys were last used, by id."""

    async def add_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        """Count requests and prompt tokens of a day (UTC), by project."""

    async def used_tokens(self, project_id: str, day: date) -> TokenUsage:
        """The prompt tokens computed for a project on a day, and ever."""


class AuditTrail(Protocol):
    """Tells who changed what. Whoever changes something adds to it by that."""

    async def audit(self, project_id: str, *, subject: str | None, limit: int) -> Sequence[AuditEntry]:
        """The newest changes of a project, the newest first; those of one subject where it is given."""
