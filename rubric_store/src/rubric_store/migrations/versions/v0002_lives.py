"""What rubrics live by for years: parents, metadata, lineage, retirement, aliases, tags, and words to search.

Versions there are already descend from the one before them, and are searched by their words like new ones.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from rubric_store.migrations.changes import add_columns, create_table, drop_columns, drop_tables
from rubric_store.rubrics.queries import kept_words, words_of, words_parameter
from rubric_store.schema import UTCDateTime, key, optional, required

revision = "0002"
down_revision = "0001"

loses = "aliases, tags, metadata, lineage and retirements of rubrics; versions stay"

_READ_AT_ONCE = 500


def upgrade() -> None:
    """Add the columns and tables, and fill them for the versions there are."""
    add_columns(["rubrics"], lambda: required(sa.Integer, "current_version", default="0"))
    add_columns(
        ["rubric_versions"],
        lambda: [
            *optional(sa.Integer, "parent"),
            *required(sa.JSON, "metadata", default="{}"),
            *optional(sa.JSON, "lineage"),
            *optional(UTCDateTime, "retired_at"),
            *optional(sa.Text, "retired_reason"),
        ],
    )
    op.execute("UPDATE rubrics SET current_version = latest_version")
    op.execute("UPDATE rubric_versions SET parent = version - 1 WHERE version > 1")
    create_table(
        "rubric_aliases",
        [key("project_id"), key("name"), key("alias")],
        required(sa.Integer, "version"),
        references={"rubric_versions": ["project_id", "name", "version"]},
    )
    create_table(
        "rubric_tags",
        [key("project_id"), key("tag"), key("name")],
        sa.Index("ix_rubric_tags_project_name", "project_id", "name"),
        references={"rubrics": ["project_id", "name"]},
    )
    create_table(
        "rubric_words",
        [key("project_id"), key("name")],
        required(sa.Text().with_variant(TSVECTOR(), "postgresql"), "words"),
        references={"rubrics": ["project_id", "name"]},
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_rubric_words_words", "rubric_words", ["words"], postgresql_using="gin")
    _fill_words()


def downgrade() -> None:
    """Drop them; aliases, tags, metadata, lineage and retirements are lost, versions stay."""
    drop_tables("rubric_words", "rubric_tags", "rubric_aliases")
    drop_columns(["rubric_versions"], "retired_reason", "retired_at", "lineage", "metadata", "parent")
    drop_columns(["rubrics"], "current_version")


def _fill_words() -> None:
    """Keep the words of every newest version, a batch of rubrics at a time."""
    connection = op.get_bind()
    dialect = connection.dialect.name
    add = sa.insert(sa.table("rubric_words", *map(sa.column, ("project_id", "name", "words"))))
    add = add.values(project_id=sa.bindparam("project"), name=sa.bindparam("rubric"), words=words_parameter(dialect))
    done = ("", "")
    while rows := connection.execute(_newest_after(*done)).all():
        connection.execute(
            add,
            [
                {
                    "project": row.project_id,
                    "rubric": row.name,
                    "words": kept_words(dialect, words_of(c["description"] for c in row.criteria)),
                }
                for row in rows
            ],
        )
        done = (rows[-1].project_id, rows[-1].name)


def _newest_after(project_id: str, name: str) -> sa.Select[Any]:
    rubrics = sa.table("rubrics", *map(sa.column, ("project_id", "name", "latest_version")))
    versions = sa.table(
        "rubric_versions", *map(sa.column, ("project_id", "name", "version")), sa.column("criteria", sa.JSON())
    )
    newest = sa.and_(
        versions.c.project_id == rubrics.c.project_id,
        versions.c.name == rubrics.c.name,
        versions.c.version == rubrics.c.latest_version,
    )
    return (
        sa.select(rubrics.c.project_id, rubrics.c.name, versions.c.criteria)
        .join_from(rubrics, versions, newest)
        .where(sa.tuple_(rubrics.c.project_id, rubrics.c.name) > sa.tuple_(sa.literal(project_id), sa.literal(name)))
        .order_by(rubrics.c.project_id, rubrics.c.name)
        .limit(_READ_AT_ONCE)
    )
