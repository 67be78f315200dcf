"""The ledger's tables, and those of run figures, as their statements see them.

Migrations 0003, 0007, 0010, 0012 to 0016, 0018, 0019 create them; a test compares the two. The columns of its
tables are in the order of the rows of `rubric_store.ledger.rows`. There are no foreign keys: rows come by the
thousand, and are deleted by run.

Run figures are sums, updated as the ledger is written, so that reading them never counts uses. A step of -1 and an
empty rubric stand for none. On conflict all values are added, except keys and times.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Double,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    text,
)

from rubric_store.database import UTCDateTime, key_column, metadata


def _digest(name: str, *, length: int = 32, nullable: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary(length), nullable=nullable)


texts = Table(
    "ledger_texts",
    metadata,
    key_column("project_id"),
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
        key_column("project_id"),
        _digest("digest"),
        _digest("request", length=16),
        Column("score", Double, nullable=False),
        Column("probability", Double),
        Column("menu_mass", Double),
        Column("step", Integer),
        Column("grade", Double),
        Column("rationale", Text),
        Column("raw_probability", Double),
        Column("members", Text),
        PrimaryKeyConstraint("project_id", "digest", *also, name=f"pk_{name}"),
        sqlite_with_rowid=False,
    )


verdicts = _verdict_table("ledger_verdicts")
"""The first verdict under a call's digest."""

rejudgements = _verdict_table("ledger_rejudgements", "request")
"""Later verdicts under a digest that differ from the first."""

requests = Table(
    "ledger_requests",
    metadata,
    key_column("project_id"),
    key_column("run", 256),
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
    Column("members", Text),
    Column("reward_rules", Text),
    PrimaryKeyConstraint("project_id", "run", "request", name="pk_ledger_requests"),
    Index("ix_ledger_requests_created_at", "project_id", "created_at"),
)


def _digest_index(table: str, column: str) -> Index:
    """An index that finds the uses of a digest; on PostgreSQL only, where purging looks for them by it."""
    return Index(f"ix_{table}_{column}", column, "project_id").ddl_if(dialect="postgresql")


responses = Table(
    "ledger_responses",
    metadata,
    key_column("project_id"),
    key_column("run", 256),
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
    *[_digest_index("ledger_responses", name) for name in ("rubric", "prompt", "response", "grounding")],
    sqlite_with_rowid=False,
)

uses = Table(
    "ledger_uses",
    metadata,
    key_column("project_id"),
    key_column("run", 256),
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
    _digest_index("ledger_uses", "digest"),
    sqlite_with_rowid=False,
    postgresql_partition_by="HASH (project_id, run)",
)
"""Uses of verdicts by responses; PostgreSQL partitions the table by run."""


labels = Table(
    "ledger_labels",
    metadata,
    key_column("project_id"),
    key_column("run", 256),
    _digest("request", length=16),
    Column("place", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    key_column("labeller"),
    Column("criterion", Text, nullable=False),
    Column("met", Boolean, nullable=False),
    Column("at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "run", "request", "place", "slot", "labeller", name="pk_ledger_labels"),
)
"""What people say of verdicts: one row per verdict and person. They are deleted with the request."""


NO_STEP = -1


def _text_key(name: str) -> Column[str]:
    return Column(name, Text().with_variant(Text(collation="C"), "postgresql"), nullable=False)


def _run() -> list[Column[str]]:
    return [key_column("project_id"), key_column("run", 256)]


def _step() -> Column[int]:
    return Column("step", BigInteger, nullable=False)


def _rubric() -> Column[bytes]:
    return Column("rubric", LargeBinary(32), nullable=False)


def _counts(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _added_counts(*names: str) -> list[Column[int]]:
    """Counts that a later migration added; code from before it writes 0."""
    return [Column(name, BigInteger, nullable=False, server_default=text("0")) for name in names]


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
"""One row per run: the times of its first and last request."""

steps = Table(
    "ledger_run_steps",
    metadata,
    *_run(),
    _step(),
    _text_key("mode"),
    _text_key("protocol"),
    _text_key("model"),
    *_counts("requests", "responses", "scored", "partial", "unscored", "rewards"),
    *_sums("reward_sum", "reward_squares"),
    *_counts("verdicts", "failed", "cached"),
    *_counts("judge_calls", "tokens_computed", "tokens_reused", "tokens_written"),
    *_sums("seconds"),
    *_added_counts("uncertain"),
    PrimaryKeyConstraint("project_id", "run", "step", "mode", "protocol", "model", name="pk_ledger_run_steps"),
    sqlite_with_rowid=False,
)
"""One row per step and judging configuration; a missing mode, protocol or model is empty."""

failures = Table(
    "ledger_run_failures",
    metadata,
    *_run(),
    _step(),
    _text_key("kind"),
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
    _text_key("criterion"),
    *_counts("verdicts", "failed", "passed"),
    *_sums("score_sum"),
    *_added_counts("uncertain"),
    PrimaryKeyConstraint("project_id", "run", "step", "rubric", "criterion", name="pk_ledger_run_criteria"),
    sqlite_with_rowid=False,
)
"""One row per step, rubric and criterion."""

signals = Table(
    "ledger_run_signals",
    metadata,
    *_run(),
    _step(),
    _text_key("signal"),
    _text_key("name"),
    *_counts("pairs"),
    *_sums("x", "y", "xx", "yy", "xy"),
    *_counts("within"),
    *_sums("within_xx", "within_yy", "within_xy"),
    PrimaryKeyConstraint("project_id", "run", "step", "signal", "name", name="pk_ledger_run_signals"),
    sqlite_with_rowid=False,
)
"""One row per step and signal: the sums of `SignalRow`, which monitors read. Kept since migration 0013."""

measures = Table(
    "ledger_run_measures",
    metadata,
    *_run(),
    _step(),
    key_column("name", 100),
    Column("value", Double, nullable=False),
    PrimaryKeyConstraint("project_id", "run", "step", "name", name="pk_ledger_run_measures"),
    sqlite_with_rowid=False,
)
"""What the trainer reported of a step, by name; a later report of the same replaces it."""

TABLES = (runs, steps, failures, rubrics, criteria, signals)
"""The tables of sums, in the order in which they are written."""


def look_up(inner: Table, outer: FromClause, *names: str) -> ColumnElement[bool]:
    """Return the condition that looks rows of `inner` up, by equal columns, for each row of `outer`.

    Projects and runs of `outer` are compared as expressions. As columns, PostgreSQL would know them as constants, and
    if its statistics have no row of a new project or run yet, it would expect one row and read all rows that the
    project has in `inner` for each row of `outer`.
    """

    def value(name: str) -> ColumnElement[Any]:
        column = outer.c[name]
        return column + "" if name in ("project_id", "run") else column

    return and_(*[inner.c[name] == value(name) for name in names])


VERDICT_OF_USE = look_up(verdicts, uses, "project_id", "digest")
REQUEST_OF_RESPONSE = look_up(requests, responses, "project_id", "run", "request")
JUDGED_USES = (
    uses.join(requests, look_up(requests, uses, "project_id", "run", "request"))
    .join(responses, look_up(responses, uses, "project_id", "run", "request", "place"))
    .outerjoin(verdicts, VERDICT_OF_USE)
)
"""Uses with their requests, responses and verdicts; a use whose judging failed has no verdict."""
