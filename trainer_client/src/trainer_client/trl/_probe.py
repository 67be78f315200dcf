"""Refuses a reward function's options as the service would, before training has begun. Sends nothing."""

from trainer_client._columns import RubricOrReference
from trainer_client._options import RewardKeywords
from trainer_client._requests import rewards_request
from trainer_client.wire import FailurePolicy, RewardMode

_PROBE_GROUP = {
    "id": "probe",
    "prompt": "",
    "responses": [{"text": "", "tokens": 0, "stopped": True}],
    "ground_truth": "0",
}


def check_reward_options(
    rubric: RubricOrReference | None,
    mode: RewardMode,
    options: RewardKeywords,
    *,
    on_failure: FailurePolicy,
    deadline_s: float,
) -> None:
    """Make a request of them that is not sent.

    Raises:
        InvalidRequest: an option or the rubric breaks the contract.
        TypeError: there is no such option.
    """
    rubric_or_probe = rubric or "probe"
    rewards_request(
        "RubricReward",
        None,
        [_PROBE_GROUP],
        rubric_or_probe,
        mode,
        options,
        on_failure=on_failure,
        deadline_s=deadline_s,
        step=None,
    )
