"""From scores to a response's reward and its steps, as an answer gives them: judged just now, or read from the ledger.

Knows no plan, no request and no database, so that the same numbers come out of both.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from judge_server.errors import InvalidRequest
from trainer_client import wire
from trainer_client.penalties import penalise
from trainer_client.rewards import RewardOutcome, reward_outcome
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.wire.recompute import StepBudgets

DEFAULT_BUDGETS = StepBudgets()


class RewardResult(NamedTuple):
    """A response's reward after penalties, what it was before (None where there was no penalty), and how it came."""

    reward: float | None
    unpenalised: float | None
    outcome: RewardOutcome


def reward_of(
    criteria: Sequence[wire.Criterion],
    scores: Sequence[float | None],
    options: wire.RewardOptions,
    on_failure: wire.FailurePolicy,
    *,
    failures: Sequence[wire.FailureKind | None],
    format_ok: bool | None,
    tokens: int | None,
    stopped: bool | None,
) -> RewardResult:
    """The reward of one response; arguments are those of `assess` and `penalise`, and so are errors.

    Raises:
        InvalidRequest: the numbers of the request make no finite reward of scores that are there.
    """
    try:
        outcome = reward_outcome(
            criteria,
            scores,
            options.mode,
            on_failure,
            failures=failures,
            kinds=options.kinds,
            format_ok=format_ok if options.mode == "stepwise" else None,
            format_weight=options.format_weight,
            gate_fraction=options.gate_fraction,
        )
        if (
            not options.has_penalties or outcome.policy_applied in wire.ZERO_POLICIES
        ):  # no penalty moves a failure off its 0
            made = RewardResult(outcome.reward, None, outcome)
        else:
            _insist_on_finite(outcome.reward, outcome)
            made = RewardResult(
                penalise(outcome.reward, options, tokens=tokens, stopped=stopped), outcome.reward, outcome
            )
    except ArithmeticError as error:
        raise _not_finite(str(error)) from error
    _insist_on_finite(made.reward, outcome)
    return made


def _insist_on_finite(reward: float | None, outcome: RewardOutcome) -> None:
    """What is scored has a finite reward: a trainer would read anything else as a failure, or train on it."""
    if reward is None and outcome.status == "unscored":
        return
    if reward is None or not math.isfinite(reward):
        raise _not_finite("nothing" if reward is None else f"{reward:g}")


def _not_finite(why: str) -> InvalidRequest:
    message = (
        f"the reward of a response that was scored is not a finite number ({why}); give weights, penalties and lengths "
        "whose sums and quotients are, neither huge nor next to 0"
    )
    return InvalidRequest(f"reward: {message}", errors=(wire.FieldError(field="reward", message=message),))


def step_rewards(
    criteria: Sequence[wire.Criterion],
    scores: Sequence[float | None],
    steps: Sequence[int | None],
    spans: Sequence[tuple[int, int, int]],
    budgets: StepBudgets = DEFAULT_BUDGETS,
) -> tuple[wire.StepReward, ...]:
    """What each step is worth.

    Args:
        criteria: M criteria.
        scores: M scores, None where the judge failed.
        steps: M step numbers that the verdicts name, None where they name none.
        spans: (number, start, end) of the whole response, as step 0, and of its steps.
        budgets: what all criteria of a kind together give or take.
    """
    named = [NO_STEP if step is None else step for step in steps]
    highest = max([number for number, _, _ in spans], default=0)
    deltas = step_deltas(
        criteria,
        scores,
        named,
        highest,
        suggest=budgets.suggest,
        pitfall=budgets.pitfall,
        bonus=budgets.bonus,
    )
    for delta in deltas.values():
        if delta is not None and not math.isfinite(delta):
            raise _not_finite(f"a step is worth {delta:g}")
    return tuple([wire.StepReward(number=n, start=start, end=end, delta=deltas.get(n)) for n, start, end in spans])
