"""Adjudge in verl: a reward function for its reward loop, and advantage estimators that leave unscored responses out.

Set `reward.custom_reward_function.path=pkg://trainer_client.verl` to use `compute_score`. To register the estimators,
name `trainer_client.verl.plugin` in `VERL_USE_EXTERNAL_MODULES`, so that verl imports it.

Importing this package needs neither verl nor torch. Written for verl 0.9; see `docs/how-to/train-with-verl.md`.
"""

from trainer_client.verl.reward import compute_score, compute_score_batch

__all__ = ["compute_score", "compute_score_batch"]
