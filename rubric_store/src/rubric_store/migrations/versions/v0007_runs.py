"""The figures of runs by step and criterion, kept up from now on, and counted once from what the ledger has."""

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Index

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, required

revision = "0007"
down_revision = "0006"

loses = "the figures of runs; they are counted anew from the ledger on the way forth"

_COUNT_VERDICTS = """
CREATE TEMPORARY TABLE counted_verdicts AS
WITH verdicts AS (
    SELECT u.project_id, u.run, u.request, u.place, u.slot, u.criterion,
        min(CASE WHEN u.cached THEN 1 ELSE 0 END) AS cached,
        CASE WHEN max(CASE WHEN u.failed THEN 1 ELSE 0 END) = 1 OR count(v.score) = 0 THEN NULL
            WHEN count(*) = 1 OR max(v.grade) IS NOT NULL THEN avg(v.score)
            WHEN 2 * sum(CASE WHEN v.score = 1 THEN 1 ELSE 0 END) > count(*) THEN 1 ELSE 0 END AS score,
        substr(min(CASE WHEN u.failure IS NOT NULL THEN CAST(100000 + u.vote AS VARCHAR(6)) || u.failure END), 7)
            AS kind
    FROM ledger_uses u LEFT JOIN ledger_verdicts v ON v.project_id = u.project_id AND v.digest = u.digest
    GROUP BY u.project_id, u.run, u.request, u.place, u.slot, u.criterion
)
SELECT q.project_id, q.run, coalesce(q.step, -1) AS step, coalesce(q.mode, '') AS mode, q.protocol,
    coalesce(q.model, '') AS model, coalesce(p.rubric, {none}) AS rubric, v.criterion,
    CASE WHEN v.score IS NULL THEN coalesce(v.kind, 'engine') END AS kind, count(*) AS verdicts,
    sum(CASE WHEN v.score IS NULL THEN 1 ELSE 0 END) AS failed,
    sum(CASE WHEN v.score IS NULL THEN 0 ELSE v.cached END) AS cached,
    sum(CASE WHEN v.score >= 0.5 THEN 1 ELSE 0 END) AS passed, coalesce(sum(v.score), 0) AS score_sum
FROM verdicts v
JOIN ledger_requests q ON q.project_id = v.project_id AND q.run = v.run AND q.request = v.request
JOIN ledger_responses p
    ON p.project_id = v.project_id AND p.run = v.run AND p.request = v.request AND p.place = v.place
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
"""

_COUNT = (
    """
INSERT INTO ledger_runs SELECT project_id, run, min(created_at), max(created_at) FROM ledger_requests GROUP BY 1, 2
""",
    """
INSERT INTO ledger_run_steps
WITH ways AS (
    SELECT project_id, run, request, coalesce(step, -1) AS step, coalesce(mode, '') AS mode, protocol,
        coalesce(model, '') AS model, judge_calls, tokens_computed, tokens_reused, tokens_written, seconds
    FROM ledger_requests
), asked AS (
    SELECT project_id, run, step, mode, protocol, model, count(*) AS requests, sum(judge_calls) AS judge_calls,
        sum(tokens_computed) AS computed, sum(tokens_reused) AS reused, sum(tokens_written) AS written,
        sum(seconds) AS seconds
    FROM ways GROUP BY 1, 2, 3, 4, 5, 6
), answered AS (
    SELECT w.project_id, w.run, w.step, w.mode, w.protocol, w.model, count(*) AS responses,
        sum(CASE WHEN p.status = 'scored' THEN 1 ELSE 0 END) AS scored,
        sum(CASE WHEN p.status = 'partial' THEN 1 ELSE 0 END) AS partial,
        sum(CASE WHEN p.status = 'unscored' THEN 1 ELSE 0 END) AS unscored,
        count(p.reward) AS rewards, coalesce(sum(p.reward), 0) AS total,
        coalesce(sum(p.reward * p.reward), 0) AS squares
    FROM ways w
    JOIN ledger_responses p ON p.project_id = w.project_id AND p.run = w.run AND p.request = w.request
    GROUP BY 1, 2, 3, 4, 5, 6
), judged AS (
    SELECT project_id, run, step, mode, protocol, model, sum(verdicts) AS verdicts, sum(failed) AS failed,
        sum(cached) AS cached
    FROM counted_verdicts GROUP BY 1, 2, 3, 4, 5, 6
)
SELECT project_id, run, step, mode, protocol, model, requests, coalesce(responses, 0), coalesce(scored, 0),
    coalesce(partial, 0), coalesce(unscored, 0), coalesce(rewards, 0), coalesce(total, 0), coalesce(squares, 0),
    coalesce(verdicts, 0), coalesce(failed, 0), coalesce(cached, 0), judge_calls, computed, reused, written, seconds
FROM asked
LEFT JOIN answered USING (project_id, run, step, mode, protocol, model)
LEFT JOIN judged USING (project_id, run, step, mode, protocol, model)
""",
    """
INSERT INTO ledger_run_failures
SELECT project_id, run, step, kind, sum(failed) FROM counted_verdicts WHERE kind IS NOT NULL GROUP BY 1, 2, 3, 4
""",
    """
INSERT INTO ledger_run_rubrics
SELECT project_id, run, rubric, count(*) FROM ledger_responses WHERE rubric IS NOT NULL GROUP BY 1, 2, 3
""",
    """
INSERT INTO ledger_run_criteria
SELECT project_id, run, step, rubric, criterion, sum(verdicts), sum(failed), sum(passed), sum(score_sum)
FROM counted_verdicts GROUP BY 1, 2, 3, 4, 5
""",
)


def upgrade() -> None:
    """Create the five tables, and fill them from what was recorded before."""
    create_table(
        "ledger_runs",
        [key("project_id"), key("run", 256)],
        required(UTCDateTime, "first_at", "last_at"),
        Index("ix_ledger_runs_last_at", "project_id", "last_at", "run"),
    )
    create_table(
        "ledger_run_steps",
        [*_step_keys(), key("mode", None), key("protocol", None), key("model", None)],
        required(BigInteger, "requests", "responses", "scored", "partial", "unscored", "rewards"),
        required(Double, "reward_sum", "reward_squares"),
        required(BigInteger, "verdicts", "failed", "cached"),
        required(BigInteger, "judge_calls", "tokens_computed", "tokens_reused", "tokens_written"),
        required(Double, "seconds"),
        sqlite_with_rowid=False,
    )
    create_table(
        "ledger_run_failures",
        [*_step_keys(), key("kind", None)],
        required(BigInteger, "verdicts"),
        sqlite_with_rowid=False,
    )
    create_table(
        "ledger_run_rubrics",
        [key("project_id"), key("run", 256), digest("rubric")],
        required(BigInteger, "responses"),
        sqlite_with_rowid=False,
    )
    create_table(
        "ledger_run_criteria",
        [*_step_keys(), digest("rubric"), key("criterion", None)],
        required(BigInteger, "verdicts", "failed", "passed"),
        required(Double, "score_sum"),
        sqlite_with_rowid=False,
    )
    none = "X''" if op.get_bind().dialect.name == "sqlite" else "''::bytea"
    for statement in (_COUNT_VERDICTS.format(none=none), *_COUNT, "DROP TABLE counted_verdicts"):
        op.get_bind().exec_driver_sql(statement)


def _step_keys() -> list[Column[Any]]:
    return [key("project_id"), key("run", 256), *required(BigInteger, "step")]


def downgrade() -> None:
    """Drop them; what they are made from stays."""
    names = ("criteria", "rubrics", "failures", "steps")
    drop_tables(*(f"ledger_run_{name}" for name in names), "ledger_runs")
