"""Judges that change while they run: leases on a judge that sleeps, and the weights that a judge has.

Weights are compared by their tag, a short hash of the model and of its weights' content. Versions and steps are labels.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainer_client.wire.base import STORABLE, AnswerModel, BoundedFloat, RequestModel
from trainer_client.wire.verdicts import VerdictRequest

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


WEIGHTS_WAIT_S = 600.0
"""How long a change of weights waits by default for requests under way, in seconds."""


class WeightsChange(RequestModel):
    """Weights that a judge is to have from now on.

    Attributes:
        version: what you call them. Weights that the judge cannot see, those of a policy server, are told apart by
            this alone.
        adapter: a LoRA adapter, by its path in the folder that the service loads adapters from; null for the weights
            without one.
        step: the training step that they are of.
        wait_s: how long to wait for the requests under way, in seconds.
        control: responses that are judged before and after, to show how far the judge drifts. It needs the scope
            `score` too.
    """

    version: Annotated[str, STORABLE] = Field(min_length=1, max_length=200, examples=["step-200"])
    adapter: Annotated[str, STORABLE] | None = Field(
        default=None, min_length=1, max_length=1000, examples=["my-run/step-200"]
    )
    step: int | None = Field(default=None, ge=0, le=2**53)
    wait_s: BoundedFloat = Field(default=WEIGHTS_WAIT_S, gt=0, le=MAX_LEASE_S)
    control: VerdictRequest | None = None


class WeightsDrift(AnswerModel):
    """How the verdicts on a control set differ from those of the weights at which it was first judged.

    Attributes:
        since: the version that they are compared with; null for the weights that the judge started with.
        since_tag: the tag of those weights.
        verdicts: how many verdicts were given at both; the figures are means over these.
        missing: how many were not, because one of them failed or is uncertain.
        changed: the share of verdicts whose score differs.
        probability_change: the mean of the probability now less the one before; null without probabilities.
        probability_distance: the mean of the absolute difference.
    """

    since: str | None = None
    since_tag: str
    verdicts: int
    missing: int = 0
    changed: float | None = None
    probability_change: float | None = None
    probability_distance: float | None = None


class JudgeWeights(AnswerModel):
    """The weights that a judge has.

    Attributes:
        model: the model's name, which is part of the judge's fingerprint.
        tag: a short hash of the model and of its weights' content; equal tags mean equal weights. `unknown` after a
            change that failed halfway.
        version: what they were called when they were loaded; null for those that the judge started with, and for keys
            without the scope `judges:write`, as are the next two.
        adapter: the adapter that was loaded, by its path.
        step: the training step that they are of.
        refused_calibrations: stored calibrations that this judge is to apply, and that were fitted for other weights.
            Requests that would need them are refused.
        drift: what the last change of your project said about its control set; null without one.
        control_problem: why the control set could not be judged with these weights; empty if it could.
    """

    judge: str
    model: str
    tag: str
    version: str | None = None
    adapter: str | None = None
    step: int | None = None
    refused_calibrations: tuple[str, ...] = ()
    drift: WeightsDrift | None = None
    control_problem: str = ""
