import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.penalties import length_penalty, overlong_penalty, penalise, truncation_penalty
from trainer_client.wire import LengthPenalty, OverlongPenalty, RewardOptions
from trainer_client.wire.base import MIN_MAGNITUDE

CASES = json.loads((Path(__file__).parent / "vectors" / "length_penalty.json").read_text())["cases"]

REWARD = st.floats(-2, 2, allow_subnormal=False)
LENGTH = st.integers(0, 50_000)
COEFFICIENT = st.just(0.0) | st.floats(MIN_MAGNITUDE, 1e-2)
FACTOR = st.floats(0, 1, allow_subnormal=False)
LENGTH_PENALTIES = st.builds(
    LengthPenalty, coefficient=COEFFICIENT, target_tokens=st.integers(0, 10_000), excess_only=st.booleans()
)
OVERLONG_PENALTIES = st.integers(1, 10_000).flatmap(
    lambda limit: st.builds(OverlongPenalty, limit_tokens=st.just(limit), buffer_tokens=st.integers(1, limit))
)
OPTIONS = st.builds(
    RewardOptions,
    truncation_factor=st.none() | FACTOR,
    length_penalty=st.none() | LENGTH_PENALTIES,
    overlong_penalty=st.none() | OVERLONG_PENALTIES,
)


class TestLengthPenalty:
    @pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["length"]))
    def test_the_worked_cases_hold(self, case):
        assert length_penalty(case["reward"], case["length"]) == pytest.approx(case["linear"], abs=1e-9)
        excess = length_penalty(case["reward"], case["length"], excess_only=True)
        assert excess == pytest.approx(case["excess_only"], abs=1e-9)

    def test_coefficient_and_target_are_parameters(self):
        assert length_penalty(1.0, 30, coefficient=0.01, target=10) == pytest.approx(0.8)

    def test_a_short_response_gains_unless_only_the_excess_counts(self):
        assert length_penalty(0.0, 0) == pytest.approx(0.2)
        assert length_penalty(0.0, 0, excess_only=True) == 0.0

    @given(REWARD, LENGTH, COEFFICIENT, LENGTH)
    def test_the_excess_penalty_equals_the_linear_one_above_the_target_and_never_adds(
        self, reward, length, coefficient, target
    ):
        linear = length_penalty(reward, length, coefficient=coefficient, target=target)
        excess = length_penalty(reward, length, coefficient=coefficient, target=target, excess_only=True)
        assert excess == min(reward, linear)

    @pytest.mark.parametrize("argument", ["length", "coefficient", "target"])
    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None])
    def test_a_value_that_is_not_a_number_of_at_least_zero_is_named(self, argument, value):
        with pytest.raises(ValueError, match=f"{argument} is .* at least 0"):
            length_penalty(**{"reward": 1.0, "length": 10, argument: value})


class TestOverlongPenalty:
    @pytest.mark.parametrize(
        ("length", "taken"), [(0, 0.0), (16384, 0.0), (17408, 0.25), (18432, 0.5), (20480, 1.0), (90000, 1.0)]
    )
    def test_nothing_is_deducted_before_the_buffer_and_one_from_the_limit_on(self, length, taken):
        assert overlong_penalty(0.25, length, limit=20480, buffer=4096) == pytest.approx(0.25 - taken)

    @given(REWARD, LENGTH, LENGTH, OVERLONG_PENALTIES)
    def test_a_longer_response_never_gets_more_and_loses_at_most_one(self, reward, one, other, given_penalty):
        limit, buffer = given_penalty.limit_tokens, given_penalty.buffer_tokens
        shorter, longer = (overlong_penalty(reward, n, limit=limit, buffer=buffer) for n in sorted((one, other)))
        assert reward - 1 <= longer <= shorter <= reward

    @pytest.mark.parametrize(("limit", "buffer"), [(10, 0), (10, 11), (0, 0)])
    def test_a_buffer_outside_the_limit_is_refused(self, limit, buffer):
        with pytest.raises(ValueError, match="at most the limit"):
            overlong_penalty(1.0, 5, limit=limit, buffer=buffer)

    @pytest.mark.parametrize("argument", ["length", "limit", "buffer"])
    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None])
    def test_a_value_that_is_not_a_number_of_at_least_zero_is_named(self, argument, value):
        with pytest.raises(ValueError, match=f"{argument} is .* at least 0"):
            overlong_penalty(**{"reward": 1.0, "length": 10, "limit": 20, "buffer": 5, argument: value})


class TestTruncationPenalty:
    def test_a_truncated_response_keeps_a_share_and_a_complete_one_keeps_all(self):
        assert truncation_penalty(0.8, False, factor=0.5) == 0.4
        assert truncation_penalty(0.8, True, factor=0.5) == 0.8
        assert truncation_penalty(0.8, False, factor=0) == 0.0

    def test_truncation_does_not_shrink_a_negative_reward(self):
        assert truncation_penalty(-0.6, False, factor=0.5) == -0.6

    @given(REWARD, REWARD, FACTOR)
    def test_truncation_never_pays_and_preserves_the_order_of_rewards(self, one, other, factor):
        worse, better = sorted((one, other))
        cut_worse, cut_better = (truncation_penalty(r, False, factor=factor) for r in (worse, better))
        assert cut_better <= better
        assert cut_worse <= cut_better

    @pytest.mark.parametrize("factor", [-0.1, 1.1, math.nan, "1", None])
    def test_a_factor_outside_zero_to_one_is_refused(self, factor):
        with pytest.raises(ValueError, match=r"factor is .* share"):
            truncation_penalty(1.0, False, factor=factor)

    def test_an_unknown_stop_state_is_refused(self):
        with pytest.raises(ValueError, match="needs stopped"):
            truncation_penalty(1.0, None, factor=0.5)


class TestPenalise:
    @pytest.mark.parametrize("reward", [0.3, -1.5, 0.0, None])
    def test_without_penalties_the_reward_is_unchanged(self, reward):
        assert penalise(reward, RewardOptions(), tokens=None, stopped=None) == reward

    def test_the_truncation_factor_applies_before_the_length_penalty(self):
        options = RewardOptions(
            truncation_factor=0.5,
            length_penalty=LengthPenalty(coefficient=0.001, target_tokens=100),
            overlong_penalty=OverlongPenalty(limit_tokens=400, buffer_tokens=200),
        )
        assert penalise(0.8, options, tokens=300, stopped=False) == pytest.approx(0.8 * 0.5 - 0.2 - 0.5)
        assert penalise(0.8, options, tokens=300, stopped=True) == pytest.approx(0.8 - 0.2 - 0.5)

    @pytest.mark.parametrize("excess_only", [False, True])
    def test_each_option_reaches_its_penalty(self, excess_only):
        length = LengthPenalty(coefficient=0.002, target_tokens=50, excess_only=excess_only)
        assert penalise(1.0, RewardOptions(length_penalty=length), tokens=20, stopped=None) == length_penalty(
            1.0, 20, coefficient=0.002, target=50, excess_only=excess_only
        )
        overlong = RewardOptions(overlong_penalty=OverlongPenalty(limit_tokens=30, buffer_tokens=20))
        assert penalise(1.0, overlong, tokens=20, stopped=None) == 0.5
        assert penalise(1.0, RewardOptions(truncation_factor=0.25), tokens=None, stopped=False) == 0.25

    @given(OPTIONS, REWARD, LENGTH, LENGTH, st.booleans())
    def test_a_longer_response_never_gets_more(self, options, reward, one, other, stopped):
        shorter, longer = (penalise(reward, options, tokens=n, stopped=stopped) for n in sorted((one, other)))
        assert longer <= shorter

    @given(OPTIONS, REWARD, LENGTH)
    def test_a_truncated_response_never_gets_more_than_a_complete_one(self, options, reward, tokens):
        cut, stopped = (penalise(reward, options, tokens=tokens, stopped=s) for s in (False, True))
        assert cut <= stopped

    @pytest.mark.parametrize("reward", [0.5, None])
    def test_required_fields_of_a_penalty_are_checked_even_without_a_reward(self, reward):
        for options in (
            RewardOptions(length_penalty=LengthPenalty()),
            RewardOptions(overlong_penalty=OverlongPenalty(limit_tokens=9, buffer_tokens=9)),
        ):
            with pytest.raises(ValueError, match="needs tokens"):
                penalise(reward, options, tokens=None, stopped=True)
        with pytest.raises(ValueError, match="needs stopped"):
            penalise(reward, RewardOptions(truncation_factor=1.0), tokens=5, stopped=None)


PENALTIES = [
    lambda reward: length_penalty(reward, 5),
    lambda reward: overlong_penalty(reward, 5, limit=10, buffer=5),
    lambda reward: truncation_penalty(reward, False, factor=0.5),
    lambda reward: penalise(reward, RewardOptions(), tokens=None, stopped=None),
]


@pytest.mark.parametrize("penalty", PENALTIES)
class TestEveryPenalty:
    def test_a_missing_reward_stays_missing(self, penalty):
        assert penalty(None) is None

    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, "1", [1]])
    def test_a_reward_that_is_not_a_finite_number_is_refused(self, penalty, reward):
        with pytest.raises(ValueError, match=r"reward is .* finite number"):
            penalty(reward)

    @pytest.mark.parametrize("reward", [np.float32(0.5), np.array(0.5), 1, True])
    def test_any_numeric_type_gives_a_plain_float(self, penalty, reward):
        assert type(penalty(reward)) is float
