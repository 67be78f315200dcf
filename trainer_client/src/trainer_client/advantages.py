"""Turn the rewards of a group into advantages: one per response, or one per token (SRaR).

A reward of None means that judging failed: it enters no mean and no deviation, and its advantage is 0, so that the
response has no effect. All functions need whole groups; in distributed training, gather the group's rewards first.
"""

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from trainer_client.rewards import Reward, read_finite, read_finite_or_none
from trainer_client.steps import NO_STEP

__all__ = ["component_advantages", "group_advantages", "normalise_steps", "stepwise_advantages"]

Array = npt.NDArray[np.float64]

Baseline = Literal["mean", "leave_one_out"]
Scale = Literal["std", "none"]
Deviation = Literal["group", "leave_one_out"]
ScaledBy = Literal["deviations", "correlations"]
StepVariant = Literal["decoupled", "rar", "merged"]

_Step = TypeVar("_Step", bound=Hashable)
_Spans = dict[int, tuple[int, int]]


def group_advantages(
    rewards: Sequence[Reward],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "std",
    ddof: int = 0,
    eps: float = 1e-6,
    deviation: Deviation = "group",
) -> Array:
    """Compute the advantage of each response of one group, (r_i - b_i) / (sigma + eps).

    GRPO's b is the mean of the group (SRaR, eq. 7). Rubric-Grounded RL's is the mean of the others, b_i = sum of r_k,
    k != i, / (n - 1). Dr. GRPO and RGR-GRPO use scale `none`. The advantages sum to zero, except with the leave-one-out
    deviation. If all rewards are equal, or only one is known, they are exactly 0.

    Args:
        rewards: G rewards, no unit; None where there is no reward.
        baseline: `mean`, or `leave_one_out`.
        scale: `std` divides by sigma + eps; `none` does not divide.
        ddof: 0 for the population deviation (SRaR's proofs), 1 for the sample deviation (trainers' code, and the
            default of the methods and estimators that train; see docs/reference/methods.md).
        eps: at least 0.
        deviation: `group` for the deviation of the whole group. `leave_one_out` for that of the others, sum of
            (r_k - b_i)^2, k != i, / (n - 2), as in NeMo-RL (always Bessel-corrected, whatever `ddof` is). If the others
            do not vary, it does not divide, like NeMo-RL.

    Returns:
        G advantages, 0.0 where the reward is None.

    Raises:
        ValueError: a reward is not a finite number, or an option is invalid.
    """
    if baseline not in get_args(Baseline):
        raise ValueError(f"baseline is {baseline!r}; use one of {', '.join(get_args(Baseline))}")
    if scale not in get_args(Scale):
        raise ValueError(f"scale is {scale!r}; use one of {', '.join(get_args(Scale))}")
    if deviation not in get_args(Deviation):
        raise ValueError(f"deviation is {deviation!r}; use one of {', '.join(get_args(Deviation))}")
    _check_deviation(ddof, eps)
    values = _read_rewards(rewards)
    known = [index for index, value in enumerate(values) if value is not None]
    advantages = np.zeros(len(values))
    if len(known) < 2:
        return advantages
    rewarded = [value for value in values if value is not None]
    centred, sigma = _centre(rewarded, ddof)
    factor = len(known) / (len(known) - 1) if baseline == "leave_one_out" else 1.0
    if scale == "std" and deviation == "leave_one_out":
        sigmas = _deviations_of_others(rewarded)
        advantages[known] = [
            factor * value / (each + eps if each > 0 else 1.0) for value, each in zip(centred, sigmas, strict=True)
        ]
        return advantages
    if scale == "std":
        factor = factor / (sigma + eps) if sigma > 0 else 0.0
    advantages[known] = [factor * value for value in centred]
    return advantages


def component_advantages(
    groups: Sequence[Sequence[Mapping[str, Reward]]],
    weights: Sequence[Mapping[str, float]] | None = None,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    scaled_by: ScaledBy = "deviations",
) -> list[Array]:
    """Compute the advantages of a batch from component rewards (GDPO, arXiv:2601.05242).

    Each component is normalised within its group, z_k = (r_k - mean) / (sigma_k + eps). A response's z_k are added with
    the weights of its group, and the sums are normalised over all responses of the batch in the same way. Unlike with
    a sum of rewards, responses that earn the same total by different components differ.

    A component that is missing for a response enters no statistic of its group and adds nothing, and neither does one
    that is equal for all responses. A response without any component has advantage 0 and does not affect the batch.
    These are the numbers of TRL's `normalize_then_sum`, whose eps is 1e-4, for weights that do not differ by group.

    With `scaled_by="correlations"`, they are those of CorrGRPO (arXiv:2609.36820): within a group, the sum of the
    weighted components, each minus its mean, is divided by sqrt(sum of rho_lm over all pairs, l = m included) + eps,
    where GRPO has the sum of covariances. rho is Pearson's correlation over the responses that have both components, 0
    where one does not vary. There is no normalisation over the batch. That sum is taken as at least 1, its value for a
    single component: components that oppose each other make it 0, and the paper's quotient unbounded.

    Args:
        groups: for each group, the component rewards of its G responses by name; None, or no entry, where there is
            none. Groups may have different sizes and components.
        weights: for each group, the weight of each component; 1 for all by default.
        ddof: 1 for sample deviations (TRL, verl and the authors' code), 0 for those of the population.
        eps: at least 0.
        scaled_by: `deviations` for each component by its own, `correlations` for their sum by theirs.

    Returns:
        For each group, the G advantages of its responses.

    Raises:
        ValueError: a reward is not a finite number, a component has no weight, or an option is invalid.
    """
    if weights is not None and len(weights) != len(groups):
        raise ValueError(f"there are weights of {len(weights)} groups for {len(groups)} groups; give one for each")
    if scaled_by not in get_args(ScaledBy):
        raise ValueError(f"scaled_by is {scaled_by!r}; use one of {', '.join(get_args(ScaledBy))}")
    scale: Scale = "std" if scaled_by == "deviations" else "none"
    deviation: dict[str, Any] = {"ddof": ddof, "eps": eps}
    parts = [
        [
            _weight(weights, place, name) * group_advantages([one.get(name) for one in group], scale=scale, **deviation)
            for name in _component_names(group)
        ]
        for place, group in enumerate(groups)
    ]
    totals = [np.sum(own, axis=0) if own else np.zeros(len(group)) for own, group in zip(parts, groups, strict=True)]
    if scaled_by == "correlations":
        spreads = [math.sqrt(max(1.0, _sum_of_correlations(*one))) for one in zip(groups, parts, strict=True)]
        return [total / (spread + eps) for total, spread in zip(totals, spreads, strict=True)]
    normalised = group_advantages(_known_sums(groups, totals), **deviation)
    ends = np.cumsum([len(group) for group in groups])
    return np.split(normalised, ends[:-1]) if groups else []


def _known_sums(groups: Sequence[Sequence[Mapping[str, Reward]]], totals: Sequence[Array]) -> list[float | None]:
    """Return the sum of each response of the batch; None for one without any component."""
    return [
        float(value) if any(part is not None for part in response.values()) else None
        for group, total in zip(groups, totals, strict=True)
        for response, value in zip(group, total, strict=True)
    ]


def _component_names(group: Sequence[Mapping[str, Reward]]) -> list[str]:
    return list(dict.fromkeys(name for response in group for name in response))


def _weight(weights: Sequence[Mapping[str, float]] | None, place: int, name: str) -> float:
    if weights is None:
        return 1.0
    if name not in weights[place]:
        raise ValueError(f"weights[{place}] has none for the component {name!r}; give one for each component")
    return read_finite(f"weights[{place}][{name!r}]", weights[place][name])


def _sum_of_correlations(group: Sequence[Mapping[str, Reward]], parts: Sequence[Array]) -> float:
    """Return the sum of Pearson's correlations of all pairs of components, each with itself included."""
    known = [np.array([response.get(name) is not None for response in group]) for name in _component_names(group)]
    total = float(sum(part.any() for part in parts))
    for (one, has_one), (other, has_other) in combinations(zip(parts, known, strict=True), 2):
        both = has_one & has_other
        x, y = (_centre(part[both].tolist(), 0)[0] if both.any() else [] for part in (one, other))
        spread = math.sqrt(math.fsum(a * a for a in x) * math.fsum(b * b for b in y))
        total += 2 * math.fsum(a * b for a, b in zip(x, y, strict=True)) / spread if spread > 0 else 0.0
    return total


def normalise_steps(
    deltas: Sequence[Mapping[_Step, float]], *, ddof: int = 0, eps: float = 1e-6
) -> list[dict[_Step, float]]:
    """Normalise each step's deltas across the group: z = (d - mean) / (sigma + eps) (SRaR, eq. 4).

    A step's statistics are over the rollouts that have a delta for it (the paper's G_k), as returned by
    `steps.step_deltas`. z is 0 if only one rollout has the step, or if all deltas are equal.

    Args:
        deltas: one {step: d_k} for each of G rollouts; {} for one without deltas.
        ddof: 0 for the population deviation (paper), 1 for the sample deviation (the authors' code).
        eps: at least 0 (ours: 1e-6).

    Returns:
        G mappings {step: z}, with the same steps.

    Raises:
        ValueError: a delta is not a finite number, or an option is out of range.
    """
    _check_deviation(ddof, eps)
    columns: dict[_Step, list[tuple[int, float]]] = {}
    for index, rollout in enumerate(deltas):
        for step, given in rollout.items():
            columns.setdefault(step, []).append((index, read_finite(f"deltas[{index}][{step!r}]", given)))
    normalised: list[dict[_Step, float]] = [{} for _ in deltas]
    for step, column in columns.items():
        centred, sigma = _centre([delta for _, delta in column], ddof if len(column) > 1 else 0)
        for (index, _), value in zip(column, centred, strict=True):
            normalised[index][step] = value / (sigma + eps) if sigma > 0 else 0.0
    return normalised


def stepwise_advantages(
    base: Sequence[Reward],
    deltas: Sequence[Mapping[int, float]],
    spans: Sequence[Mapping[int, Sequence[int]]],
    lengths: Sequence[int],
    *,
    variant: StepVariant = "decoupled",
    normalise: bool = True,
    ddof: int = 0,
    eps: float = 1e-6,
) -> list[Array]:
    """Compute the advantage of each token of one group (SRaR, eqs. 4 to 6), or an ablation of it.

    - `decoupled`, SRaR's own: A of token t = the group advantage of the base rewards + z of the step that contains t
      + z of step 0, the whole response. Tokens outside all steps get the other terms. Without deltas, this is GRPO.
    - `rar`: each response gets one scalar, base + the sum of its deltas; its group advantage goes to all tokens.
    - `merged`: the same advantage, but only for the tokens of steps with a delta, 0 elsewhere. A delta of step 0 gives
      it to all tokens.

    In `rar` and `merged`, the sum includes the deltas of step -1 (no step). A rollout without a base reward gets 0 on
    every token, and its deltas are ignored.

    Args:
        base: G base rewards (`rewards.reward`, mode `stepwise`); None where there is no reward.
        deltas: G mappings {step: d_k}, from `steps.step_deltas`; 0 is the whole response, and -1 no step, which
            `decoupled` leaves out. The delta of a step without tokens enters the statistics only.
        spans: G mappings {step: [first, last + 1)} in tokens, from `steps.token_spans`; an entry for step 0 is
            ignored. Steps here and in `deltas` may be strings, as in JSON.
        lengths: G numbers of tokens T_i.
        variant: see above.
        normalise: False leaves d_k as it is in `decoupled`, for the ablation that collapses (section 4.4).
        ddof: 0 for population deviations (paper), 1 for sample deviations (the authors' code), in all parts.
        eps: at least 0.

    Returns:
        G arrays; the i-th has T_i advantages.

    Raises:
        ValueError: the sequences differ in length, a span is outside its response or overlaps another, a number is not
            finite, or an option is invalid.
    """
    if variant not in get_args(StepVariant):
        raise ValueError(f"variant is {variant!r}; use one of {', '.join(get_args(StepVariant))}")
    if not len(base) == len(deltas) == len(spans) == len(lengths):
        raise ValueError(
            f"{len(base)} base rewards, {len(deltas)} deltas, {len(spans)} spans, {len(lengths)} lengths; "
            "give one of each for every rollout of the group"
        )
    rewards = _read_rewards(base)
    scored = _read_deltas(deltas, rewards)
    places = [_read_spans(index, own, length) for index, (own, length) in enumerate(zip(spans, lengths, strict=True))]
    attributed = [{step: delta for step, delta in own.items() if step != NO_STEP} for own in scored]
    offsets = normalise_steps(attributed, ddof=ddof, eps=eps)
    if variant == "decoupled":
        offsets = offsets if normalise else attributed
    else:
        given = zip(rewards, scored, strict=True)
        rewards = [None if reward is None else math.fsum([reward, *own.values()]) for reward, own in given]
    whole = group_advantages(rewards, ddof=ddof, eps=eps)
    return [_tokens(variant, *rollout) for rollout in zip(whole.tolist(), offsets, places, lengths, strict=True)]


def _tokens(variant: StepVariant, advantage: float, offsets: Mapping[int, float], spans: _Spans, length: int) -> Array:
    if variant == "rar" or (variant == "merged" and 0 in offsets):
        return np.full(length, advantage)
    tokens = np.full(length, 0.0 if variant == "merged" else advantage + offsets.get(0, 0.0))
    for step, (start, end) in spans.items():
        if step in offsets:
            tokens[start:end] += advantage if variant == "merged" else offsets[step]
    return tokens


def _centre(values: list[float], ddof: int) -> tuple[list[float], float]:
    """Return each value minus the mean, and the deviation; all exactly 0 if all values are equal."""
    shifted = [value - values[0] for value in values]
    mean = math.fsum(shifted) / len(shifted)
    centred = [value - mean for value in shifted]
    return centred, math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - ddof))


def _deviations_of_others(values: list[float]) -> list[float]:
    """Return, for each value, the sample deviation of the others; 0 if there are fewer than two others."""
    if len(values) < 3:
        return [0.0] * len(values)
    return [_centre(values[:place] + values[place + 1 :], 1)[1] for place in range(len(values))]


def _check_deviation(ddof: int, eps: float) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof is {ddof!r}; use 0 (population) or 1 (sample)")
    if not (math.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps is {eps!r}; it is a finite number of at least 0")


def _read_rewards(rewards: Sequence[Reward]) -> list[float | None]:
    return [read_finite_or_none(f"rewards[{index}]", given) for index, given in enumerate(rewards)]


def _read_steps(name: str, given: Mapping[Any, Any], lowest: int = 0) -> dict[int, Any]:
    steps = {int(step) if isinstance(step, str) else operator.index(step): value for step, value in given.items()}
    if min(steps, default=0) < lowest:
        no_step = ", or -1 for no step" if lowest < 0 else ""
        raise ValueError(f"{name} has step {min(steps)}; steps are 1, 2, 3, …, and 0 for the whole response{no_step}")
    return steps


def _read_deltas(deltas: Sequence[Mapping[int, float]], rewards: Sequence[float | None]) -> list[dict[int, float]]:
    """Read the deltas of each rollout; none for one without a reward."""
    offered = [_read_steps(f"deltas[{index}]", rollout, NO_STEP) for index, rollout in enumerate(deltas)]
    return [{} if reward is None else steps for reward, steps in zip(rewards, offered, strict=True)]


def _read_spans(index: int, given: Mapping[Any, Sequence[int]], length: int) -> _Spans:
    steps = _read_steps(f"spans[{index}]", given)
    spans = {step: (int(start), int(end)) for step, (start, end) in steps.items() if step != 0}
    ordered = sorted(spans.values())
    if any(not 0 <= start <= end <= length for start, end in ordered):
        raise ValueError(f"spans[{index}] are {spans}; a span is [first, last + 1) within the {length} tokens")
    if any(end > start for (_, end), (start, _) in pairwise(ordered)):
        raise ValueError(f"spans[{index}] are {spans} and overlap; a token belongs to one step at most")
    return spans
