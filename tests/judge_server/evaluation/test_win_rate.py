"""How often one policy beats another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.measuring.trajectories import win_rates
from trainer_client.wire import Comparison

_WIN = {"a": 1.0, "tie": 0.5, "b": 0.0}


def compared(first: str | None, second: str | None) -> Comparison:
    """A pair, from what its two orders prefer; None means failed."""
    wins = [_WIN[one] for one in (first, second) if one is not None]
    failed = len(wins) < 2
    score = None if failed else sum(wins) / 2
    preferred = None if score is None else "tie" if score == 0.5 else "a" if score > 0.5 else "b"
    orders = [
        {"first": place, "status": "failed" if one is None else "ok", "preferred": one}
        for place, one in (("a", first), ("b", second))
    ]
    fields = {"score": score, "preferred": preferred, "consistent": None if failed else first == second}
    return Comparison.model_validate({"id": "p", "status": "failed" if failed else "ok", "orders": orders, **fields})


PREFERRED = st.sampled_from(["a", "b", "tie", None])
PROBLEMS = st.lists(st.lists(st.tuples(PREFERRED, PREFERRED), max_size=3), max_size=4)


def test_a_judge_that_always_prefers_the_first_place_gives_one_half_and_no_agreement() -> None:
    found = win_rates([[compared("a", "b")]] * 3)
    values = {name: one.value for name, one in found.items()}
    assert values == {"win_rate": 0.5, "tie_rate": 1.0, "order_agreement": 0.0}


def test_a_failed_comparison_counts_neither_way() -> None:
    found = win_rates([[compared("a", "a"), compared("b", None)], [compared(None, None)]])
    assert (found["win_rate"].value, found["win_rate"].problems) == (1.0, 1)
    assert win_rates([[compared(None, "a")]]) == {}


@given(PROBLEMS)
def test_the_win_rates_of_the_two_sides_add_up_to_one(problems: list[list[tuple[str | None, str | None]]]) -> None:
    other = {"a": "b", "b": "a", "tie": "tie", None: None}
    mine = win_rates([[compared(*pair) for pair in pairs] for pairs in problems])
    theirs = win_rates([[compared(other[x], other[y]) for x, y in pairs] for pairs in problems])
    if mine:
        assert mine["win_rate"].value + theirs["win_rate"].value == pytest.approx(1.0)
        assert mine["tie_rate"].value == theirs["tie_rate"].value
