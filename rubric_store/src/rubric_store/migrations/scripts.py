"""The revisions of this package in order, and what each says about the code that works on a database after it.

Knows the files under `versions`. Refuses to know any database.
"""

from typing import NamedTuple

from alembic.config import Config
from alembic.script import ScriptDirectory


class Revision(NamedTuple):
    """A revision.

    Attributes:
        does: what it is for, in a line.
        works_from: the oldest head whose code works on a database at this revision. A revision that declares none
            only adds, and works with whatever code worked before it.
        loses: what the way back from it loses, as the end of a sentence.
    """

    revision: str
    summary: str
    works_from: str
    loses: str


def script_config() -> Config:
    """What Alembic needs to find the revisions."""
    config = Config()
    config.set_main_option("script_location", "rubric_store:migrations")
    return config


def revisions() -> tuple[Revision, ...]:
    """Every revision, oldest first."""
    found: list[Revision] = []
    for script in reversed(list(ScriptDirectory.from_config(script_config()).walk_revisions())):
        before = found[-1].works_from if found else script.revision
        works_from = getattr(script.module, "works_from", before)
        summary = (script.doc or "").split("\n")[0]
        found.append(Revision(script.revision, summary, works_from, script.module.loses))
    if not found:
        raise RuntimeError("the migrations are missing from this installation; reinstall adjudge-store")
    return tuple(found)


def revision_number(known_revisions: tuple[Revision, ...], revision: str | None) -> int | None:
    """How many of the steps lead to a revision; None where it is none of them."""
    if revision is None:
        return 0
    return next((number for number, step in enumerate(known_revisions, start=1) if step.revision == revision), None)
