"""Short-lived tokens with which workers act for a project, signed with the secret of the deployment.

A worker processes chunks of every project, and sends requests on behalf of the project of a chunk. It does so without
an API key of that project, with the secret that all processes of a deployment share.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable

from judge_server.auth.authenticator import WORKER_PREFIX
from judge_server.auth.keys import STALE_TTL_S
from judge_server.errors import NotReady
from judge_server.observability.logs import describe_error
from judge_server.ports import SCOPE_PERMISSIONS, ApiKeyStore, Identity

log = logging.getLogger("adjudge")

WORKER_ACTOR = "operations"
"""The actor of requests with a worker token."""

TOKEN_LIFETIME_S = 600
"""Lifetime of a worker token. It covers a worker's retries and clocks that differ by minutes. A request that has been
admitted is not interrupted when it expires."""

_STORE_TIMEOUT_S = 5.0

_WORKER_PERMISSIONS = SCOPE_PERMISSIONS["score"] | SCOPE_PERMISSIONS["rubrics:write"]
_TOKEN_PATTERN = re.compile(
    WORKER_PREFIX + r"(?P<until>\d{1,12})_(?P<signature>[0-9a-f]{64})_(?P<project>.{1,200})", re.DOTALL
)


class WorkerTokens:
    """Signs and verifies worker tokens. `clock` returns Unix time and must roughly agree on all hosts."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"adjudge operations", hashlib.sha256)
        self._clock = clock

    def sign(self, project_id: str) -> str:
        """Create a token for a project."""
        expires_at = int(self._clock()) + TOKEN_LIFETIME_S
        return f"{WORKER_PREFIX}{expires_at}_{self._signature(project_id, expires_at)}_{project_id}"

    def verify(self, token: str) -> str | None:
        """The project of a token; None if the token is invalid or has expired."""
        match = _TOKEN_PATTERN.fullmatch(token)
        if match is None:
            return None
        expires_at, project_id = int(match["until"]), match["project"]
        is_genuine = hmac.compare_digest(self._signature(project_id, expires_at), match["signature"])
        return project_id if is_genuine and expires_at >= self._clock() else None

    def _signature(self, project_id: str, expires_at: int) -> str:
        return hmac.new(self._key, f"{expires_at}\0{project_id}".encode(), hashlib.sha256).hexdigest()


class WorkerAuthenticator:
    """Resolves a worker token to an identity with the project's limits and the permissions of operations.

    While the store cannot be reached, recently seen projects keep working. `clock` returns seconds.
    """

    def __init__(
        self, tokens: WorkerTokens, key_store: ApiKeyStore, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tokens = tokens
        self._key_store = key_store
        self._clock = clock
        self._seen: dict[str, tuple[float, Identity]] = {}

    async def __call__(self, token: str) -> Identity | None:
        """The identity of a token; None if the token is invalid.

        Raises:
            NotReady: the store cannot be read, and the project was not seen recently.
        """
        project_id = self._tokens.verify(token)
        if project_id is None:
            return None
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                projects = await self._key_store.projects()
        except Exception as error:
            at, identity = self._seen.get(project_id, (float("-inf"), None))
            if identity is not None and self._clock() - at < STALE_TTL_S:
                log.warning("projects cannot be read (%s); a recently seen one keeps working", describe_error(error))
                return identity
            message = "The project of an operation cannot be read now: the store does not answer."
            raise NotReady(message, retry_after_s=2) from error
        self._seen = {
            project.id: (self._clock(), Identity(project.id, WORKER_ACTOR, _WORKER_PERMISSIONS, project.limits))
            for project in projects
        }
        return self._seen[project_id][1] if project_id in self._seen else None
