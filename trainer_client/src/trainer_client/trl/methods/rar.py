"""Rubrics as rewards: SRaR's criteria summed into one scalar for the whole response, its baseline.

r = base reward + the sum of all deltas; its group advantage goes to every token. What SRaR gains over this it gains by
knowing the step.
"""

from dataclasses import dataclass

from trainer_client.advantages import StepVariant
from trainer_client.trl.methods.srar import Srar


@dataclass(frozen=True, kw_only=True)
class Rar(Srar):
    """Group advantages of the base reward and all deltas together."""

    variant: StepVariant = "rar"
