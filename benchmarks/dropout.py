"""Simulate what rubric dropout saves, and the noise that it adds, for groups of 8 responses to 12 criteria.

*Calls* is the share of judge calls made. *Added noise* is the deviation that dropout adds to a reward's difference from
its group's mean, as a share of that difference's own deviation. *Order kept* is the share of pairs of responses of a
group with different rewards whose order survives, a tie counting one half.
"""

import argparse
import random
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, pstdev

from benchmarks.report import publish
from trainer_client.dropout import CriteriaSample, draw_sample
from trainer_client.rewards import reward
from trainer_client.wire import Criterion

CRITERIA, GROUP, GROUPS = 12, 8, 400
KEEPS = (0.75, 0.5, 0.25)
WEIGHTS = {"equal weights": 1, "weights 1 to 5": 5}


def order_kept(rewards: Sequence[float], truth: Sequence[float]) -> list[float]:
    """Return 1, 0.5 or 0 for each pair with different truths: whether the rewards order it alike."""
    found = []
    for i, j in combinations(range(len(truth)), 2):
        if truth[i] != truth[j]:
            gap = (rewards[i] - rewards[j]) * (1 if truth[i] > truth[j] else -1)
            found.append(1.0 if gap > 1e-12 else 0.5 if gap >= -1e-12 else 0.0)
    return found


def row(keep: float, seed: int) -> dict[str, str]:
    """Return the row of a share of the criteria that is kept."""
    found = {"keep": f"{keep}", "calls": f"{keep:.0%}"}
    for name, largest in WEIGHTS.items():
        noise, kept = _simulate(keep, largest, random.Random(seed))  # nosec B311
        found |= {f"added noise, {name}": f"{noise:.2f}", f"order kept, {name}": f"{kept:.2f}"}
    return found


def _simulate(keep: float, largest: int, rng: random.Random) -> tuple[float, float]:
    criteria = [Criterion(id=f"c{n}", description="?", weight=n % largest + 1) for n in range(CRITERIA)]
    own, added, kept = [], [], []
    for number in range(GROUPS):
        met = [rng.uniform(0.1, 0.9) for _ in criteria]
        scores = [[float(rng.random() < p) for p in met] for _ in range(GROUP)]
        sample = draw_sample(criteria, keep, by_program=[False] * CRITERIA, seed=0, run="r", step=number, group="g")
        full = [_reward(criteria, one, None) for one in scores]
        drawn = [_reward(criteria, one, sample) for one in scores]
        own += [r - fmean(full) for r in full]
        added += [(d - fmean(drawn)) - (r - fmean(full)) for r, d in zip(full, drawn, strict=True)]
        kept += order_kept(drawn, full)
    return pstdev(added) / pstdev(own), fmean(kept)


def _reward(criteria: Sequence[Criterion], scores: Sequence[float], sample: CriteriaSample | None) -> float:
    left = scores if sample is None else [None if gone else s for s, gone in zip(scores, sample.left_out, strict=True)]
    value = reward(criteria, left, "weighted_mean", sample=sample)
    assert value is not None
    return value


def main() -> None:
    """Simulate and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    publish("dropout", f"Rubric dropout in {GROUPS} simulated groups", [row(keep, given.seed) for keep in KEEPS])


if __name__ == "__main__":
    main()
