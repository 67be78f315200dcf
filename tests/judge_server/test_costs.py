"""What judging cost is a value: adding makes a new one."""

from dataclasses import FrozenInstanceError

import pytest

from judge_server.judging.results import NO_COSTS, Costs, MemberCosts

ONE = Costs(1, 20, 30, 4, 0.5, 0.25)


def test_costs_add_number_by_number() -> None:
    assert ONE + Costs(2, 1, 0, 1, 0.25, 1.0) == Costs(3, 21, 30, 5, 0.75, 1.25)
    assert ONE + NO_COSTS == ONE


def test_costs_of_a_member_add_with_its_verdicts() -> None:
    assert MemberCosts(2, 1, ONE) + MemberCosts(1, 0, ONE) == MemberCosts(3, 1, ONE + ONE)


def test_costs_cannot_be_set() -> None:
    with pytest.raises(FrozenInstanceError):
        ONE.calls = 2  # type: ignore[misc]
