"""Fences whose markers differ from project to project, so that no verdict of one is known to another.

A call's digest holds the rendered prompt, and every prompt holds fenced text. So projects have no cache entry, no call
in flight and no computed prefix of the engine in common: neither an answer nor its time tells one project what another
has asked. The project `default` has the markers that the secret alone makes.
"""

import hmac
from functools import lru_cache

from judge_server.access.identity import current_identity
from judge_server.prompts.fencing import Fence
from trainer_client.wire.tenants import DEFAULT_PROJECT

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
