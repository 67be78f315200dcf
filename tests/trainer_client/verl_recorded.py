"""What verl 0.9.1 passes to what users write for it, recorded from its source; and stand-ins of the modules it is in.

`test_verl_itself.py` compares with verl where that is installed.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

VERSION = "0.9.1"

REWARD_KEYWORDS = ("data_source", "solution_str", "ground_truth", "extra_info")
"""`verl.experimental.reward_loop.reward_manager.naive.NaiveRewardManager.run_single` to a reward function."""

REWARD_MODEL_KEYWORDS = ("reward_router_address", "reward_model_tokenizer")
"""The same, where a reward model is enabled as well."""

BATCH_KEYWORDS = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""`verl.workers.reward_manager.batch.BatchRewardManager.verify` to a reward function; reached by earlier versions."""

ESTIMATOR_KEYWORDS = ("token_level_rewards", "response_mask", "config", "index")
"""`verl.trainer.ppo.ray_trainer.compute_advantage` to an estimator that is registered by name."""

ESTIMATOR_OPTIONAL = ("reward_baselines",)
"""The same, where the batch has such a column."""

REGISTER_PARAMETERS = ("name_or_enum",)
"""`verl.trainer.ppo.core_algos.register_adv_est`."""

TRAINER_METHOD = ("self", "batch", "metrics")
"""`verl.trainer.ppo.v1.PPOTrainer._compute_advantage`."""

QUEUE_PARAMETERS = ("keys", "partition_id", "select_fields")
"""`transfer_queue.kv_batch_get`."""


class Registry:
    """`register_adv_est` as verl has it: a name stands for one function."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def register_adv_est(self, name_or_enum: str) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            if self.known.setdefault(name_or_enum, function) != function:
                raise ValueError(f"{name_or_enum} is taken")
            return function

        return register


def fake_module(patch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Have `import_module(name)` give a module with these members."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        patch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    module = ModuleType(name)
    vars(module).update(members)
    patch.setitem(sys.modules, name, module)
