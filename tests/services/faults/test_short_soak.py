"""Hosts killed, suspended and cut off while two training runs score: slower, but never wrong and nothing lost."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from benchmarks.soak import invariants
from benchmarks.soak.expected_answers import compare_answers, compute_expected
from benchmarks.soak.faults import judges_gone
from benchmarks.soak.runner import Plan, SoakResult, soak
from benchmarks.soak.workload import AT_A_JUDGE

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

FAULTS = (
    "a judge killed",
    "an api killed",
    "a worker killed",
    "Redis killed",
    "PostgreSQL killed",
    "a judge behind a frozen link",
    "an api, PostgreSQL frozen",
)
PLAN = Plan(
    faults=len(FAULTS),
    interval_s=5.0,
    hold_s=2.0,
    rest_s=2.5,
    kinds=FAULTS,
    capacity_s=4.0,
    calm_s=3.0,
    share=0.5,
    bulk_interval_s=4.0,
    settings={"ADJUDGE_CHUNK_LEASE_S": "3"},
)


def test_no_reward_is_wrong_no_operation_is_lost_and_the_ledger_has_every_answer_once() -> None:
    with tempfile.TemporaryDirectory(prefix="adjudge-hosts-") as folder, soak(PLAN, Path(folder), print) as result:
        assert_nothing_is_lost(result)


def assert_nothing_is_lost(result: SoakResult) -> None:
    told = [line for line in result.lines if "error" not in line]
    subjects = {line["subject"] for line in told} | {s for one in result.operations for s in one.submitted.subjects}
    known = compute_expected(subjects)
    assert {fault.kind for fault in result.faults} == set(FAULTS)
    assert compare_answers(told, known).violations == []
    assert [line["error"] for line in result.lines if "error" in line] == []
    assert_answered_again_after_every_fault(result)
    assert result.unwritten == []
    assert invariants.ledger(result.database, told, result.kills).violations == []
    operations = invariants.operations(
        result.database, result.operations, known, lost_calls=AT_A_JUDGE * judges_gone(result.faults)
    )
    assert operations.violations == []
    assert operations.figures["operations"] > 0
    assert operations.figures["operations not done"] == 0
    assert_books_show_what_is_missing(result, lambda: invariants.ledger(result.database, told, ()).violations)


def assert_answered_again_after_every_fault(result: SoakResult) -> None:
    ends = [later.began for later in result.faults[1:]] + [float("inf")]
    for fault, until in zip(result.faults, ends, strict=True):
        after = [line for line in result.lines if fault.ended <= line["began"] < until]
        assert any(not line["failures"] for line in after), fault


def assert_books_show_what_is_missing(result: SoakResult, violations: Callable[[], list[str]]) -> None:
    before = len(violations())
    with psycopg.connect(result.database) as connection:
        connection.execute(
            "DELETE FROM ledger_uses WHERE ctid IN (SELECT ctid FROM ledger_uses WHERE run = 'run-1' LIMIT 1)"
        )
    assert len(violations()) > before
