"""What a database says of itself to code that does not know its revision: the oldest code that works on it.

Kept by every migration from revision 0008 on. Refuses to know what a migration does.
"""

from sqlalchemy import Column, Connection, PrimaryKeyConstraint, String, Table, delete, insert, inspect, select

from rubric_store.tables import metadata

schema_generation = Table(
    "schema_generation",
    metadata,
    Column("revision", String(32), nullable=False),
    Column("works_from", String(32), nullable=False),
    PrimaryKeyConstraint("revision", name="pk_schema_generation"),
)
"""One row: the revision that the database was brought to, and the oldest head whose code works on it."""


def write_compatibility(connection: Connection, revision: str | None, works_from: str | None) -> None:
    """Say where the database is now; nothing where it is too old to keep that."""
    if _table_exists(connection):
        connection.execute(delete(schema_generation))
        connection.execute(insert(schema_generation).values(revision=revision, works_from=works_from))


def read_works_from(connection: Connection, revision: str) -> str | None:
    """The oldest head whose code works on a database at this revision; None where it does not say."""
    if not _table_exists(connection):
        return None
    found = select(schema_generation.c.works_from).where(schema_generation.c.revision == revision)
    return connection.execute(found).scalar_one_or_none()


def _table_exists(connection: Connection) -> bool:
    return inspect(connection).has_table(schema_generation.name)
