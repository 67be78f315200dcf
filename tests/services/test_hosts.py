"""Hosts killed, held and cut off from each other while two training runs score: slower, never wrong, nothing lost."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from benchmarks.soak import books
from benchmarks.soak.faults import judges_gone
from benchmarks.soak.knowing import compared, right_answers
from benchmarks.soak.soaking import Plan, Soaked, soak
from benchmarks.soak.subjects import AT_A_JUDGE

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.faults]

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
    every_s=5.0,
    hold_s=2.0,
    rest_s=2.5,
    kinds=FAULTS,
    capacity_s=4.0,
    calm_s=3.0,
    share=0.5,
    bulk_every_s=4.0,
    settings={"ADJUDGE_CHUNK_LEASE_S": "3"},
)


def test_no_reward_is_made_up_no_operation_is_lost_and_the_ledger_holds_every_answer_once() -> None:
    with tempfile.TemporaryDirectory(prefix="adjudge-hosts-") as folder:
        soak(PLAN, Path(folder), print, assert_nothing_is_lost)


def assert_nothing_is_lost(soaked: Soaked) -> None:
    told = [line for line in soaked.lines if "error" not in line]
    subjects = {line["subject"] for line in told} | {s for one in soaked.operations for s in one.submitted.subjects}
    known = right_answers(subjects)
    assert {fault.kind for fault in soaked.faults} == set(FAULTS)
    assert compared(told, known).wrong == []
    assert [line["error"] for line in soaked.lines if "error" in line] == []
    assert_answered_again_after_every_fault(soaked)
    assert soaked.unwritten == []
    assert books.ledger(soaked.database, told, soaked.kills).wrong == []
    operations = books.operations(
        soaked.database, soaked.operations, known, lost_calls=AT_A_JUDGE * judges_gone(soaked.faults)
    )
    assert operations.wrong == []
    assert operations.figures["operations"] > 0
    assert operations.figures["operations not done"] == 0
    assert_books_show_what_is_missing(soaked, lambda: books.ledger(soaked.database, told, ()).wrong)


def assert_answered_again_after_every_fault(soaked: Soaked) -> None:
    ends = [later.began for later in soaked.faults[1:]] + [float("inf")]
    for fault, until in zip(soaked.faults, ends, strict=True):
        after = [line for line in soaked.lines if fault.ended <= line["began"] < until]
        assert any(not line["failures"] for line in after), fault


def assert_books_show_what_is_missing(soaked: Soaked, wrong: Callable[[], list[str]]) -> None:
    before = len(wrong())
    with psycopg.connect(soaked.database) as connection:
        connection.execute(
            "DELETE FROM ledger_uses WHERE ctid IN (SELECT ctid FROM ledger_uses WHERE run = 'run-1' LIMIT 1)"
        )
    assert len(wrong()) > before
