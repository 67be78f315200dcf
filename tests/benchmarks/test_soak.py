"""Parts of a soak test: the order of faults, the time to recover, and the detection of wrong answers."""

import math
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from benchmarks.soak.expected_answers import ExpectedAnswer, compare_answers
from benchmarks.soak.faults import FAULTS, Fault, order
from benchmarks.soak.figures import by_kind, recovered_s
from benchmarks.soak.workload import CRITERIA, RESPONSES, bulk_subjects, group_of, subject_of


def test_every_kind_of_fault_occurs_before_any_repeats_and_a_seed_fixes_the_order() -> None:
    kinds = list(FAULTS)
    drawn = list(islice(order(7, kinds), 2 * len(kinds)))
    assert set(Counter(kind for kind, _ in drawn).values()) == {2}
    assert {kind for kind, _ in drawn[: len(kinds)]} == set(kinds)
    assert drawn == list(islice(order(7, kinds), 2 * len(kinds)))
    assert {n for _, n in drawn} == {1, 2}


def test_recovery_ends_at_the_first_window_after_which_no_request_is_slow() -> None:
    fault = Fault("a judge killed", "judge-1", 10.0, 20.0)
    slow_until = 23.5
    requests = [(began / 10, 3.0 if 10.0 <= began / 10 < slow_until else 0.5) for began in range(600)]
    assert recovered_s(requests, fault, 50.0, 0.5) == 4.0
    assert recovered_s([(began, 3.0) for began, _ in requests], fault, 50.0, 0.5) == math.inf
    assert recovered_s([], fault, 50.0, 0.5) == math.inf
    (row,) = by_kind(requests, [fault], 50.0, 0.5)
    assert (row["p99 s under it"], row["p99 s from 10 s after"], row["recovered s, most"]) == (3.0, 0.5, 4.0)
    assert (row["p99 as before then"], row["none slow after 10 s"]) == (1, 1)


def test_a_group_is_reproducible_and_some_groups_are_requested_twice() -> None:
    assert group_of(1_000_007) == group_of(1_000_007)
    assert len(group_of(1)["responses"]) == RESPONSES
    asked = [subject_of(1, request) for request in range(1, 101)]
    assert len(set(asked)) < len(asked)
    assert not {subject_of(1, n) for n in range(100)} & {subject_of(2, n) for n in range(100)}
    assert not set(bulk_subjects(1, 9)) & set(bulk_subjects(2, 9))


KNOWN = {1: ExpectedAnswer([1.0] + [0.0] * (RESPONSES - 1), ["1" * CRITERIA] + ["0" * CRITERIA] * (RESPONSES - 1))}


def answer(verdicts: str, reward: float | None, failures: dict[str, int] | None = None) -> dict[str, Any]:
    """An answer for group 1 with these values for its first response and the right ones for the others."""
    right = KNOWN[1]
    return {
        "subject": 1,
        "rewards": [reward, *right.rewards[1:]],
        "verdicts": [verdicts, *right.verdicts[1:]],
        "failures": failures or {},
    }


def test_right_answers_and_named_failures_are_not_violations() -> None:
    about = compare_answers([answer("1111", 1.0), answer("1-11", None, {"engine": 1})], KNOWN)
    assert about.violations == []
    assert about.failures == {"engine": 1}


@pytest.mark.parametrize(
    "made_up",
    [
        answer("1011", 0.7),
        answer("1111", 0.9),
        answer("1111", None),
        answer("1-11", 0.0, {"engine": 1}),
        answer("1-11", None),
        answer("111", 1.0),
        answer("1?11", 1.0),
    ],
    ids=[
        "another verdict",
        "another reward",
        "no reward",
        "a reward of a failure",
        "no name",
        "too few",
        "no yes or no",
    ],
)
def test_made_up_answers_are_violations(made_up: dict[str, Any]) -> None:
    assert compare_answers([made_up], KNOWN).violations
