"""Advantage estimators for verl that leave responses without a reward out, based on `trainer_client.advantages`.

verl calls an estimator with B x T rewards, a mask of the same shape and B group ids. A response's reward is the sum of
its row, or NaN if there is none. A row whose mask is all 0, such as verl's padding or a rejected rollout, has no tokens
to train and enters no statistic. Needs torch, but not verl.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from trainer_client.advantages import (
    Array,
    Baseline,
    Scale,
    component_advantages,
    group_advantages,
    stepwise_advantages,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ESTIMATORS",
    "ComponentRewards",
    "StepTokens",
    "TooManyUnscored",
    "components_context",
    "gdpo",
    "group",
    "leave_one_out",
    "steps_context",
    "stepwise",
]

MAX_UNSCORED = 0.5
_T = TypeVar("_T")
_Estimate = Callable[[list[list[float | None]], list[list[int]]], Sequence[Sequence[Array] | Array]]
"""Takes the rewards and the rows of each group; returns the advantages of each group."""


class TooManyUnscored(RuntimeError):
    """More responses of a batch than `max_unscored` allows have no reward; the batch is not trained on."""


class StepTokens(NamedTuple):
    """The steps of a response: {step: delta}, and {step: [first, last + 1)} in its tokens."""

    deltas: Mapping[int, float]
    spans: Mapping[int, Sequence[int]]


class ComponentRewards(NamedTuple):
    """The component rewards of a response by name, without missing ones, and their weights, if there are any."""

    rewards: Mapping[str, float]
    weights: Mapping[str, float] = {}


_steps: ContextVar[Sequence[StepTokens] | None] = ContextVar("adjudge_steps", default=None)
_components: ContextVar[Sequence[ComponentRewards] | None] = ContextVar("adjudge_components", default=None)


def steps_context(steps: Sequence[StepTokens]) -> AbstractContextManager[None]:
    """Provide the steps of each row of the batch, in order, to `stepwise` within the context.

    verl passes an estimator only rewards, mask and group ids, so the steps have to bypass verl.
    """
    return _provided(_steps, steps)


def components_context(components: Sequence[ComponentRewards]) -> AbstractContextManager[None]:
    """Provide the component rewards of each row of the batch, in order, to `gdpo` within the context."""
    return _provided(_components, components)


@contextmanager
def _provided(variable: "ContextVar[_T | None]", rows: _T) -> Iterator[None]:
    token = variable.set(rows)
    try:
        yield
    finally:
        variable.reset(token)


def group(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute group advantages with the sample's standard deviation, as verl does; without it, Dr. GRPO's.

    Args:
        token_level_rewards: B x T; the sum of a row is its reward, or NaN if there is none.
        response_mask: B x T, 1 for the tokens to train.
        index: B group ids.
        config: verl's `algorithm` section. `norm_adv_by_std_in_grpo` decides whether to divide by the standard
            deviation. In its optional section `adjudge`, `max_unscored` is the share of the batch that may have no
            reward (default 0.5). The other entries are keywords of `group_advantages`: `ddof` (default 1) and `eps`.

    Returns:
        Advantages and returns, the same B x T tensor: a row's advantage on each token of its mask, 0 elsewhere.

    Raises:
        TooManyUnscored: more than `max_unscored` of the responses have no reward.
        ValueError: shapes differ, a reward is infinite, or an option is out of range.
        TypeError: an option is unknown.
    """
    return _estimate_advantages(token_level_rewards, response_mask, index, config, "mean")


def leave_one_out(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute advantages over the mean of the other responses (Rubric-Grounded RL). Otherwise the same as `group`."""
    return _estimate_advantages(token_level_rewards, response_mask, index, config, "leave_one_out")


def stepwise(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute SRaR's token advantages: that of the base reward, plus each step's on its own tokens (eqs. 4 to 6).

    Arguments and errors are those of `group`, except that the other entries of `adjudge` are keywords of
    `stepwise_advantages`, such as `variant`, `normalise` and `ddof` (default 0, as in the paper). The steps come from
    `steps_context`.

    Raises:
        RuntimeError: called outside of `steps_context`.
        ValueError: the number of steps differs from the number of rows, or `norm_adv_by_std_in_grpo` is off, which
            SRaR does not support.
    """
    otherwise = ", or add the deltas to the reward with reward_kwargs.step_deltas=fold and adv_estimator=adjudge_group"
    steps = _carried(_steps, "stepwise", "steps", len(token_level_rewards), config, otherwise)
    options = _options(config)
    max_unscored = options.pop("max_unscored")

    def estimate(rewards: list[float | None], rows: list[int]) -> Sequence[Array]:
        own = [steps[row] for row in rows]
        lengths = [response_mask.shape[1]] * len(rows)
        return stepwise_advantages(rewards, [s.deltas for s in own], [s.spans for s in own], lengths, **options)

    return _estimate(token_level_rewards, response_mask, index, max_unscored, _by_group(estimate))


def gdpo(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    config: Any = None,
    **_: object,
) -> tuple["Tensor", "Tensor"]:
    """Compute advantages from component rewards (GDPO), by `component_advantages`.

    Arguments and errors are those of `group`. The component rewards come from `components_context`; a response without
    a reward has none. Without weights, all components of a group count alike.

    Raises:
        RuntimeError: called outside of `components_context`.
        ValueError: there are component rewards of another number of rows, or the settings ask for advantages that are
            not divided by standard deviations, or for a KL penalty in the reward, which is in no component.
    """
    components = _carried(_components, "gdpo", "component rewards", len(token_level_rewards), config)
    if config is not None and config.get("use_kl_in_reward", False):
        raise ValueError(
            "adjudge_gdpo trains on component rewards, which have no KL penalty; set algorithm.use_kl_in_reward to "
            "false, and actor_rollout_ref.actor.use_kl_loss to true"
        )
    options = _options(config)
    max_unscored = options.pop("max_unscored")

    def estimate(rewards: list[list[float | None]], groups: list[list[int]]) -> list[Array]:
        own = [
            [{} if reward is None else components[row].rewards for reward, row in zip(*one, strict=True)]
            for one in zip(rewards, groups, strict=True)
        ]
        weights: list[dict[str, float]] = [{} for _ in groups]
        for of_group, rows in zip(weights, groups, strict=True):
            for row in rows:
                of_group |= components[row].weights or dict.fromkeys(components[row].rewards, 1.0)
        return [values[:, np.newaxis] for values in component_advantages(own, weights, **options)]

    return _estimate(token_level_rewards, response_mask, index, max_unscored, estimate)


def _carried(
    variable: "ContextVar[Sequence[_T] | None]", name: str, what: str, count: int, config: Any, otherwise: str = ""
) -> Sequence[_T]:
    """Return what a context provides for each of the rows of an estimator that needs standard deviations."""
    rows = variable.get()
    if rows is None:
        raise RuntimeError(
            f"adjudge_{name} was called without {what}, which verl does not pass to estimators; add "
            f"trainer_client.verl.{name} to VERL_USE_EXTERNAL_MODULES{otherwise}"
        )
    if len(rows) != count:
        raise ValueError(f"{what} of {len(rows)} responses for {count} rows; give one for each row")
    if not _divides_by_std(config):
        raise ValueError(f"adjudge_{name} needs standard deviations; set algorithm.norm_adv_by_std_in_grpo to true")
    return rows


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

    def estimate(rewards: list[float | None], rows: list[int]) -> Array:
        return group_advantages(rewards, baseline=baseline, scale=scale, **options)[:, np.newaxis]

    return _estimate(token_level_rewards, response_mask, index, max_unscored, _by_group(estimate))


def _by_group(estimate: Callable[[list[float | None], list[int]], Sequence[Array] | Array]) -> _Estimate:
    """Estimate the advantages of each group by itself."""
    return lambda rewards, groups: list(map(estimate, rewards, groups))


def _estimate(
    token_level_rewards: "Tensor",
    response_mask: "Tensor",
    index: Sequence[object] | npt.NDArray[Any],
    max_unscored: float,
    estimate: _Estimate,
) -> tuple["Tensor", "Tensor"]:
    """Estimate the advantages of all groups, and write them into the rows of a B x T tensor."""
    count = len(token_level_rewards)
    if token_level_rewards.shape != response_mask.shape or token_level_rewards.dim() != 2 or len(index) != count:
        raise ValueError(
            f"rewards of shape {tuple(token_level_rewards.shape)}, a mask of {tuple(response_mask.shape)} and "
            f"{len(index)} group ids; give B x T, B x T and B"
        )
    totals = token_level_rewards.double().sum(dim=-1).tolist()
    trained = (response_mask != 0).any(dim=-1).tolist()
    _check_unscored_share([total for total, used in zip(totals, trained, strict=True) if used], max_unscored)
    groups: dict[object, list[int]] = {}
    for row, group_id in enumerate(index):
        if trained[row]:
            groups.setdefault(group_id, []).append(row)
    advantages = torch.zeros(response_mask.shape, dtype=torch.float32)
    members = list(groups.values())
    rewards = [[None if np.isnan(totals[row]) else totals[row] for row in rows] for rows in members]
    for rows, estimated in zip(members, estimate(rewards, members), strict=True):
        for row, values in zip(rows, estimated, strict=True):
            advantages[row] = torch.as_tensor(values, dtype=torch.float32)
    advantages = advantages.to(response_mask.device) * response_mask
    return advantages, advantages


def _check_unscored_share(totals: Sequence[float], max_unscored: float) -> None:
    unscored = sum(1 for total in totals if np.isnan(total))
    if unscored > max_unscored * len(totals):
        raise TooManyUnscored(
            f"{unscored} of {len(totals)} responses have no reward, more than the share of {max_unscored:g} that "
            "max_unscored allows; 'failures' in the reward's extra info has the reasons. If the judge is only slow, "
            "raise reward_kwargs.deadline_s. To train without such responses, set +algorithm.adjudge.max_unscored=1.0"
        )


def _options(config: Any) -> dict[str, Any]:
    own = None if config is None else config.get("adjudge", None)
    return {"max_unscored": MAX_UNSCORED, **(own or {})}


def _divides_by_std(config: Any) -> bool:
    return config is None or bool(config.get("norm_adv_by_std_in_grpo", True))


ESTIMATORS = {
    "adjudge_group": group,
    "adjudge_leave_one_out": leave_one_out,
    "adjudge_stepwise": stepwise,
    "adjudge_gdpo": gdpo,
}
"""The estimators by the names under which `trainer_client.verl.plugin` registers them."""
