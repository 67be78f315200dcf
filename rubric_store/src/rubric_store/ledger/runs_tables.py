"""The tables of a run's figures: sums that are kept up while the ledger is written, so that nobody counts its uses.

Migration 0007 makes them. A step of -1 is none, and an empty rubric is none too. All but keys and moments are added
to: a row's values are what is to be added where the row is there already.
"""

from functools import partial

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, PrimaryKeyConstraint, String, Table, Text

from rubric_store.tables import UTCDateTime, metadata

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
