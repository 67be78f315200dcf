"""The ledger's tables, and those of run figures, as their statements see them.

Migrations 0003, 0007, 0010, 0012 to 0016, 0018, 0019, 0021 to 0026 create them; a test compares the two. The columns
of its tables are in the order of the rows of `rubric_store.ledger.rows`. There are no foreign keys: rows come by the
thousand, and are deleted by run. On SQLite, rows are clustered by a key that grows with time. Texts and verdicts, whose
keys are random, are kept in the order in which they come, with an index of the keys.

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
    Table,
    Text,
    and_,
)

from rubric_store.schema import UTCDateTime, declare, digest, key, optional, required


def _run() -> list[Column[Any]]:
    return [key("project_id"), key("run", 256)]


def _request() -> list[Column[Any]]:
    return [*_run(), digest("request", 16)]


def _step() -> list[Column[Any]]:
    return [*_run(), *required(BigInteger, "step")]


def _digest_indexes(table: str, *columns: str) -> list[Index]:
    """Indexes that find the uses of digests; on PostgreSQL only, where purging looks for them by them."""
    return [Index(f"ix_{table}_{name}", name, "project_id").ddl_if(dialect="postgresql") for name in columns]


texts = declare("ledger_texts", [key("project_id"), digest("digest")], required(LargeBinary, "body"))
"""Prompts, responses, groundings and rubrics by digest, compressed."""


def _verdict_table(name: str, keys: list[Column[Any]], *more: Column[Any], **options: Any) -> Table:
    return declare(
        name,
        keys,
        more,
        required(Double, "score"),
        optional(Double, "probability", "menu_mass"),
        optional(Integer, "step"),
        optional(Double, "grade"),
        optional(Text, "rationale"),
        optional(Double, "raw_probability"),
        optional(Text, "members"),
        **options,
    )


verdicts = _verdict_table("ledger_verdicts", [key("project_id"), digest("digest")], digest("request", 16))
"""The first verdict under a call's digest."""

rejudgements = _verdict_table(
    "ledger_rejudgements", [key("project_id"), digest("digest"), digest("request", 16)], sqlite_with_rowid=False
)
"""Later verdicts under a digest that differ from the first."""

requests = declare(
    "ledger_requests",
    _request(),
    required(Text, "request_id"),
    optional(BigInteger, "step"),
    optional(Text, "mode"),
    required(Text, "protocol"),
    optional(Text, "fingerprint", "model"),
    required(Integer, "votes", "uses", "judge_calls"),
    required(BigInteger, "tokens_computed", "tokens_reused", "tokens_written"),
    required(Double, "seconds"),
    required(UTCDateTime, "created_at"),
    optional(Text, "members", "reward_rules", "judging_rules"),
    Index("ix_ledger_requests_created_at", "project_id", "created_at"),
)

responses = declare(
    "ledger_responses",
    [*_request(), *required(Integer, "place")],
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
    digest("reference_answer", nullable=True),
    digest("ground_truth", nullable=True),
    optional(Double, "declared_reward"),
    _digest_indexes(
        "ledger_responses", "rubric", "prompt", "response", "grounding", "reference_answer", "ground_truth"
    ),
    sqlite_with_rowid=False,
)

uses = declare(
    "ledger_uses",
    [*_request(), *required(Integer, "place", "slot", "vote")],
    required(Text, "criterion", "method"),
    digest("digest"),
    required(Boolean, "failed"),
    optional(Text, "failure", "detail"),
    optional(Integer, "step"),
    required(Boolean, "cached"),
    optional(Text, "passages"),
    _digest_indexes("ledger_uses", "digest"),
    sqlite_with_rowid=False,
    postgresql_partition_by="HASH (project_id, run)",
)
"""Uses of verdicts by responses; PostgreSQL partitions the table by run."""


labels = declare(
    "ledger_labels",
    [*_request(), *required(Integer, "place", "slot"), key("labeller")],
    required(Text, "criterion"),
    required(Boolean, "met"),
    required(UTCDateTime, "at"),
)
"""What people say of verdicts: one row per verdict and person. They are deleted with the request."""


NO_STEP = -1

runs = declare(
    "ledger_runs",
    _run(),
    required(UTCDateTime, "first_at", "last_at"),
    Index("ix_ledger_runs_last_at", "project_id", "last_at", "run"),
)
"""One row per run: the times of its first and last request."""

steps = declare(
    "ledger_run_steps",
    [*_step(), key("mode", None), key("protocol", None), key("model", None)],
    required(BigInteger, "requests", "responses", "scored", "partial", "unscored", "rewards"),
    required(Double, "reward_sum", "reward_squares"),
    required(BigInteger, "verdicts", "failed", "cached"),
    required(BigInteger, "judge_calls", "tokens_computed", "tokens_reused", "tokens_written"),
    required(Double, "seconds"),
    required(BigInteger, "uncertain", "left_out", "declared_rewards", default="0"),
    required(Double, "declared_reward_sum", default="0"),
    sqlite_with_rowid=False,
)
"""One row per step and judging configuration; a missing mode, protocol or model is empty."""

failures = declare(
    "ledger_run_failures", [*_step(), key("kind", None)], required(BigInteger, "verdicts"), sqlite_with_rowid=False
)

rubrics = declare(
    "ledger_run_rubrics", [*_run(), digest("rubric")], required(BigInteger, "responses"), sqlite_with_rowid=False
)

criteria = declare(
    "ledger_run_criteria",
    [*_step(), digest("rubric"), key("criterion", None)],
    required(BigInteger, "verdicts", "failed", "passed"),
    required(Double, "score_sum"),
    required(BigInteger, "uncertain", default="0"),
    sqlite_with_rowid=False,
)
"""One row per step, rubric and criterion."""

signals = declare(
    "ledger_run_signals",
    [*_step(), key("signal", None), key("name", None)],
    required(BigInteger, "pairs"),
    required(Double, "x", "y", "xx", "yy", "xy"),
    required(BigInteger, "within"),
    required(Double, "within_xx", "within_yy", "within_xy"),
    sqlite_with_rowid=False,
)
"""One row per step and signal: the sums of `SignalRow`, which monitors read. Kept since migration 0013."""

measures = declare(
    "ledger_run_measures", [*_step(), key("name", 100)], required(Double, "value"), sqlite_with_rowid=False
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


def of_run(table: FromClause, part: Any) -> list[ColumnElement[bool]]:
    """The condition that rows belong to the run of a query or filter."""
    return [table.c.project_id == part.project_id, table.c.run == part.run]


def in_steps(table: FromClause, part: Any) -> list[ColumnElement[bool]]:
    """The condition that rows belong to the steps of a query or filter, from `first` to `last`, both included.

    None means no limit; with a limit, rows without a step are excluded.
    """
    chosen = [] if part.first is None else [table.c.step >= max(part.first, 0)]
    return chosen if part.last is None else [*chosen, table.c.step <= part.last, table.c.step >= 0]
