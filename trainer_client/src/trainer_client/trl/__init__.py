"""Adjudge in TRL: a reward function for its trainers, and a GRPO trainer with the papers' methods.

Needs the extra `trl`: `pip install "adjudge-client[trl]"`. TRL takes seconds to import, so it is imported on the first
access to a name that needs it; `RubricReward` does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_client.trl._distributed import RubricRewardWarning, TooManyUnscored
    from trainer_client.trl.callbacks import (
        ControlSet,
        GenerationCallback,
        MonitorCallback,
        ScoredGeneration,
        TrainingMeasures,
    )
    from trainer_client.trl.config import RubricGRPOConfig
    from trainer_client.trl.evolving_rubrics import EvolvingFailed, EvolvingRubrics
    from trainer_client.trl.reward import RubricReward
    from trainer_client.trl.trainer import RubricGRPOTrainer

__all__ = [
    "ControlSet",
    "EvolvingFailed",
    "EvolvingRubrics",
    "GenerationCallback",
    "MonitorCallback",
    "RubricGRPOConfig",
    "RubricGRPOTrainer",
    "RubricReward",
    "RubricRewardWarning",
    "ScoredGeneration",
    "TooManyUnscored",
    "TrainingMeasures",
]

_MODULES = {
    "ControlSet": "callbacks",
    "EvolvingFailed": "evolving_rubrics",
    "EvolvingRubrics": "evolving_rubrics",
    "GenerationCallback": "callbacks",
    "MonitorCallback": "callbacks",
    "RubricGRPOConfig": "config",
    "RubricGRPOTrainer": "trainer",
    "RubricReward": "reward",
    "RubricRewardWarning": "_distributed",
    "ScoredGeneration": "callbacks",
    "TooManyUnscored": "_distributed",
    "TrainingMeasures": "callbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
