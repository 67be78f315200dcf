"""Where a database stands, seen by the code of this version. Refuses to know how to change that."""

from dataclasses import dataclass
from typing import Literal

from rubric_store.migrations.scripts import Revision, revision_number

SchemaState = Literal["current", "behind", "ahead", "too new"]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """A database and this code.

    Attributes:
        revision: what the database is at; None before its first migration.
        works_from: the oldest head whose code works on it; None where that is not known.
        steps: all revisions that this code knows, oldest first.
    """

    revision: str | None
    works_from: str | None
    revisions: tuple[Revision, ...]

    @property
    def head(self) -> str:
        """The revision this code was written for."""
        return self.revisions[-1].revision

    @property
    def state(self) -> SchemaState:
        """`ahead` is a newer schema that works with this code, `too new` one that does not, or does not say so."""
        number = revision_number(self.revisions, self.revision)
        if number is not None:
            return "current" if number == len(self.revisions) else "behind"
        return "ahead" if revision_number(self.revisions, self.works_from or "") is not None else "too new"

    @property
    def usable(self) -> bool:
        """Whether this code may run on the database as it is."""
        return self.state in ("current", "ahead")

    @property
    def pending(self) -> tuple[Revision, ...]:
        """What a migration would do, in order."""
        number = revision_number(self.revisions, self.revision)
        return () if number is None else self.revisions[number:]

    @property
    def supports_rolling_upgrade(self) -> bool:
        """Whether processes whose head is the database's revision keep working when the pending steps are done."""
        if self.revision is None or not self.pending:
            return True
        needed = revision_number(self.revisions, self.revisions[-1].works_from) or 0
        return needed <= (revision_number(self.revisions, self.revision) or 0)

    def downgrade_path(self, to: str) -> tuple[Revision, ...]:
        """The steps that a way back to a revision takes back, newest first.

        Raises:
            LookupError: the database is not after that revision, or this code does not know one of the two.
        """
        target = 0 if to == "base" else revision_number(self.revisions, to)
        number = revision_number(self.revisions, self.revision)
        if number is None:
            raise LookupError(f"the database is at {self.revision}, which a newer version made; go back with that one")
        if target is None:
            there = ", ".join(["base", *(step.revision for step in self.revisions)])
            raise LookupError(f"there is no revision {to!r}; there are {there}")
        if target >= number:
            raise LookupError(f"the database is at {self.revision or 'base'}, which is not after {to}")
        return self.revisions[target:number][::-1]
