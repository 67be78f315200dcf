"""Judges that sleep: the leases that trainers hold on a judge whose memory they share, and the state of a judge."""

from typing import Annotated, Literal

from pydantic import Field

from trainer_client.wire.base import STORABLE, AnswerModel, BoundedFloat, RequestModel

RestingState = Literal["awake", "asleep"]
SleepState = Literal["awake", "falling_asleep", "asleep", "waking"]

LEASE_S = 600.0
"""How long a lease holds by default, in seconds: longer than a training step takes, short enough to wait out. If it is
shorter than a training step, the judge wakes while the trainer uses the memory; if it is longer, a dead trainer keeps
the judge asleep for longer."""

MAX_LEASE_S = 86_400.0
"""The longest lease, a day: whoever needs more renews it."""


class JudgeLease(RequestModel):
    """Who wants a judge to be asleep or awake, and for how long.

    An owner has one lease on a judge: the next request of the same owner, for either, replaces it.

    Attributes:
        owner: who holds the lease, such as the name of a run; the key's project is part of it.
        lease_s: how long the lease holds, in seconds.
    """

    owner: Annotated[str, STORABLE] = Field(min_length=1, max_length=200, examples=["llama-srar-3"])
    lease_s: BoundedFloat = Field(default=LEASE_S, gt=0, le=MAX_LEASE_S)


class JudgeSleep(AnswerModel):
    """The state of a judge after a request to sleep or to wake.

    Attributes:
        state: whether it is awake or asleep, or on its way. Every judge that a cascade or panel is made of, and every
            judge process of one name, must be asleep for `asleep`.
        kept_awake_by: the owners whose leases keep it awake. Those of other projects are called `another project`.
    """

    judge: str
    state: SleepState
    kept_awake_by: tuple[str, ...] = ()
