"""Projects, their API keys and limits, and audit entries. No message holds the digest of an API key."""

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import Field

from trainer_client.wire.base import (
    STORABLE,
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Count,
    RequestList,
    RequestModel,
    UTCTime,
)
from trainer_client.wire.names import Name

Scope = Literal["read", "score", "rubrics:write", "labels:write", "projects:write", "judges:write", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

ProjectName = Name


class Limits(AnswerModel):
    """The limits of a project; null means no limit.

    Attributes:
        weight: the project's share of the judge relative to other projects, whose weight defaults to 1.
        requests_per_minute: requests of any kind; this many may arrive at once.
        tokens_per_day: prompt tokens that the judge may compute for the project per day (UTC).
        tokens_total: prompt tokens that the judge may compute for the project in all.
    """

    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    requests_per_minute: int | None = Field(default=None, ge=1, le=2**31 - 1)
    tokens_per_day: int | None = Field(default=None, ge=0, le=2**63 - 1)
    tokens_total: int | None = Field(default=None, ge=0, le=2**63 - 1)


class Project(AnswerModel):
    """A project and its limits.

    Attributes:
        id: the project's name.
    """

    id: str
    created_at: datetime
    limits: Limits = Limits()


class ProjectList(AnswerModel):
    """A page of the projects of a service, by name.

    Attributes:
        projects: the projects.
    """

    projects: tuple[Project, ...]
    next_cursor: str | None = None


class NewLimits(RequestModel):
    """The limits of a project, which replace all that it has; what is left out is not limited.

    Attributes:
        weight: the project's share of the judge relative to other projects, whose weight defaults to 1.
        requests_per_minute: requests of any kind; this many may arrive at once.
        tokens_per_day: prompt tokens that the judge may compute for the project per day (UTC).
        tokens_total: prompt tokens that the judge may compute for the project in all.
    """

    weight: BoundedFloat = Field(default=1.0, gt=0)
    requests_per_minute: Annotated[int, Field(ge=1, le=2**31 - 1), STRICT_NUMBER] | None = None
    tokens_per_day: Count | None = None
    tokens_total: Count | None = None

    def limits(self) -> Limits:
        """The limits, as the store has them."""
        return Limits.model_validate(self.model_dump())


class NewProject(RequestModel):
    """A project to create.

    Attributes:
        id: the project's name: lower-case letters, digits, `.`, `_` and `-`.
        limits: what the project may use; by default there are no limits.
    """

    id: ProjectName
    limits: NewLimits = NewLimits()


class ApiKey(AnswerModel):
    """An API key without its secret.

    Attributes:
        id: the public part of the key, by which lists and logs name it.
    """

    id: str
    project_id: str
    scopes: tuple[str, ...]
    label: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None

    def state_at(self, now: datetime) -> Literal["usable", "expired", "revoked"]:
        """Whether the key can be used at a given time."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "usable"


class NewApiKey(RequestModel):
    """A key to create in the project of the key that asks.

    `scopes` may be those whose permissions this key has itself. Without `expires_at`, the key does not expire.
    """

    scopes: RequestList[Scope] = Field(min_length=1, max_length=len(SCOPES))
    label: Annotated[str, STORABLE] = Field(default="", max_length=200)
    expires_at: UTCTime | None = None


class CreatedApiKey(ApiKey):
    """A new key with its text, which the service does not keep and never shows again.

    Attributes:
        key: the text of the key, to be sent as `Authorization: Bearer`.
    """

    key: str


class ApiKeyList(AnswerModel):
    """A page of the keys of a project, oldest first.

    Attributes:
        keys: the keys, revoked ones included.
    """

    keys: tuple[ApiKey, ...]
    next_cursor: str | None = None


class AuditEntry(AnswerModel):
    """One change: who made it, when, to which subject, and the values before and after (null: none).

    Attributes:
        subject: what was changed, such as `team/math@production`.
        before, after: the value before and after the change; null if there was none.
    """

    project_id: str
    at: datetime
    actor: str
    action: str
    subject: str
    before: str | None = None
    after: str | None = None


class AuditTail(AnswerModel):
    """A page of the audit log, newest first.

    Attributes:
        entries: the changes.
    """

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None = None


class ProjectState(AnswerModel):
    """A project as seen by one of its keys: the key's scopes, the limits, and the prompt tokens computed so far.

    Attributes:
        id: the project's name.
        tokens_today: prompt tokens computed for the project since midnight (UTC).
        tokens_ever: prompt tokens computed for the project in all.
    """

    id: str
    scopes: tuple[str, ...]
    limits: Limits
    tokens_today: int
    tokens_ever: int
