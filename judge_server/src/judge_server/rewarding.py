"""From scores to a response's reward and its steps, as an answer gives them: judged just now, or read from the ledger.

Knows no plan, no request and no database, so that the same numbers come out of both.
"""

from collections.abc import Sequence
from typing import NamedTuple

from trainer_client import wire
from trainer_client.penalties import penalise
from trainer_client.rewards import RewardOutcome, assess
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.wire.recompute import StepBudgets

DEFAULT_BUDGETS = StepBudgets()


class Rewarded(NamedTuple):
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
) -> Rewarded:
    """The reward of one response; arguments and errors are those of `assess` and `penalise`."""
    outcome = assess(
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
    if not options.penalises or outcome.policy_applied in wire.ZEROING:  # no penalty moves a failure off its 0
        return Rewarded(outcome.reward, None, outcome)
    return Rewarded(penalise(outcome.reward, options, tokens=tokens, stopped=stopped), outcome.reward, outcome)


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
    return tuple([wire.StepReward(number=n, start=start, end=end, delta=deltas.get(n)) for n, start, end in spans])
