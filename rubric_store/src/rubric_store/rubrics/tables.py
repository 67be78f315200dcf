"""The tables of rubrics as the queries see them. The migrations create them; a test compares the two.

Criteria are JSON text on both databases and never searched inside: PostgreSQL's JSONB would reorder keys and reject
characters that a rubric may contain. Names sort by code point on both databases, so that pages agree.
"""

from sqlalchemy import JSON, Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import TSVECTOR

from rubric_store.schema import UTCDateTime, declare, key, optional, required

rubrics = declare(
    "rubrics",
    [key("project_id"), key("name")],
    required(Integer, "latest_version"),
    required(Integer, "current_version", default="0"),
)
"""One row per name. Changes to a name take the lock of its row. `latest_version` is the highest version number;
`current_version` is what the bare name resolves to: the newest version not retired, or the newest if all are."""

rubric_versions = declare(
    "rubric_versions",
    [key("project_id"), key("name"), *required(Integer, "version")],
    required(String(71), "digest"),
    required(JSON, "criteria"),
    required(Integer, "criteria_count"),
    required(UTCDateTime, "created_at"),
    optional(Integer, "parent"),
    required(JSON, "metadata", default="{}"),
    optional(JSON(none_as_null=True), "lineage"),
    optional(UTCDateTime, "retired_at"),
    optional(Text, "retired_reason"),
    UniqueConstraint("project_id", "name", "digest", name="uq_rubric_versions_digest"),
    Index("ix_rubric_versions_project_digest", "project_id", "digest"),
    references={"rubrics": ["project_id", "name"]},
)
"""One row per version; only its retirement ever changes. Lists use `criteria_count` instead of reading the criteria."""

rubric_aliases = declare(
    "rubric_aliases",
    [key("project_id"), key("name"), key("alias")],
    required(Integer, "version"),
    references={"rubric_versions": ["project_id", "name", "version"]},
)
"""One row per alias of a name: the version that it points to."""

rubric_tags = declare(
    "rubric_tags",
    [key("project_id"), key("tag"), key("name")],
    Index("ix_rubric_tags_project_name", "project_id", "name"),
    references={"rubrics": ["project_id", "name"]},
)
"""One row per tag of a name, keyed in the order in which a tag's rubrics are listed."""

rubric_words = declare(
    "rubric_words",
    [key("project_id"), key("name")],
    required(Text().with_variant(TSVECTOR(), "postgresql"), "words"),
    Index("ix_rubric_words_words", "words", postgresql_using="gin").ddl_if(dialect="postgresql"),
    references={"rubrics": ["project_id", "name"]},
)
"""The words in the criteria of each name's current version, for search; see `rubric_store.rubrics.queries`."""

rubric_validations = declare(
    "rubric_validations",
    [key("project_id"), key("name"), *required(Integer, "version", "pass_number")],
    required(String(71), "judge"),
    required(Text, "model"),
    required(String(71), "template_digest"),
    required(UTCDateTime, "created_at"),
    required(JSON, "items"),
    references={"rubric_versions": ["project_id", "name", "version"]},
)
"""One row per pass of a validity judge over a version, numbered from 1 within the version; rows never change."""
