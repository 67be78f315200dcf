"""For whom a request is: the project, who says so, and what they may do. One per request, in a context variable."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from trainer_client.wire.tenants import DEFAULT_PROJECT, ApiKey, Limits

SCOPE_PERMISSIONS: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "score": frozenset({"read", "score"}),
    "rubrics:write": frozenset({"read", "rubrics:write"}),
    "metrics": frozenset({"metrics"}),
    "admin": frozenset({"read", "score", "rubrics:write", "admin"}),
}
"""What each scope of a key opens. `metrics` stands alone: its figures are of all projects."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a request is for.

    Attributes:
        project_id: whose rubrics, runs and verdicts it sees.
        actor: who is named in the audit for what it changes.
        opens: what it may do.
        limits: of its project.
    """

    project_id: str
    actor: str
    permissions: frozenset[str]
    limits: Limits = field(default=Limits())

    @classmethod
    def of(cls, key: ApiKey, limits: Limits) -> "Identity":
        """The identity that a key gives."""
        permissions = frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in key.scopes))
        return cls(key.project_id, f"key {key.id}", permissions, limits)


ANONYMOUS = Identity(DEFAULT_PROJECT, "without a key", frozenset().union(*SCOPE_PERMISSIONS.values()))
"""Whoever reaches a service that needs no key."""

_CURRENT_IDENTITY: ContextVar[Identity] = ContextVar("adjudge_identity", default=ANONYMOUS)


def current_identity() -> Identity:
    """For whom this task works."""
    return _CURRENT_IDENTITY.get()


@contextmanager
def identity_context(identity: Identity) -> Iterator[None]:
    """Work for somebody in the block, and in the tasks that begin there."""
    before = _CURRENT_IDENTITY.set(identity)
    try:
        yield
    finally:
        _CURRENT_IDENTITY.reset(before)
