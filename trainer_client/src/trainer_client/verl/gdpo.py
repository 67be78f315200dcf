"""Importing this module passes each batch's component rewards to the estimator `adjudge_gdpo`, for verl's V1 trainers.

It reads what the reward function returned beside the score from verl's transfer queue. It works with verl 0.9, and
raises an error if verl's trainer differs. Needs verl.
"""

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from trainer_client.verl.carrying import carry, fetch
from trainer_client.verl.estimators import ComponentRewards, components_context
from trainer_client.verl.reward import COMPONENT_KEY, WEIGHTS_KEY


def carry_components(trainer: type, queue: Any) -> None:
    """Wrap a trainer class so that it provides component rewards to the estimator; see `carry`.

    Args:
        trainer: verl's `PPOTrainer`.
        queue: the module `transfer_queue`.
    """

    def context(_: Any, batch: Any) -> AbstractContextManager[None]:
        fields = fetch(queue, batch, [])[1]
        return components_context([read_components(value.get("reward_extra_info") or {}) for value in fields])

    carry(trainer, "adjudge_gdpo", context, "Use adv_estimator=adjudge_group instead")


def read_components(reward_info: Mapping[str, Any]) -> ComponentRewards:
    """Read the component rewards of a response, and their weights, from the result of `compute_score`."""
    rewards = {
        key.removeprefix(COMPONENT_KEY): float(value)
        for key, value in reward_info.items()
        if key.startswith(COMPONENT_KEY) and not math.isnan(value)
    }
    return ComponentRewards(rewards, json.loads(reward_info.get(WEIGHTS_KEY) or "{}"))


carry_components(import_module("verl.trainer.ppo.v1").PPOTrainer, import_module("transfer_queue"))
