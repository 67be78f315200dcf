"""Advantage estimators in verl's form, over `trainer_client.advantages`: a response without a reward moves nothing.

verl gives an estimator B x T rewards, a mask of the same shape and B group ids. A response's reward is the sum of its
row; NaN says that there is none. A row whose mask is 0 throughout, such as verl's padding or a rejected rollout, has no
token to train and enters no statistic either. Needs torch; knows nothing of verl but these shapes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainer_client.advantages import Baseline, Scale, group_advantages, stepwise_advantages

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ESTIMATORS", "StepTokens", "TooManyUnscored", "group", "leave_one_out", "steps_context", "stepwise"]

MAX_UNSCORED = 0.5
_Array = npt.NDArray[np.float64]
_Estimate = Callable[[list[float | None], list[int]], Sequence[_Array] | _Array]


class TooManyUnscored(RuntimeError):
    """The judge gave no reward to more of a batch than may be without; nothing was learnt from it."""


class StepTokens(NamedTuple):
    """One response's steps: {step: delta}, and {step: [first, last + 1)} in its tokens."""

    deltas: Mapping[int, float]
    spans: Mapping[int, Sequence[int]]


_steps: ContextVar[Sequence[StepTokens] | None] = ContextVar("adjudge_steps", default=None)


@contextmanager
def steps_context(steps: Sequence[StepTokens]) -> Iterator[None]:
    """Have `stepwise` find these steps, one for each row of the batch, in its order.

    verl passes an estimator nothing but rewards, mask and group ids; what else it needs goes past verl.
    """
    token = _steps.set(steps)
    try:
        yield
    finally:
        _steps.reset(token)


def group(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute group advantages with the sample's deviation, as verl does (Dr. GRPO without the deviation).

    Args:
        token_level_rewards: B x T; a row's sum is its reward, NaN where there is none.
        response_mask: B x T, 1 for the tokens that are trained.
        index: B group ids.
        config: verl's `algorithm`. `norm_adv_by_std_in_grpo` says whether to divide by the deviation. Of `adjudge`,
            if it is there, `max_unscored` is the share of the batch that may stay without a reward (0.5), and the rest
            are keywords of the pure function: here `ddof` (1 unless given) and `eps` of `group_advantages`.

    Returns:
        Advantages and returns, the same B x T tensor: a row's advantage on each token of its mask, 0 elsewhere.

    Raises:
        TooManyUnscored: more than that have none.
        ValueError: shapes differ, a reward is infinite, or an option is out of range.
        TypeError: there is no such option.
    """
    return _estimate_advantages(token_level_rewards, response_mask, index, config, "mean")


def leave_one_out(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute advantages over the mean of the others (Rubric-Grounded RL); all else is as for `group`."""
    return _estimate_advantages(token_level_rewards, response_mask, index, config, "leave_one_out")


def stepwise(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute SRaR's advantages of tokens: the base reward's, and each step's on its own tokens (eqs. 4 to 6).

    Args and errors are those of `group`; the rest of `adjudge` are keywords of `stepwise_advantages`, such as
    `variant`, `normalise` and `ddof`, which is 0 here unless given, as in the paper. The steps are those of `carrying`.

    Raises:
        RuntimeError: nobody carries steps here.
        ValueError: not every row has its steps, or `norm_adv_by_std_in_grpo` is off, which SRaR does not know.
    """
    steps = _steps.get()
    if steps is None:
        raise RuntimeError(
            "verl tells an estimator nothing of steps; add trainer_client.verl.stepwise to VERL_USE_EXTERNAL_MODULES, "
            "or give the deltas' sum with the reward: reward_kwargs.step_deltas=fold and adv_estimator=adjudge_group"
        )
    if len(steps) != len(token_level_rewards):
        raise ValueError(f"{len(steps)} steps for {len(token_level_rewards)} rows; give one for each")
    options = _options(config)
    max_unscored = options.pop("max_unscored")
    if not _divides_by_std(config):
        raise ValueError("adjudge_stepwise divides by deviations; leave algorithm.norm_adv_by_std_in_grpo true")

    def of_group(rewards: list[float | None], rows: list[int]) -> Sequence[_Array]:
        own = [steps[row] for row in rows]
        lengths = [response_mask.shape[1]] * len(rows)
        return stepwise_advantages(rewards, [s.deltas for s in own], [s.spans for s in own], lengths, **options)

    return _estimate_by_group(token_level_rewards, response_mask, index, max_unscored, of_group)


def _estimate_advantages(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any,
    baseline: Baseline,
) -> tuple["Tensor", "Tensor"]:
    options = {"ddof": 1, **_options(config)}
    max_unscored = options.pop("max_unscored")
    scale: Scale = "std" if _divides_by_std(config) else "none"

    def of_group(rewards: list[float | None], rows: list[int]) -> _Array:
        return group_advantages(rewards, baseline=baseline, scale=scale, **options)[:, np.newaxis]

    return _estimate_by_group(token_level_rewards, response_mask, index, max_unscored, of_group)


def _estimate_by_group(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    max_unscored: float,
    of_group: _Estimate,
) -> tuple["Tensor", "Tensor"]:
    """Estimate group by group and lay the advantages out over the rows."""
    count = len(token_level_rewards)
    if token_level_rewards.shape != response_mask.shape or token_level_rewards.dim() != 2 or len(index) != count:
        raise ValueError(
            f"rewards of shape {tuple(token_level_rewards.shape)}, a mask of {tuple(response_mask.shape)} and "
            f"{len(index)} group ids; give B x T, B x T and B"
        )
    totals = token_level_rewards.double().sum(dim=-1).tolist()
    trained = (response_mask != 0).any(dim=-1).tolist()
    _check_unscored_share([total for total, rows in zip(totals, trained, strict=True) if rows], max_unscored)
    groups: dict[object, list[int]] = {}
    for row, name in enumerate(index):
        if trained[row]:
            groups.setdefault(name, []).append(row)
    advantages = torch.zeros(response_mask.shape, dtype=torch.float32)
    for rows in groups.values():
        rewards = [None if np.isnan(totals[row]) else totals[row] for row in rows]
        for row, values in zip(rows, of_group(rewards, rows), strict=True):
            advantages[row] = torch.as_tensor(values, dtype=torch.float32)
    advantages = advantages.to(response_mask.device) * response_mask
    return advantages, advantages


def _check_unscored_share(totals: Sequence[float], max_unscored: float) -> None:
    unscored = sum(1 for total in totals if np.isnan(total))
    if unscored > max_unscored * len(totals):
        raise TooManyUnscored(
            f"{unscored} of {len(totals)} responses have no reward, and more than {max_unscored:g} of them may not be "
            "without; 'failures' in the reward's extra info says why. Raise reward_kwargs.deadline_s if the judge is "
            "only slow; +algorithm.adjudge.max_unscored=1.0 goes on without such responses"
        )


def _options(config: Any) -> dict[str, Any]:
    own = None if config is None else config.get("adjudge", None)
    return {"max_unscored": MAX_UNSCORED, **(own or {})}


def _divides_by_std(config: Any) -> bool:
    return config is None or bool(config.get("norm_adv_by_std_in_grpo", True))


ESTIMATORS = {"adjudge_group": group, "adjudge_leave_one_out": leave_one_out, "adjudge_stepwise": stepwise}
"""The names that `trainer_client.verl.plugin` registers them under."""
