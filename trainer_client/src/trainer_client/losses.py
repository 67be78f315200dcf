"""The terms of the papers' losses, over tensors and with their gradients.

This is the only module of formulas that needs torch, which the extra `trl` installs. Loss terms are per token and not
aggregated. Tensors keep their device and precision; lists, numbers and numpy arrays become float64 tensors, or tensors
like another argument that is one.

Options and shapes are checked. Values are not, since reading a tensor waits for its device: NaN stays NaN.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt
import torch

__all__ = ["clipped_surrogate", "k3", "sequence_masked_weights", "sequence_ratio", "shaped_probability"]

TensorLike: TypeAlias = torch.Tensor | npt.NDArray[Any] | Sequence[Any] | float
"""One number, or an array of numbers. Several arguments need the same number of dimensions, except for single numbers,
and sizes that are equal or 1: the advantages of B responses have the shape B x 1, not B."""


def shaped_probability(logp: TensorLike, *, gamma: float = 0.1) -> torch.Tensor:
    """Compute f(p) = p / (p + gamma), which replaces the ratio for RGR-GRPO's refined response (eq. 11).

    Multiply it by the advantage and maximise it. Its gradient with respect to log p, gamma * p / (p + gamma)^2, is
    largest at p = gamma: an improbable token weighs more than in p itself, and a certain one hardly anything.

    Args:
        logp: log pi(token | prompt, tokens before it), in nats, under the prompt **without** the refinement.
        gamma: above 0 (paper: 0.1).

    Returns:
        f of each token, in (0, 1 / (1 + gamma)].

    Raises:
        ValueError: gamma is not above 0.
    """
    if not 0.0 < gamma < math.inf:
        raise ValueError(f"gamma is {gamma!r}; use a finite number above 0 (RGR-GRPO: 0.1)")
    (logps,) = _as_tensors(logp=logp)
    return torch.sigmoid(logps - math.log(gamma))


def k3(logp: TensorLike, ref_logp: TensorLike, *, bound: float = 20.0) -> torch.Tensor:
    """Estimate a token's divergence from the reference policy: exp(d) - d - 1 (Rubric-Grounded RL, eq. 8).

    d = log pi_ref - log pi, clamped to [-bound, bound]. The estimate is never negative, and 0 only if both policies
    agree. Its gradient with respect to log pi is 1 - exp(d) within the bound and 0 beyond it.

    Args:
        logp: log pi of each token, in nats.
        ref_logp: log pi_ref of the same tokens.
        bound: above 0 (paper: 20); infinity for none.

    Returns:
        The estimate for each token, in nats; to be minimised.

    Raises:
        ValueError: the shapes do not fit, or the bound is not above 0.
    """
    if not bound > 0.0:
        raise ValueError(f"bound is {bound!r}; use a number above 0 (Rubric-Grounded RL: 20), or math.inf for none")
    logps, references = _as_tensors(logp=logp, ref_logp=ref_logp)
    distance = (references - logps).clamp(-bound, bound)
    return torch.expm1(distance) - distance


def clipped_surrogate(
    ratio: TensorLike, advantage: TensorLike, *, low: float = 0.2, high: float = 0.2, dual: float | None = None
) -> torch.Tensor:
    """Compute PPO's surrogate, min(r A, clip(r, 1 - low, 1 + high) A), to be maximised (Rubric-Grounded RL, eq. 7).

    With `dual` and A < 0, it is the larger of that and c A, so that a single token that became far more probable does
    not outweigh all others (Rubric-Grounded RL, appendix C). For c of at least 1 + high, this equals TRL's surrogate
    with `delta=c`. With low = 1 and high = infinity nothing is clipped: r A.

    Args:
        ratio: r = pi / pi_old of each token, or of each response, see `sequence_ratio`.
        advantage: A, no unit.
        low: r is clipped below 1 - low, in [0, 1].
        high: r is clipped above 1 + high, at least 0; infinity for no clipping.
        dual: c, above 1 (paper: 2 to 3); None for no dual clip.

    Returns:
        The surrogate of each token. Its gradient with respect to r is A, or 0 where a clip or c applies.

    Raises:
        ValueError: the shapes do not fit, or an option is out of range.
    """
    if not 0.0 <= low <= 1.0:
        raise ValueError(f"low is {low!r}; use a number in [0, 1], a ratio is clipped to at least 1 - low")
    if not high >= 0.0:
        raise ValueError(f"high is {high!r}; use a number of at least 0, a ratio is clipped to at most 1 + high")
    if dual is not None and not 1.0 < dual < math.inf:
        raise ValueError(f"dual is {dual!r}; use a finite number above 1 (the paper has 2 to 3), or None for none")
    ratios, advantages = _as_tensors(ratio=ratio, advantage=advantage)
    surrogate = torch.minimum(ratios * advantages, ratios.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual is None:
        return surrogate
    dual_bound = dual * advantages
    return torch.where((advantages < 0.0) & (surrogate < dual_bound), dual_bound, surrogate)


def sequence_ratio(logp: TensorLike, old_logp: TensorLike, *, mask: TensorLike | None = None) -> torch.Tensor:
    """Compute a response's ratio, the geometric mean of its tokens': exp(mean of (log pi - log pi_old)) (GSPO).

    Args:
        logp: T, or B x T: log pi of each token, in nats.
        old_logp: log pi_old of the same tokens.
        mask: 1 or True for a token, 0 or False for padding, whose log-probabilities are ignored; None if there is no
            padding.

    Returns:
        One ratio, or B ratios. A response without tokens has ratio 1.

    Raises:
        ValueError: the shapes do not fit.
    """
    given = {"logp": logp, "old_logp": old_logp}
    logps, old_logps, *masks = _as_tensors(**given) if mask is None else _as_tensors(**given, mask=mask)
    differences = logps - old_logps
    counted = (masks[0] != 0).expand_as(differences) if masks else torch.ones_like(differences, dtype=torch.bool)
    total = torch.where(counted, differences, 0.0).sum(-1)
    return torch.exp(total / counted.sum(-1).clamp(min=1))


def sequence_masked_weights(
    old_logp: TensorLike, sampling_logp: TensorLike, *, mask: TensorLike, low: float, high: float
) -> torch.Tensor:
    """Compute the weights of Seq-Mask-TIS: pi_old / pi_sampler of each token in the responses that are kept.

    A response is kept if the geometric mean of its tokens' ratios is within [low, high] (named in Rubric-Grounded RL,
    appendix C; implemented in NeMo-RL). Unlike the product, that mean does not drift with a response's length.

    Args:
        old_logp: B x T, log pi_old of each token as the trainer computes it, in nats.
        sampling_logp: B x T, the same by the engine that sampled; NaN where the engine returned none, which counts as
            equal to `old_logp`.
        mask: B x T, 1 for a token, 0 for padding.
        low, high: the band, 0 <= low <= high.

    Returns:
        B x T weights, 0 for the tokens of responses that are left out and for padding.

    Raises:
        ValueError: the shapes do not fit, or the band is invalid.
    """
    if not 0.0 <= low <= high:
        raise ValueError(f"low is {low!r} and high {high!r}; use 0 <= low <= high")
    old, sampling, counted = _as_tensors(old_logp=old_logp, sampling_logp=sampling_logp, mask=mask)
    difference = torch.where(counted != 0, torch.nan_to_num(old - sampling, nan=0.0), 0.0)
    mean_ratio = sequence_ratio(difference, torch.zeros_like(difference), mask=counted)
    kept = (mean_ratio >= low) & (mean_ratio <= high)
    return torch.exp(difference) * (counted != 0) * kept.unsqueeze(-1)


def _as_tensors(**given: TensorLike) -> list[torch.Tensor]:
    like = next((array for array in given.values() if _is_floating(array)), torch.empty(0, dtype=torch.float64))
    arrays = {name: _as_tensor(name, array, like) for name, array in given.items()}
    shapes = {tuple(array.shape) for array in arrays.values() if array.ndim > 0}
    try:
        torch.broadcast_shapes(*shapes)
        fits = len({len(shape) for shape in shapes}) < 2
    except RuntimeError:
        fits = False
    if not fits:
        described = ", ".join(f"{name} {' x '.join(map(str, array.shape))}" for name, array in arrays.items())
        raise ValueError(
            f"the shapes do not fit: {described}; give one number per token, or B x 1 for one per response"
        )
    return list(arrays.values())


def _as_tensor(name: str, given: TensorLike, like: torch.Tensor) -> torch.Tensor:
    if _is_floating(given):
        return given
    try:
        return torch.asarray(given, dtype=like.dtype, device=like.device, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name} is not an array of numbers ({error}); give numbers, in rows of equal length"
        ) from error


def _is_floating(given: TensorLike) -> bool:
    return isinstance(given, torch.Tensor) and given.is_floating_point()
