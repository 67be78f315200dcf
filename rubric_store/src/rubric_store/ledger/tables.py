"""The ledger's tables as its statements see them; migrations 0003 and 0010 make them, and a test holds them together.

Their columns stand in the order of the rows of `trainer_client.wire.ledger_rows`. Nothing refers to anything by a
foreign key: rows come by the thousand, and are taken out by run.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

from rubric_store.tables import UTCDateTime, metadata


def _key_column(name: str, length: int) -> Column[str]:
    kind = String(length).with_variant(String(length, collation="C"), "postgresql")
    return Column(name, kind, nullable=False)


def _project() -> Column[str]:
    return _key_column("project_id", 200)


def _digest(name: str, *, length: int = 32, nullable: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary(length), nullable=nullable)


texts = Table(
    "ledger_texts",
    metadata,
    _project(),
    _digest("digest"),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("project_id", "digest", name="pk_ledger_texts"),
    sqlite_with_rowid=False,
)
"""Prompts, responses, groundings and rubrics by digest, compressed."""


def _verdict_table(name: str, *also: str) -> Table:
    return Table(
        name,
        metadata,
        _project(),
        _digest("digest"),
        _digest("request", length=16),
        Column("score", Double, nullable=False),
        Column("probability", Double),
        Column("menu_mass", Double),
        Column("step", Integer),
        Column("grade", Double),
        Column("rationale", Text),
        Column("raw_probability", Double),
        PrimaryKeyConstraint("project_id", "digest", *also, name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )


verdicts = _verdict_table("ledger_verdicts")
"""What was found under a call's digest, first."""

rejudgements = _verdict_table("ledger_rejudgements", "request")
"""What was found under it later, and differs."""

requests = Table(
    "ledger_requests",
    metadata,
    _project(),
    _key_column("run", 256),
    _digest("request", length=16),
    Column("request_id", Text, nullable=False),
    Column("step", BigInteger),
    Column("mode", Text),
    Column("protocol", Text, nullable=False),
    Column("fingerprint", Text),
    Column("model", Text),
    Column("votes", Integer, nullable=False),
    Column("uses", Integer, nullable=False),
    Column("judge_calls", Integer, nullable=False),
    Column("tokens_computed", BigInteger, nullable=False),
    Column("tokens_reused", BigInteger, nullable=False),
    Column("tokens_written", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "run", "request", name="pk_ledger_requests"),
    Index("ix_ledger_requests_created_at", "project_id", "created_at"),
)

responses = Table(
    "ledger_responses",
    metadata,
    _project(),
    _key_column("run", 256),
    _digest("request", length=16),
    Column("place", Integer, nullable=False),
    Column("group_id", Text, nullable=False),
    Column("position", Integer, nullable=False),
    _digest("rubric", nullable=True),
    _digest("prompt"),
    _digest("response"),
    _digest("grounding", nullable=True),
    Column("tokens", BigInteger),
    Column("stopped", Boolean),
    Column("format_ok", Boolean, nullable=False),
    Column("spans", Text),
    Column("reward", Double),
    Column("status", Text),
    PrimaryKeyConstraint("project_id", "run", "request", "place", name="pk_ledger_responses"),
    sqlite_with_rowid=False,
)

uses = Table(
    "ledger_uses",
    metadata,
    _project(),
    _key_column("run", 256),
    _digest("request", length=16),
    Column("place", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("vote", Integer, nullable=False),
    Column("criterion", Text, nullable=False),
    Column("method", Text, nullable=False),
    _digest("digest"),
    Column("failed", Boolean, nullable=False),
    Column("failure", Text),
    Column("detail", Text),
    Column("step", Integer),
    Column("cached", Boolean, nullable=False),
    PrimaryKeyConstraint("project_id", "run", "request", "place", "slot", "vote", name="pk_ledger_uses"),
    sqlite_with_rowid=False,
    postgresql_partition_by="HASH (project_id, run)",
)
"""Who used which verdict; PostgreSQL keeps it in partitions by run."""
