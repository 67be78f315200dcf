"""The ledger's tables, and those of run figures.

The ledger's tables as its statements see them; migrations 0003 and 0010 make them, and a test holds them together.

Their columns stand in the order of the rows of `trainer_client.wire.ledger_rows`. Nothing refers to anything by a
foreign key: rows come by the thousand, and are taken out by run.

The tables of a run's figures: sums that are kept up while the ledger is written, so that nobody counts its uses.

Migration 0007 makes them. A step of -1 is none, and an empty rubric is none too. All but keys and moments are added
to: a row's values are what is to be added where the row is there already.
"""

from functools import partial

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

from rubric_store.rubrics.tables import UTCDateTime, metadata


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


NO_STEP = -1


def _key(name: str, length: int | None = None) -> Column[str]:
    kind = Text if length is None else partial(String, length)
    return Column(name, kind().with_variant(kind(collation="C"), "postgresql"), nullable=False)


def _run() -> list[Column[str]]:
    return [_key("project_id", 200), _key("run", 256)]


def _step() -> Column[int]:
    return Column("step", BigInteger, nullable=False)


def _rubric() -> Column[bytes]:
    return Column("rubric", LargeBinary(32), nullable=False)


def _counts(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _sums(*names: str) -> list[Column[float]]:
    return [Column(name, Double, nullable=False) for name in names]


runs = Table(
    "ledger_runs",
    metadata,
    *_run(),
    Column("first_at", UTCDateTime, nullable=False),
    Column("last_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "run", name="pk_ledger_runs"),
    Index("ix_ledger_runs_last_at", "project_id", "last_at", "run"),
)
"""One row a run: when it was judged for first and last."""

steps = Table(
    "ledger_run_steps",
    metadata,
    *_run(),
    _step(),
    _key("mode"),
    _key("protocol"),
    _key("model"),
    *_counts("requests", "responses", "scored", "partial", "unscored", "rewards"),
    *_sums("reward_sum", "reward_squares"),
    *_counts("verdicts", "failed", "cached"),
    *_counts("judge_calls", "tokens_computed", "tokens_reused", "tokens_written"),
    *_sums("seconds"),
    PrimaryKeyConstraint("project_id", "run", "step", "mode", "protocol", "model", name="pk_ledger_run_steps"),
    sqlite_with_rowid=False,
)
"""One row a step and way of judging it; a mode, protocol or model that is none is empty."""

failures = Table(
    "ledger_run_failures",
    metadata,
    *_run(),
    _step(),
    _key("kind"),
    *_counts("verdicts"),
    PrimaryKeyConstraint("project_id", "run", "step", "kind", name="pk_ledger_run_failures"),
    sqlite_with_rowid=False,
)

rubrics = Table(
    "ledger_run_rubrics",
    metadata,
    *_run(),
    _rubric(),
    *_counts("responses"),
    PrimaryKeyConstraint("project_id", "run", "rubric", name="pk_ledger_run_rubrics"),
    sqlite_with_rowid=False,
)

criteria = Table(
    "ledger_run_criteria",
    metadata,
    *_run(),
    _step(),
    _rubric(),
    _key("criterion"),
    *_counts("verdicts", "failed", "passed"),
    *_sums("score_sum"),
    PrimaryKeyConstraint("project_id", "run", "step", "rubric", "criterion", name="pk_ledger_run_criteria"),
    sqlite_with_rowid=False,
)
"""One row a step, rubric and criterion of it."""

TABLES = (runs, steps, failures, rubrics, criteria)
"""In the order in which they are written."""
