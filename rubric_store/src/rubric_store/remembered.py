"""Versions found lately, for when the database is away. Knows no database.

Only what references that never change their meaning stood for is remembered: a name@version, and a digest. Whether a
version was retired since is not known while the database is away.
"""

from trainer_client.byte_cache import ByteCache
from trainer_client.wire import Reference, RubricVersion

_MAX_CACHE_BYTES = 32 * 2**20


class VersionCache:
    """The versions asked for last, up to 32 MiB of them."""

    def __init__(self) -> None:
        self._versions: ByteCache[tuple[str, Reference], RubricVersion] = ByteCache(_MAX_CACHE_BYTES)

    def put(self, project_id: str, reference: Reference, version: RubricVersion) -> None:
        """Remember what a reference stands for, unless that may change."""
        if reference.version is None and reference.digest is None:
            return
        if self._versions.get((project_id, reference)) is not version:
            self._versions.put((project_id, reference), version)

    def get(self, project_id: str, reference: Reference) -> RubricVersion | None:
        """What it stood for when it was last found; None where that is not remembered."""
        return self._versions.get((project_id, reference))
