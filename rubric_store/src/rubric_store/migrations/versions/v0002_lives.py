"""What rubrics live by for years: parents, metadata, lineage, retirement, aliases, tags, and words to search.

Versions there are already descend from the one before them, and are searched by their words like new ones.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from rubric_store.rubrics.queries import kept_words, words_of, words_parameter

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

loses = "aliases, tags, metadata, lineage and retirements of rubrics; versions stay"

_READ_AT_ONCE = 500


def upgrade() -> None:
    """Add the columns and tables, and fill them for the versions there are."""
    key = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    op.add_column("rubrics", sa.Column("current_version", sa.Integer, nullable=False, server_default="0"))
    op.add_column("rubric_versions", sa.Column("parent", sa.Integer))
    op.add_column("rubric_versions", sa.Column("metadata", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("rubric_versions", sa.Column("lineage", sa.JSON))
    op.add_column("rubric_versions", sa.Column("retired_at", sa.DateTime(timezone=True)))
    op.add_column("rubric_versions", sa.Column("retired_reason", sa.Text))
    op.execute("UPDATE rubrics SET current_version = latest_version")
    op.execute("UPDATE rubric_versions SET parent = version - 1 WHERE version > 1")
    op.create_table(
        "rubric_aliases",
        sa.Column("project_id", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("alias", key, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", "alias", name="pk_rubric_aliases"),
        sa.ForeignKeyConstraint(
            ["project_id", "name", "version"],
            ["rubric_versions.project_id", "rubric_versions.name", "rubric_versions.version"],
            name="fk_rubric_aliases_rubric_versions",
        ),
    )
    op.create_table(
        "rubric_tags",
        sa.Column("project_id", key, nullable=False),
        sa.Column("tag", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "tag", "name", name="pk_rubric_tags"),
        sa.ForeignKeyConstraint(
            ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_tags_rubrics"
        ),
    )
    op.create_index("ix_rubric_tags_project_name", "rubric_tags", ["project_id", "name"])
    op.create_table(
        "rubric_words",
        sa.Column("project_id", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name="pk_rubric_words"),
        sa.ForeignKeyConstraint(
            ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_words_rubrics"
        ),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("ix_rubric_words_words", "rubric_words", ["words"], postgresql_using="gin")
    _fill_words()


def downgrade() -> None:
    """Drop them; aliases, tags, metadata, lineage and retirements are lost, versions stay."""
    for table in ("rubric_words", "rubric_tags", "rubric_aliases"):
        op.drop_table(table)
    for column in ("retired_reason", "retired_at", "lineage", "metadata", "parent"):
        op.drop_column("rubric_versions", column)
    op.drop_column("rubrics", "current_version")


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
