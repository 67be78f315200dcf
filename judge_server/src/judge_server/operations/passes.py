"""What workers show the service: that they work for a project, signed with the deployment's secret, for some minutes.

A worker takes chunks of every project, and asks the judge on behalf of the one a chunk belongs to. It needs no key of
that project for it, but the secret that all processes of a deployment share.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable

from judge_server.access.identity import OPENS, Identity
from judge_server.ports import KeyRing

PREFIX = "adjwork"
VALID_S = 600
"""How long a pass is good for; a request that was let in stays in."""

_OPENS = OPENS["score"] | OPENS["rubrics:write"]
_PASS = re.compile(r"adjwork_(?P<until>\d{1,12})_(?P<signature>[0-9a-f]{64})_(?P<project>.{1,200})", re.DOTALL)


class Passes:
    """Signs and reads passes. `clock` gives seconds since 1970, on all hosts about the same."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"adjudge operations", hashlib.sha256)
        self._clock = clock

    def sign(self, project_id: str) -> str:
        """A pass for a project."""
        until = int(self._clock()) + VALID_S
        return f"{PREFIX}_{until}_{self._signature(project_id, until)}_{project_id}"

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
    """Whom requests with a pass are for: their project, with its limits, for what operations do."""

    def __init__(self, passes: Passes, ring: KeyRing) -> None:
        self._passes = passes
        self._ring = ring

    async def __call__(self, shown: str) -> Identity | None:
        """The identity that a pass gives; None for what is no pass."""
        project_id = self._passes.project_of(shown)
        if project_id is None:
            return None
        found = [project for project in await self._ring.projects() if project.id == project_id]
        return Identity(project_id, "operations", _OPENS, found[0].limits) if found else None
