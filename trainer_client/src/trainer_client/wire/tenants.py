"""Projects, their keys and limits, audit entries, and idempotency keys.

Projects, their keys and limits, and who changed what, as they cross between the service and the store.

Knows no secret: a key is its id here, and what its secret digests to never leaves the store's own rows.

What crosses between the routes that honour `Idempotency-Key` and the store that keeps what each key stands for.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, StringConstraints, TypeAdapter

from trainer_client.wire.base import AnswerModel

DEFAULT_PROJECT = "default"
"""The project that is there from the start; requests without a key are its requests."""

Scope = Literal["read", "score", "rubrics:write", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

ProjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
PROJECT_NAME: TypeAdapter[str] = TypeAdapter(ProjectName)


class Limits(AnswerModel):
    """What a project may use; None where there is no limit.

    Attributes:
        weight: its share of the judge beside that of others, all of whom have 1 unless it is set.
        requests_per_minute: of any kind; as many may come at once.
        tokens_per_day: prompt tokens that the judge may compute for it on a day (UTC).
        tokens_total: the same, since the project is there.
    """

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    requests_per_minute: int | None = Field(default=None, ge=1, le=2**31 - 1)
    tokens_per_day: int | None = Field(default=None, ge=0, le=2**63 - 1)
    tokens_total: int | None = Field(default=None, ge=0, le=2**63 - 1)


class Project(AnswerModel):
    """A project and its limits."""

    id: str
    created_at: datetime
    limits: Limits = Limits()


class ApiKey(AnswerModel):
    """What is known of a key: everything but its secret."""

    id: str
    project_id: str
    scopes: tuple[str, ...]
    label: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def state_at(self, now: datetime) -> Literal["usable", "expired", "revoked"]:
        """Whether it opens anything."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "usable"


class ApiKeyRecord(NamedTuple):
    """A key as the service checks it: with the digest of its text, and its project's limits."""

    key: ApiKey
    digest: bytes
    limits: Limits


class TokenUsage(NamedTuple):
    """Prompt tokens computed for a project: on a day, and ever."""

    on_day: int
    total: int


class AuditEntry(AnswerModel):
    """One change: who made it, when, of what, and what stood there before and after (None: nothing)."""

    project_id: str
    at: datetime
    actor: str
    action: str
    subject: str
    before: str | None = None
    after: str | None = None


class AuditTail(AnswerModel):
    """The newest changes, the newest first."""

    entries: tuple[AuditEntry, ...]


class ProjectState(AnswerModel):
    """A project as its key sees it: what the key opens, the limits, and the prompt tokens computed so far."""

    id: str
    scopes: tuple[str, ...]
    limits: Limits
    tokens_today: int
    tokens_ever: int


IDEMPOTENCY_KEY_TTL = timedelta(hours=24)
"""How long a key stands for the request that it came with first."""


class StoredAnswer(NamedTuple):
    """How a request was answered: the status, the header `Location` where it had one, and the body."""

    status: int
    location: str | None
    body: bytes


class KeyClaim(NamedTuple):
    """What a key stands for, to a request that shows it.

    Attributes:
        first_at: when the key was shown first.
        answer: what the request was answered with, where it has been done.
        wait_s: seconds that whoever is doing it may still take; 0 where nobody is, and this request is to be done.
    """

    first_at: datetime
    answer: StoredAnswer | None = None
    wait_s: float = 0.0
