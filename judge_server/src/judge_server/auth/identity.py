"""The identity a request acts for, and the fence markers of its project.

For whom a request is: the project, who says so, and what they may do. One per request, in a context variable.

Fences whose markers differ from project to project, so that no verdict of one is known to another.

A call's digest holds the rendered prompt, and every prompt holds fenced text. So projects have no cache entry, no call
in flight and no computed prefix of the engine in common: neither an answer nor its time tells one project what another
has asked. The project `default` has the markers that the secret alone makes.
"""

import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache

from judge_server.prompts.fencing import Fence
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


_MAX_CACHED_PROJECTS = 1024


class ProjectFence:
    """Fences texts for the project that the task works for."""

    def __init__(self, secret: bytes) -> None:
        self._default = Fence(secret)
        self._secret = secret
        self._fence_of = lru_cache(_MAX_CACHED_PROJECTS)(self._make_fence)

    def __call__(self, text: str) -> str:
        """Return the neutralised text between its two marker lines."""
        return self._fence_of(current_identity().project_id)(text)

    def _make_fence(self, project_id: str) -> Fence:
        if project_id == DEFAULT_PROJECT:
            return self._default
        return Fence(hmac.digest(self._secret, b"project\0" + project_id.encode(), "sha256"))
