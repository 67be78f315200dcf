"""Bounds on numbers in requests, so that neither a reward nor its square overflows."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from trainer_client.wire import Criterion, RewardRequest, RubricContent
from trainer_client.wire.ledger import RecomputeRequest


def rewarded(**reward: Any) -> dict[str, Any]:
    group = {"id": "g", "prompt": "?", "responses": [{"text": "x", "tokens": 3}]}
    return {"rubric": {"criteria": [{"id": "a", "description": "b"}]}, "groups": [group], "reward": reward}


@pytest.mark.parametrize("number", [1e200, 1.1e6, 1e-300, 5e-324, 10**400])
def test_a_weight_that_is_too_large_or_too_small_is_refused(number: float) -> None:
    with pytest.raises(ValidationError, match=r"too large|too small"):
        RecomputeRequest.model_validate({"weights": {"a": number}})


@pytest.mark.parametrize("number", [1e200, 1.1e6, 10**400, -1e-4])
def test_a_coefficient_below_zero_or_too_large_is_refused(number: float) -> None:
    with pytest.raises(ValidationError, match=r"too large|less than or equal to 1000000|greater than or equal to 0"):
        RewardRequest.model_validate(rewarded(length_penalty={"coefficient": number}))


@pytest.mark.parametrize("tokens", [2**53, 10**30, 10**400])
def test_a_length_or_step_beyond_the_exact_integers_of_json_is_refused(tokens: int) -> None:
    body = rewarded(length_penalty={})
    body["groups"][0]["responses"][0]["tokens"] = tokens
    for request in (body, rewarded(length_penalty={"target_tokens": tokens}), rewarded() | {"step": tokens}):
        with pytest.raises(ValidationError, match="too large; use at most 9007199254740991"):
            RewardRequest.model_validate(request)


@pytest.mark.parametrize("weight", [1e308, -1e7, 1e-300, -1e-10])
def test_a_rubric_whose_weights_exceed_the_bounds_is_refused(weight: float) -> None:
    criteria = [{"id": "a", "description": "b"}, {"id": "heavy", "description": "c", "weight": weight}]
    with pytest.raises(ValidationError, match=r"the weight of criterion 'heavy': .* is too (large|small)"):
        RubricContent.model_validate({"criteria": criteria})


def test_a_stored_rubric_with_a_weight_beyond_the_bounds_is_still_read() -> None:
    assert Criterion.model_validate({"id": "a", "description": "b", "weight": 1e7}).weight == 1e7


def test_the_square_of_the_largest_reward_is_finite() -> None:
    request = rewarded(length_penalty={"coefficient": 1e6, "target_tokens": 0})
    request["groups"][0]["responses"][0]["tokens"] = 2**53 - 1
    made = RewardRequest.model_validate(request)
    penalty = made.reward.length_penalty
    assert penalty is not None
    assert math.isfinite((penalty.coefficient * (2**53 - 1)) ** 2)
    assert math.isfinite((512 * 1e6 / 1e-9) ** 2)  # a rubric of the heaviest pitfalls over the lightest point


def test_a_number_in_a_verification_may_be_large() -> None:
    check = {"method": "numeric", "expected": 6.022e23, "relative": 1e-3}
    assert Criterion.model_validate({"id": "a", "description": "b", "verification": check})
