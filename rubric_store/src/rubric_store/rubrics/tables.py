"""The tables of rubrics as the queries see them. The migrations create them; a test compares the two.

Criteria are JSON text on both databases and never searched inside: PostgreSQL's JSONB would reorder keys and reject
characters that a rubric may contain. Names sort by code point on both databases, so that pages agree.
"""

from sqlalchemy import (
    JSON,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

from rubric_store.database import UTCDateTime, key_column, metadata

rubrics = Table(
    "rubrics",
    metadata,
    key_column("project_id"),
    key_column("name"),
    Column("latest_version", Integer, nullable=False),
    Column("current_version", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("project_id", "name", name="pk_rubrics"),
)
"""One row per name. Changes to a name take the lock of its row. `latest_version` is the highest version number;
`current_version` is what the bare name resolves to: the newest version not retired, or the newest if all are."""

rubric_versions = Table(
    "rubric_versions",
    metadata,
    key_column("project_id"),
    key_column("name"),
    Column("version", Integer, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("criteria", JSON, nullable=False),
    Column("criteria_count", Integer, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("parent", Integer),
    Column("metadata", JSON, nullable=False, server_default="{}"),
    Column("lineage", JSON(none_as_null=True)),
    Column("retired_at", UTCDateTime),
    Column("retired_reason", Text),
    PrimaryKeyConstraint("project_id", "name", "version", name="pk_rubric_versions"),
    ForeignKeyConstraint(
        ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_versions_rubrics"
    ),
    UniqueConstraint("project_id", "name", "digest", name="uq_rubric_versions_digest"),
    Index("ix_rubric_versions_project_digest", "project_id", "digest"),
)
"""One row per version; only its retirement ever changes. Lists use `criteria_count` instead of reading the criteria."""

rubric_aliases = Table(
    "rubric_aliases",
    metadata,
    key_column("project_id"),
    key_column("name"),
    key_column("alias"),
    Column("version", Integer, nullable=False),
    PrimaryKeyConstraint("project_id", "name", "alias", name="pk_rubric_aliases"),
    ForeignKeyConstraint(
        ["project_id", "name", "version"],
        ["rubric_versions.project_id", "rubric_versions.name", "rubric_versions.version"],
        name="fk_rubric_aliases_rubric_versions",
    ),
)
"""One row per alias of a name: the version that it points to."""

rubric_tags = Table(
    "rubric_tags",
    metadata,
    key_column("project_id"),
    key_column("tag"),
    key_column("name"),
    PrimaryKeyConstraint("project_id", "tag", "name", name="pk_rubric_tags"),
    ForeignKeyConstraint(["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_tags_rubrics"),
    Index("ix_rubric_tags_project_name", "project_id", "name"),
)
"""One row per tag of a name, keyed in the order in which a tag's rubrics are listed."""

rubric_words = Table(
    "rubric_words",
    metadata,
    key_column("project_id"),
    key_column("name"),
    Column("words", Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
    PrimaryKeyConstraint("project_id", "name", name="pk_rubric_words"),
    ForeignKeyConstraint(
        ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_words_rubrics"
    ),
    Index("ix_rubric_words_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
)
"""The words in the criteria of each name's current version, for search; see `rubric_store.rubrics.queries`."""

rubric_validations = Table(
    "rubric_validations",
    metadata,
    key_column("project_id"),
    key_column("name"),
    Column("version", Integer, nullable=False),
    Column("pass_number", Integer, nullable=False),
    Column("judge", String(71), nullable=False),
    Column("model", Text, nullable=False),
    Column("template_digest", String(71), nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("items", JSON, nullable=False),
    PrimaryKeyConstraint("project_id", "name", "version", "pass_number", name="pk_rubric_validations"),
    ForeignKeyConstraint(
        ["project_id", "name", "version"],
        ["rubric_versions.project_id", "rubric_versions.name", "rubric_versions.version"],
        name="fk_rubric_validations_rubric_versions",
    ),
)
"""One row per pass of a validity judge over a version, numbered from 1 within the version; rows never change."""
