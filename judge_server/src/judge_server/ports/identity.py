"""Who a request comes from: its project, and what it may do. Set once where a request or an operation begins."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire.tenants import ApiKey, Limits

SCOPE_PERMISSIONS: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "score": frozenset({"read", "score"}),
    "rubrics:write": frozenset({"read", "rubrics:write"}),
    "labels:write": frozenset({"read", "labels:write"}),
    "projects:write": frozenset({"read", "projects:write"}),
    "judges:write": frozenset({"read", "judges:write"}),
    "metrics": frozenset({"metrics"}),
    "admin": frozenset({"read", "score", "rubrics:write", "labels:write", "admin"}),
}
"""The permissions of each scope of a key. Only `metrics`, `projects:write` and `judges:write` concern all projects."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request.

    Attributes:
        project_id: the project whose rubrics, runs and verdicts it can access.
        actor: the name in the audit log for changes it makes.
        permissions: what it may do.
        limits: the limits of its project.
    """

    project_id: str
    actor: str
    permissions: frozenset[str]
    limits: Limits = field(default=Limits())

    @classmethod
    def of(cls, key: ApiKey, limits: Limits) -> "Identity":
        """The identity of a key's holder."""
        permissions = frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in key.scopes))
        return cls(key.project_id, f"key {key.id}", permissions, limits)


ANONYMOUS = Identity(DEFAULT_PROJECT, "without a key", frozenset().union(*SCOPE_PERMISSIONS.values()))
"""The identity of callers without a key, on a service that requires none."""

_CURRENT_IDENTITY: ContextVar[Identity] = ContextVar("adjudge_identity", default=ANONYMOUS)


def current_identity() -> Identity:
    """The identity that this task works for."""
    return _CURRENT_IDENTITY.get()


@contextmanager
def identity_context(identity: Identity) -> Iterator[None]:
    """Set the current identity in the block and in tasks that start there."""
    token = _CURRENT_IDENTITY.set(identity)
    try:
        yield
    finally:
        _CURRENT_IDENTITY.reset(token)


def project_salt() -> str:
    """The `cache_salt` of the current identity's project, so that projects share no verdict; empty for the default."""
    project_id = current_identity().project_id
    return "" if project_id == DEFAULT_PROJECT else project_id
