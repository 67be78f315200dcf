"""Adjudge beside its peers: counts of judgements by outcome, and the rows of figures."""

from collections.abc import Sequence

import pytest
from benchmarks.peers import tables
from benchmarks.peers.backends import ServerCounters
from benchmarks.peers.driving import PassResult, Score
from benchmarks.peers.rounds import FaultResult, JudgementCounts, RoundResult, tally
from benchmarks.peers.worksheets import pair, truth


def test_only_scores_that_the_server_sent_are_right() -> None:
    yes, no = (next(c for c in range(12) if truth(pair("1-0", c)) is wanted) for wanted in (True, False))
    scores: list[Score] = ["timeout"] * 12
    scores[yes], scores[no] = 1.0, 1.0
    took = PassResult(scores=[scores])
    assert tally(took, 1, 12, {pair("1-0", yes), pair("1-0", no)}) == JudgementCounts(
        right=1, failed=10, made_up=1, lost=0
    )


def test_a_zero_in_place_of_an_error_is_made_up_even_where_no_is_right() -> None:
    took = PassResult(scores=[[float(truth(pair("1-0", c))) for c in range(12)]])
    assert tally(took, 1, 12, set()).made_up == 12


def test_judgements_missing_from_a_failed_run_are_lost() -> None:
    assert tally(PassResult(error="TimeoutError"), 1, 24, set()) == JudgementCounts(
        right=0, failed=0, made_up=0, lost=24
    )


def turn(seconds: float, cpu_s: float, latencies: Sequence[float] = (), scored: int = 100) -> RoundResult:
    """A contender's turn with 100 judgements."""
    scores: list[list[Score]] = [[1.0] * scored + ["unreadable"] * (100 - scored)]
    counts = ServerCounters(calls=100, computed=8000, written=100, cpu_s=0.01)
    return RoundResult(
        PassResult(seconds, cpu_s, scores), counts, PassResult(seconds / 4), PassResult(latencies=list(latencies))
    )


def test_ratios_are_computed_round_by_round() -> None:
    turns = {
        "Adjudge": [turn(1.0, 0.5, [0.1, 0.2]), turn(2.0, 0.5, [0.1, 0.3])],
        "other": [turn(3.0, 2.0), turn(4.0, 2.0)],
    }
    mine, other = tables.cost_rows(turns)
    assert other["Adjudge: by wall clock"] == "2.5 (2..3)"
    assert other["per CPU second"] == "4 (4..4)"
    assert mine["judgements/s"] == "75 (50..100)"
    assert mine["p99 ms"] == pytest.approx(300, rel=0.1)
    assert other["p99 ms"] is None


def test_failed_judgements_are_not_counted() -> None:
    turns = {"Adjudge": [turn(1.0, 0.5)], "other": [turn(1.0, 0.5, scored=50)], "none": [turn(1.0, 0.5, scored=0)]}
    _, other, none = tables.cost_rows(turns)
    assert (other["judgements/s"], other["per CPU second"]) == ("50 (50..50)", "2 (2..2)")
    assert (none["Adjudge: by wall clock"], none["CPU s per 1,000"], none["server's"]) == (None, None, None)
    assert [row["failed"] for row in tables.work_rows(turns)] == [0, 50, 100]


def test_work_is_reported_per_judgement() -> None:
    (row,) = tables.work_rows({"other": [turn(1.0, 1.0), turn(2.0, 1.0)]})
    assert (row["judgements"], row["calls"], row["computed"], row["written"]) == (200, 1.0, 80.0, 1.0)
    assert row["second run"] == "4 (4..4)"


def test_without_adjudge_there_are_no_ratios() -> None:
    (row,) = tables.cost_rows({"other": [turn(1.0, 1.0)]})
    assert row["per CPU second"] is None


def test_fault_rows_show_the_reported_errors() -> None:
    took = PassResult(seconds=2.0, scores=[["timeout", 1.0], ["parse", "timeout"]])
    broken = PassResult(error="APIConnectionError: gone")
    first, second = tables.fault_rows(
        {
            "one": FaultResult(JudgementCounts(1, 3, 0, 0), ServerCounters(calls=5, again=1), took),
            "two": FaultResult(JudgementCounts(0, 0, 0, 4), ServerCounters(calls=2), broken),
        }
    )
    assert first["reported errors"] == "parse 1, timeout 2"
    assert (second["lost with the run"], second["reported errors"]) == (4, "APIConnectionError")
