"""The arguments that verl 0.9.1 passes to user code, recorded from its source, and fakes of its modules.

`test_verl_itself.py` compares them with verl where that is installed.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

VERSION = "0.9.1"

REWARD_KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Passed by `verl.experimental.reward_loop.reward_manager.naive.NaiveRewardManager.run_single` to a reward function."""

REWARD_MODEL_KEYWORDS = ("reward_router_address", "reward_model_tokenizer")
"""Passed as well where a reward model is enabled."""

BATCH_KEYWORDS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""Passed by `verl.workers.reward_manager.batch.BatchRewardManager.verify` to a reward function in earlier versions."""

ESTIMATOR_KEYWORDS = ("token_level_rewards", "response_mask", "config", "index")
"""Passed by `verl.trainer.ppo.ray_trainer.compute_advantage` to an estimator registered by name."""

ESTIMATOR_OPTIONAL = ("reward_baselines",)
"""Passed as well where the batch has such a column."""

REGISTER_PARAMETERS = ("name_or_enum",)
"""Parameters of `verl.trainer.ppo.core_algos.register_adv_est`."""

TRAINER_METHOD = ("self", "batch", "metrics")
"""Parameters of `verl.trainer.ppo.v1.PPOTrainer._compute_advantage`."""

QUEUE_PARAMETERS = ("keys", "partition_id", "select_fields")
"""Parameters of `transfer_queue.kv_batch_get`."""


class Registry:
    """`register_adv_est` as in verl: a name is registered for one function only."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def register_adv_est(self, name_or_enum: str) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            if self.known.setdefault(name_or_enum, function) != function:
                raise ValueError(f"{name_or_enum} is taken")
            return function

        return register


def fake_module(patch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Make `import_module(name)` return a module with these members."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        patch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    module = ModuleType(name)
    vars(module).update(members)
    patch.setitem(sys.modules, name, module)
