"""What workers show the service: that they work for a project, signed with the deployment's secret, for some minutes.

A worker takes chunks of every project, and asks the judge on behalf of the one a chunk belongs to. It needs no key of
that project for it, but the secret that all processes of a deployment share.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable

from judge_server.access.gate import WORK_BEGINS
from judge_server.access.identity import OPENS, Identity
from judge_server.access.known import AWAY_S
from judge_server.errors import NotReady
from judge_server.ports import KeyRing
from judge_server.telemetry.redaction import reason

log = logging.getLogger("adjudge")

WORKERS = "operations"
"""The actor of requests that come with a pass."""

VALID_S = 600
"""How long a pass is good for; a request that was let in stays in."""

_PATIENCE_S = 5.0

_OPENS = OPENS["score"] | OPENS["rubrics:write"]
_PASS = re.compile(WORK_BEGINS + r"(?P<until>\d{1,12})_(?P<signature>[0-9a-f]{64})_(?P<project>.{1,200})", re.DOTALL)


class Passes:
    """Signs and reads passes. `clock` gives seconds since 1970, on all hosts about the same."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"adjudge operations", hashlib.sha256)
        self._clock = clock

    def sign(self, project_id: str) -> str:
        """A pass for a project."""
        until = int(self._clock()) + VALID_S
        return f"{WORK_BEGINS}{until}_{self._signature(project_id, until)}_{project_id}"

    def project_of(self, shown: str) -> str | None:
        """The project that a pass is for; None for what is no pass of ours, or no longer one."""
        read = _PASS.fullmatch(shown)
        if read is None:
            return None
        until, project_id = int(read["until"]), read["project"]
        genuine = hmac.compare_digest(self._signature(project_id, until), read["signature"])
        return project_id if genuine and until >= self._clock() else None

    def _signature(self, project_id: str, until: int) -> str:
        return hmac.new(self._key, f"{until}\0{project_id}".encode(), hashlib.sha256).hexdigest()


class PassIdentities:
    """Whom requests with a pass are for: their project, with its limits, for what operations do.

    While the store is away, a project seen lately goes on as it was. `clock` gives seconds.
    """

    def __init__(self, passes: Passes, ring: KeyRing, clock: Callable[[], float] = time.monotonic) -> None:
        self._passes = passes
        self._ring = ring
        self._clock = clock
        self._seen: dict[str, tuple[float, Identity]] = {}

    async def __call__(self, shown: str) -> Identity | None:
        """The identity that a pass gives; None for what is no pass.

        Raises:
            NotReady: the store cannot be read, and the project was not seen lately.
        """
        project_id = self._passes.project_of(shown)
        if project_id is None:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                projects = await self._ring.projects()
        except Exception as error:
            at, identity = self._seen.get(project_id, (float("-inf"), None))
            if identity is not None and self._clock() - at < AWAY_S:
                log.warning("projects cannot be read (%s); one that was seen lately goes on", reason(error))
                return identity
            message = "The project of an operation cannot be read now: the store does not answer."
            raise NotReady(message, retry_after_s=2) from error
        self._seen = {
            project.id: (self._clock(), Identity(project.id, WORKERS, _OPENS, project.limits)) for project in projects
        }
        return self._seen[project_id][1] if project_id in self._seen else None
