"""Run histories as the ledger aggregates them, healthy unless changed, drawn from a seed."""

import random
from collections.abc import Callable
from typing import Any

from rubric_store.ledger.rows import ControlVerdict, MonitoredRun, SignalSums, StepSums

RESPONSES, GROUPS = 64, 16

Curve = Callable[[int], float]


def level(value: float) -> Curve:
    """The same value at every step."""
    return lambda _: value


def ramp(start: float, end: float, first: int, last: int) -> Curve:
    """A value that moves from one level to another between two steps."""

    def at(step: int) -> float:
        share = min(1.0, max(0.0, (step - first) / (last - first)))
        return start + (end - start) * share

    return at


SIX_TENTHS, TOKENS, NONE, A_TENTH, SOME = level(0.6), level(200.0), level(0.0), level(0.1), level(0.3)


def pairs(signal: str, name: str, step: int, drawn: list[tuple[float, float]], correlation: float = 0.0) -> SignalSums:
    """The sums of pairs that correlate within groups as given."""
    x, y = [a for a, _ in drawn], [b for _, b in drawn]
    within = len(drawn) - GROUPS
    return SignalSums(
        signal, name, step, len(drawn), sum(x), sum(y), sum(a * a for a in x), sum(b * b for b in y),
        sum(a * b for a, b in drawn), within, float(within), float(within), correlation * within,
    )  # fmt: skip


def history(
    steps: int = 60,
    *,
    seed: int = 0,
    reward: Curve = SIX_TENTHS,
    shadow: Curve = SIX_TENTHS,
    gold: Curve = SIX_TENTHS,
    length: Curve = TOKENS,
    pull: float = 0.0,
    unscored: Curve = NONE,
    overlap: Curve = A_TENTH,
    met: Curve = SOME,
    disagreement: Curve = A_TENTH,
    control: list[ControlVerdict] | None = None,
) -> MonitoredRun:
    """A run of this many steps whose means follow the curves, with the noise of 64 responses a step."""
    chance = random.Random(seed)

    def drawn(mean: float) -> float:
        return float(chance.random() < mean)

    sums: list[StepSums] = []
    signals: list[SignalSums] = []
    gold_signals: list[SignalSums] = []
    for step in range(steps):
        rewards = [drawn(reward(step)) for _ in range(RESPONSES)]
        failed = sum(drawn(unscored(step)) for _ in range(RESPONSES))
        sums.append(StepSums(step, RESPONSES, int(failed), RESPONSES, sum(rewards), sum(rewards)))
        signals.append(pairs("shadow", "right", step, [(one, drawn(shadow(step))) for one in rewards]))
        lengths = [chance.gauss(length(step), 40) for _ in rewards]
        signals.append(pairs("length", "tokens", step, [*zip(rewards, lengths, strict=True)], pull))
        signals.append(pairs("overlap", "", step, [(0.0, drawn(overlap(step))) for _ in rewards]))
        asked = [(one := drawn(0.5), one * drawn(disagreement(step))) for _ in rewards]
        signals += [pairs("members", name, step, asked) for name in ("", "c")]
        groups = [drawn(met(step)) for _ in range(GROUPS)]
        signals.append(SignalSums("criterion", "c", step, GROUPS, sum(groups), 0, 0, 0, 0, 0, 0, 0, 0))
        sampled = [(drawn(0.6), drawn(gold(step))) for _ in range(8)]
        gold_signals.append(pairs("gold", "", step, sampled)._replace(within=0))
        gold_signals.append(pairs("gold", "c", step, sampled)._replace(within=0))
    return MonitoredRun(sums, signals, gold_signals, control or [])


def control_round(number: int, fingerprint: str, scores: list[float | None], **fields: Any) -> list[ControlVerdict]:
    """One round of the control set, judged at step 10 x number."""
    return [
        ControlVerdict(bytes([number]), 10 * number, fingerprint, f"g{place}", b"r", "c", score)._replace(**fields)
        for place, score in enumerate(scores)
    ]
