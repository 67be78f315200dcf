"""Versions found lately, for when the database is away. Knows no database.

Only what references that never change their meaning stood for is remembered: a name@version, and a digest. Whether a
version was retired since is not known while the database is away.
"""

from collections import OrderedDict

from trainer_client.wire import Reference, RubricVersion

_KEPT = 1000


class Remembered:
    """The 1,000 versions asked for last."""

    def __init__(self) -> None:
        self._versions: OrderedDict[tuple[str, Reference], RubricVersion] = OrderedDict()

    def keep(self, project_id: str, reference: Reference, version: RubricVersion) -> None:
        """Remember what a reference stands for, unless that may change."""
        if reference.version is None and reference.digest is None:
            return
        self._versions[project_id, reference] = version
        self._versions.move_to_end((project_id, reference))
        if len(self._versions) > _KEPT:
            self._versions.popitem(last=False)

    def recall(self, project_id: str, reference: Reference) -> RubricVersion | None:
        """What it stood for when it was last found; None where that is not remembered."""
        return self._versions.get((project_id, reference))
