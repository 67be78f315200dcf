"""Show what soft rewards and rubric dropout do to the differences within a group.

The first table reads verdicts that `adjudge score --jsonl` wrote, and labels that say which responses are right. It
computes the weighted mean of the same verdicts twice, from scores and from probabilities, and counts groups whose
rewards are all equal. *Right first* is the share of pairs of a right and a wrong response of one group in which the
right one has the higher reward, a tie counting one half.

The second table simulates dropout, for groups of 8 responses to 12 criteria. *Calls* is the share of judge calls made.
*Added noise* is the deviation that dropout adds to a reward's difference from its group's mean, as a share of that
difference's own deviation; *equal weights* and *weights 1 to 5*. *Kept order* is the share of pairs of responses of a
group with different rewards whose order survives, a tie counting one half.
"""

import argparse
import json
import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, pstdev

from trainer_client.dropout import CriteriaSample, draw_sample
from trainer_client.rewards import reward
from trainer_client.wire import Criterion, GroupRewards, VerdictUse

CRITERIA, GROUP, GROUPS = 12, 8, 400
KEEPS = (0.75, 0.5, 0.25)


def pair_share(rewards: Sequence[float], truth: Sequence[float]) -> list[float]:
    """Return 1, 0.5 or 0 for each pair with different truths: whether the rewards order it alike."""
    found = []
    for i, j in combinations(range(len(truth)), 2):
        if truth[i] != truth[j]:
            gap = (rewards[i] - rewards[j]) * (1 if truth[i] > truth[j] else -1)
            found.append(1.0 if gap > 1e-12 else 0.5 if gap >= -1e-12 else 0.0)
    return found


def soft_rows(
    groups: Sequence[GroupRewards], criteria: Sequence[Criterion], labels: dict[str, list[bool]]
) -> list[str]:
    """Return the table of hard and soft rewards of the same verdicts."""
    rows = [
        "| reward | groups | tied groups | mean deviation in a group | pairs | right first |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    uses: tuple[VerdictUse, ...] = ("verdict", "probability")
    for use in uses:
        tied, deviations, pairs = 0, [], []
        for group in groups:
            values = [[v.value(use) for v in response.verdicts] for response in group.responses]
            rewards = [reward(criteria, one, "weighted_mean") for one in values]
            known = [r for r in rewards if r is not None]
            tied += max(known) - min(known) < 1e-12
            deviations.append(pstdev(known))
            pairs += pair_share(known, [float(right) for right in labels[group.id]])
        rows.append(f"| {use} | {len(groups)} | {tied} | {fmean(deviations):.3f} | {len(pairs)} | {fmean(pairs):.2f} |")
    return rows


def dropout_rows(seed: int) -> list[str]:
    """Return the table of what dropout saves and what noise it adds."""
    rows = [
        "| keep | calls | added noise, equal weights | kept order | added noise, weights 1 to 5 | kept order |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for keep in KEEPS:
        cells = [part for weighted in (False, True) for part in _noise(keep, weighted, random.Random(seed))]  # nosec B311
        rows.append(f"| {keep} | {keep:.0%} | " + " | ".join(cells) + " |")
    return rows


def _noise(keep: float, weighted: bool, rng: random.Random) -> tuple[str, str]:
    criteria = [Criterion(id=f"c{n}", description="?", weight=n % 5 + 1 if weighted else 1) for n in range(CRITERIA)]
    own, added, kept = [], [], []
    for number in range(GROUPS):
        met = [rng.uniform(0.1, 0.9) for _ in criteria]
        scores = [[float(rng.random() < p) for p in met] for _ in range(GROUP)]
        sample = draw_sample(criteria, keep, by_program=[False] * CRITERIA, seed=0, run="r", step=number, group="g")
        full = [_reward(criteria, one, None) for one in scores]
        drawn = [_reward(criteria, one, sample) for one in scores]
        own += [r - fmean(full) for r in full]
        added += [(d - fmean(drawn)) - (r - fmean(full)) for r, d in zip(full, drawn, strict=True)]
        kept += pair_share(drawn, full)
    return f"{pstdev(added) / pstdev(own):.2f}", f"{fmean(kept):.2f}"


def _reward(criteria: Sequence[Criterion], scores: Sequence[float], sample: CriteriaSample | None) -> float:
    left = scores if sample is None else [None if gone else s for s, gone in zip(scores, sample.left_out, strict=True)]
    value = reward(criteria, left, "weighted_mean", sample=sample)
    assert value is not None
    return value


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scored", type=Path, help="what `adjudge score --jsonl` wrote")
    parser.add_argument("--rubric", type=Path, default=Path("examples/gsm8k.rubric.json"))
    parser.add_argument("--labels", type=Path, default=Path("examples/gsm8k.labels.jsonl"))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.scored is not None:
        rubric = json.loads(given.rubric.read_text())
        criteria = [Criterion.model_validate(c) for c in rubric["criteria"]]
        lines = [json.loads(line) for line in given.labels.read_text().splitlines()]
        groups = [GroupRewards.model_validate_json(line) for line in given.scored.read_text().splitlines()]
        print("\n".join(soft_rows(groups, criteria, {one["id"]: one["is_correct"] for one in lines})), end="\n\n")
    print("\n".join(dropout_rows(given.seed)))


if __name__ == "__main__":
    main()
