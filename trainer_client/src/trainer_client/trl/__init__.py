"""Adjudge in TRL: a reward function for its trainers, and a GRPO trainer with the papers' methods.

`RubricReward` works with TRL 0.27, which brought async reward functions, and newer: `pip install
"adjudge-client[trl]"`. The trainer overrides methods of TRL that only hold within a minor version, so it needs the one
of the extra `methods`. TRL takes seconds to import, so it is imported on the first access to a name that needs it;
`RubricReward` does not.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer_client.trl.callbacks import (
        ControlSet,
        GenerationCallback,
        JudgeSleepCallback,
        JudgeWeightsCallback,
        MonitorCallback,
        ScoredGeneration,
        TrainingMeasures,
    )
    from trainer_client.trl.config import RubricGRPOConfig
    from trainer_client.trl.evolving_rubrics import EvolvingFailed, EvolvingRubrics
    from trainer_client.trl.reward import RubricReward
    from trainer_client.trl.scoring.context import RubricRewardWarning
    from trainer_client.trl.scoring.ranks import TooManyUnscored
    from trainer_client.trl.trainer import RubricGRPOTrainer

__all__ = [
    "ControlSet",
    "EvolvingFailed",
    "EvolvingRubrics",
    "GenerationCallback",
    "JudgeSleepCallback",
    "JudgeWeightsCallback",
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
    "JudgeSleepCallback": "callbacks",
    "JudgeWeightsCallback": "callbacks",
    "MonitorCallback": "callbacks",
    "RubricGRPOConfig": "config",
    "RubricGRPOTrainer": "trainer",
    "RubricReward": "reward",
    "RubricRewardWarning": "scoring.context",
    "ScoredGeneration": "callbacks",
    "TooManyUnscored": "scoring.ranks",
    "TrainingMeasures": "callbacks",
}


_TRL_VERSION = "1.16"
"""The minor version of TRL whose trainer `RubricGRPOTrainer` extends, as in the extra `methods`."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] in ("callbacks", "config", "trainer"):
        _check_trl_version(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def _check_trl_version(name: str) -> None:
    try:
        installed = version("trl")
    except PackageNotFoundError:
        installed = "none"
    if not installed.startswith(f"{_TRL_VERSION}."):
        raise ImportError(
            f"{name} needs TRL {_TRL_VERSION}, and the installed version is {installed}; run pip install "
            '"adjudge-client[methods]". RubricReward works with TRL 0.27 and newer'
        )


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
