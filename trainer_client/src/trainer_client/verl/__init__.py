"""Adjudge in verl: a reward function for its reward loop, and advantage estimators that leave unscored responses out.

`reward.custom_reward_function.path=pkg://trainer_client.verl` takes `compute_score` from here. The estimators are
registered by importing `trainer_client.verl.plugin`, which verl does where `VERL_USE_EXTERNAL_MODULES` names it.

Importing this package needs neither verl nor torch. Written for verl 0.9; `docs/verl.md` is the recipe.
"""

from trainer_client.verl.reward import compute_score, compute_score_batch

__all__ = ["compute_score", "compute_score_batch"]
