"""Adjudge in TRL: a reward function for its trainers, and a GRPO trainer with the papers' methods.

Needs the extra `trl`: `pip install "adjudge-client[trl]"`.
"""

from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.generation_callback import GenerationCallback, ScoredGeneration
from trainer_client.trl.reward import RubricReward, RubricRewardWarning, TooManyUnscored
from trainer_client.trl.trainer import RubricGRPOTrainer
from trainer_client.trl.training_measures import TrainingMeasures

__all__ = [
    "GenerationCallback",
    "RubricGRPOConfig",
    "RubricGRPOTrainer",
    "RubricReward",
    "RubricRewardWarning",
    "ScoredGeneration",
    "TooManyUnscored",
    "TrainingMeasures",
]
