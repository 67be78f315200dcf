"""The identity a request acts for, and the fence markers of its project.

Each request has one identity, in a context variable.

Fence markers differ between projects, so that no verdict is shared between them. The digest of a call covers the
rendered prompt, and every prompt contains fenced text. Projects therefore share no cache entry, no call in progress and
no computed prefix in the engine: neither a response nor its timing reveals to one project what another has asked. The
markers of the project `default` derive from the secret alone.
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
    "labels:write": frozenset({"read", "labels:write"}),
    "projects:write": frozenset({"read", "projects:write"}),
    "metrics": frozenset({"metrics"}),
    "admin": frozenset({"read", "score", "rubrics:write", "labels:write", "admin"}),
}
"""The permissions of each scope of a key. Only `metrics` and `projects:write` concern all projects."""


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


_MAX_CACHED_PROJECTS = 1024


class ProjectFence:
    """Fences texts with the markers of the current identity's project."""

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
