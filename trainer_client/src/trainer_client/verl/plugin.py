"""Registers the estimators with verl, by being imported: name it in `VERL_USE_EXTERNAL_MODULES`.

verl knows an estimator by the name that it was registered under in the process that trains, and offers no other
moment than an import. Needs verl.
"""

from importlib import import_module
from typing import Any

from trainer_client.verl.estimators import ESTIMATORS


def register(core_algos: Any) -> None:
    """Register the estimators in verl's `verl.trainer.ppo.core_algos`; again does no harm.

    Raises:
        ValueError: verl has another estimator of such a name.
    """
    for name, estimator in ESTIMATORS.items():
        core_algos.register_adv_est(name)(estimator)


register(import_module("verl.trainer.ppo.core_algos"))
