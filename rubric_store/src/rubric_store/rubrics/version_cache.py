"""Versions of rubrics in memory, so that scoring does not wait for the database each time."""

import math
from time import monotonic
from typing import NamedTuple

from trainer_client.byte_cache import ByteCache
from trainer_client.wire import RubricVersion
from trainer_client.wire.rubrics import Reference

_MAX_CACHE_BYTES = 32 * 2**20


REFRESH_AFTER_S = 1.0
"""A version that was read longer ago is read again in the background when it is used from the cache."""


class CachedVersion(NamedTuple):
    """A version, and when it was read, by the monotonic clock."""

    version: RubricVersion
    read_at: float


class VersionCache:
    """The most recently used versions, up to 32 MiB."""

    def __init__(self) -> None:
        self._versions: ByteCache[tuple[str, Reference], CachedVersion] = ByteCache(_MAX_CACHE_BYTES)
        self._changed_at = -math.inf

    def put(self, project_id: str, reference: Reference, version: RubricVersion, read_at: float) -> None:
        """Cache the version of a reference, unless the reference may change its meaning."""
        if reference.version is not None or reference.digest is not None:
            self._versions.put((project_id, reference), CachedVersion(version, read_at))

    def get(self, project_id: str, reference: Reference) -> RubricVersion | None:
        """The cached version of a reference; None if there is none."""
        found = self._versions.get((project_id, reference))
        return found.version if found else None

    def age_s(self, project_id: str, reference: Reference) -> float:
        """How long ago the version of a reference was read; infinite if it is not cached or may have changed since."""
        found = self._versions.get((project_id, reference))
        return math.inf if found is None or found.read_at <= self._changed_at else monotonic() - found.read_at

    def expire(self) -> None:
        """Treat all versions as changed, after a retirement."""
        self._changed_at = monotonic()
