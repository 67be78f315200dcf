"""Importing this module registers the estimators with verl: name it in `VERL_USE_EXTERNAL_MODULES`.

An estimator must be registered in the process that trains, and verl has no other hook for this than an import. Needs
verl.
"""

from importlib import import_module
from typing import Any

from trainer_client.verl.estimators import ESTIMATORS


def register(core_algos: Any) -> None:
    """Register the estimators in verl's `verl.trainer.ppo.core_algos`. Registering them again has no effect.

    Raises:
        ValueError: verl has another estimator of the same name.
    """
    for name, estimator in ESTIMATORS.items():
        core_algos.register_adv_est(name)(estimator)


register(import_module("verl.trainer.ppo.core_algos"))
