"""The ledger: texts, verdicts and re-judgements by digest; requests, responses and uses by run.

PostgreSQL keeps uses in 16 partitions by the hash of project and run, so that no process needs the right to make
tables; SQLite keeps them clustered by their key.
"""

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, LargeBinary, Text

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, optional, required

revision = "0003"
down_revision = "0002"

loses = "everything that the ledger recorded"

_PARTITIONS = 16


def upgrade() -> None:
    """Create the six tables."""
    create_table(
        "ledger_texts", [key("project_id"), digest("digest")], required(LargeBinary, "body"), sqlite_with_rowid=False
    )
    _create_verdicts("ledger_verdicts", [key("project_id"), digest("digest")], digest("request", 16))
    _create_verdicts("ledger_rejudgements", [key("project_id"), digest("digest"), digest("request", 16)])
    create_table(
        "ledger_requests",
        [key("project_id"), key("run", 256), digest("request", 16)],
        required(Text, "request_id"),
        optional(BigInteger, "step"),
        optional(Text, "mode"),
        required(Text, "protocol"),
        optional(Text, "fingerprint", "model"),
        required(Integer, "votes", "uses", "judge_calls"),
        required(BigInteger, "tokens_computed", "tokens_reused", "tokens_written"),
        required(Double, "seconds"),
        required(UTCDateTime, "created_at"),
        Index("ix_ledger_requests_created_at", "project_id", "created_at"),
    )
    create_table(
        "ledger_responses",
        [key("project_id"), key("run", 256), digest("request", 16), *required(Integer, "place")],
        required(Text, "group_id"),
        required(Integer, "position"),
        digest("rubric", nullable=True),
        digest("prompt"),
        digest("response"),
        digest("grounding", nullable=True),
        optional(BigInteger, "tokens"),
        optional(Boolean, "stopped"),
        required(Boolean, "format_ok"),
        optional(Text, "spans"),
        optional(Double, "reward"),
        optional(Text, "status"),
        sqlite_with_rowid=False,
    )
    create_table(
        "ledger_uses",
        [key("project_id"), key("run", 256), digest("request", 16), *required(Integer, "place", "slot", "vote")],
        required(Text, "criterion", "method"),
        digest("digest"),
        required(Boolean, "failed"),
        optional(Text, "failure", "detail"),
        optional(Integer, "step"),
        required(Boolean, "cached"),
        postgresql_partition_by="HASH (project_id, run)",
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        for number in range(_PARTITIONS):
            op.execute(
                f"CREATE TABLE ledger_uses_{number} PARTITION OF ledger_uses "
                f"FOR VALUES WITH (MODULUS {_PARTITIONS}, REMAINDER {number})"
            )


def _create_verdicts(name: str, keys: list[Column[Any]], *more: Column[Any]) -> None:
    create_table(
        name,
        keys,
        more,
        required(Double, "score"),
        optional(Double, "probability", "menu_mass"),
        optional(Integer, "step"),
        optional(Double, "grade"),
        optional(Text, "rationale"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop them, and with them everything that was recorded."""
    drop_tables(*(f"ledger_{name}" for name in ("uses", "responses", "requests", "rejudgements", "verdicts", "texts")))
