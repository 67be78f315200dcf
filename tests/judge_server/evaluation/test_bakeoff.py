"""Bake-offs: the Pareto front, and differences that are paired by item."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.bakeoff import Contender, bake_off, pareto_front
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import LabelledPair, LabelledResponse, criterion
from trainer_client.wire import Comparison, Usage, Verdict

POINTS = st.lists(st.tuples(st.integers(0, 5).map(float), st.integers(0, 5).map(float)), max_size=12)


@given(POINTS)
def test_a_point_is_off_the_front_exactly_if_a_point_on_the_front_beats_it(points: list[tuple[float, float]]) -> None:
    on_front = pareto_front(points)
    front = [point for point, on in zip(points, on_front, strict=True) if on]
    for point, on in zip(points, on_front, strict=True):
        beaten = any(q >= point[0] and c <= point[1] and (q, c) != point for q, c in front)
        assert on is not beaten


@given(POINTS, st.randoms(use_true_random=False))
def test_the_front_does_not_depend_on_the_order(points: list[tuple[float, float]], random: object) -> None:
    before = {point for point, on in zip(points, pareto_front(points), strict=True) if on}
    shuffled = list(points)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {point for point, on in zip(shuffled, pareto_front(shuffled), strict=True) if on} == before


@given(POINTS)
def test_unknown_figures_do_not_change_the_front(points: list[tuple[float, float]]) -> None:
    unknown = [(math.nan, 0.0), (9.0, math.nan)]
    assert pareto_front([*unknown, *points]) == [False, False, *pareto_front(points)]


def answers(*scores: float | None, calls: int = 1) -> list[Judgement]:
    """Judgements of responses labelled met, unmet, met, …; None is a failed verdict."""
    found = []
    for number, score in enumerate(scores):
        example = LabelledResponse(
            f"r{number}", "?", "!", (criterion("a", "Is right."),), {"a": float(number % 2 == 0)}
        )
        known = {"score": score, "status": "ok"} if score is not None else {"score": None, "status": "failed"}
        verdict = Verdict.model_validate({"criterion": "a", "decided_by": "judge", **known})
        found.append(Judgement(example, "", {"a": verdict}, usage=Usage(judge_calls=calls), model="m", fingerprint="f"))
    return found


def test_an_item_that_failed_for_one_contender_is_left_out_of_differences() -> None:
    names = [Contender(name, name, {}) for name in ("right", "wrong once", "failed once")]
    right = answers(1.0, 0.0, 1.0, 0.0)
    once = answers(0.0, 0.0, 1.0, 0.0)
    found = bake_off(list(zip(names, (right, once, answers(None, 0.0, 1.0, 0.0, calls=2)), strict=True)), "calls")
    first, second, third = found.results
    assert (first.n, second.n, third.n, third.failed) == (4, 4, 3, 1)
    assert second.quality["balanced_accuracy"].value == 0.75
    assert second.differences is not None
    assert third.differences is not None
    assert (second.differences.n, third.differences.n) == (3, 3)
    assert second.differences.quality["balanced_accuracy"].value == 0.0  # the mistake was on the failed item
    assert third.differences.cost["calls"] == (1.0, 1.0, 1.0)
    assert [one.on_front for one in found.results] == [True, False, False]


def test_the_cheapest_contender_that_is_not_shown_to_be_worse_is_recommended() -> None:
    right, wrong = [float(n % 2 == 0) for n in range(40)], [float(n % 2) for n in range(40)]
    once, names = [0.0, *right[1:]], [Contender(name, name, {}) for name in ("dear", "cheap", "cheapest")]
    sides = (answers(*right, calls=3), answers(*once, calls=2), answers(*wrong))
    found = bake_off(list(zip(names, sides, strict=True)), "calls").results
    assert [one.recommended for one in found] == [False, True, False]
    absent = answers(*[None] * 36, *right[36:])
    failing = bake_off(list(zip(names, (sides[0], sides[2], absent), strict=True)), "calls").results
    assert [one.recommended for one in failing] == [True, False, False]
    assert [one.recommended for one in bake_off([(names[0], "does not start")], "calls").results] == [False]


def test_one_row_does_not_show_a_contender_to_be_worse() -> None:
    sides = [
        (Contender(name, name, {}), [replace(one, example=replace(one.example, row="r")) for one in given])
        for name, given in (("dear", answers(1.0, 0.0, calls=3)), ("cheap", answers(1.0, 1.0, calls=2)))
    ]
    assert [one.recommended for one in bake_off(sides, "calls").results] == [False, True]


def test_a_contender_without_a_verdict_is_a_row_with_a_reason() -> None:
    names = [Contender(name, name, {}) for name in ("absent", "mute", "a", "b")]
    sides = ("does not start", answers(None, None), answers(1.0, 0.0), answers(0.0, 0.0))
    absent, mute, a, b = bake_off(list(zip(names, sides, strict=True)), "calls").results
    assert (absent.problem, mute.problem, mute.failed) == ("does not start", "every verdict failed", 2)
    assert a.differences is None
    assert b.differences is not None
    assert b.differences.quality["balanced_accuracy"].value == -0.5


def compared(*scores: float) -> list[Judgement]:
    """Comparisons with these scores of `a`, in pairs of which people prefer a, b, a, …"""
    found = []
    for number, score in enumerate(scores):
        preferred = "tie" if score == 0.5 else "a" if score else "b"
        orders = [{"first": place, "status": "ok", "preferred": preferred} for place in "ab"]
        fields = {"id": "p", "status": "ok", "score": score, "preferred": preferred, "consistent": True}
        example = LabelledPair(f"r{number}", "?", "x", "y", "b" if number % 2 else "a")
        found.append(Judgement(example, "", {}, Comparison.model_validate(fields | {"orders": orders})))
    return found


def test_a_pair_is_right_if_the_response_that_people_prefer_is_preferred() -> None:
    names = [Contender(name, name, {}) for name in ("right", "always a", "tie")]
    sides = (compared(1.0, 0.0, 1.0, 0.0), compared(1.0, 1.0, 1.0, 1.0), compared(0.5, 0.0, 1.0, 0.0))
    found = bake_off(list(zip(names, sides, strict=True)), "calls").results
    assert [one.quality["pairs_right"].value for one in found] == [1.0, 0.5, 0.875]
    assert [one.differences and one.differences.quality["pairs_right"].value for one in found] == [None, -0.5, -0.125]
