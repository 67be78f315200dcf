"""Refuses a reward function's options as the service would, before training has begun. Sends nothing."""

from trainer_client._columns import Rubric
from trainer_client._options import RewardKeywords
from trainer_client._requests import rewards_call
from trainer_client.wire import FailurePolicy, RewardMode

_GROUP = {"id": "probe", "prompt": "", "responses": [{"text": "", "tokens": 0, "stopped": True}], "ground_truth": "0"}


def check_options(
    rubric: Rubric | None, mode: RewardMode, options: RewardKeywords, *, on_failure: FailurePolicy, deadline_s: float
) -> None:
    """Make a request of them that is not sent.

    Raises:
        InvalidRequest: an option or the rubric breaks the contract.
        TypeError: there is no such option.
    """
    asked = rubric or "probe"
    rewards_call(
        "RubricReward", None, [_GROUP], asked, mode, options, on_failure=on_failure, deadline_s=deadline_s, step=None
    )
