"""Numbers that are missing from DRO's appendix D, the values used instead, and variations that show their effect."""

from collections.abc import Mapping
from typing import Any

from benchmarks.papers.simulation import Setup


def choices(setup: Setup, trials: int, tokens: int, percent: float, shares: tuple[float, ...]) -> list[dict[str, str]]:
    """Return a row for each missing number: its name, its value in this run, and the reason for the default."""
    s = setup
    return [
        {"number": number, "here": here, "why": why}
        for number, here, why in (
            ("rollouts in a group", f"{s.group_size}", "the paper trains with 16 (F.2)"),
            (
                "tokens of a reference",
                f"{s.shortest:,} to {s.longest:,}",
                "hundreds of tokens; averages of 116, 258 and 1,204 (table 3)",
            ),
            ("trials", f"{trials:,}", "ours"),
            (
                "reflective tokens: mean and deviation",
                f"{s.reflective_mean:g}, {s.reflective_deviation:g}",
                "ours: in the middle, noticeably varying",
            ),
            ("correlation among reflective tokens", f"{s.reflective_correlation:g}", "ours; the paper has some"),
            (
                "others near 1: share, mean, deviation",
                f"{s.sure_share:g}, {s.sure_mean:g}, {s.sure_deviation:g}",
                "ours: most tokens are certain",
            ),
            (
                "others near 0: share, mean, deviation",
                f"{s.stray_share:g}, {s.stray_mean:g}, {s.stray_deviation:g}",
                "ours: another wording than the policy's",
            ),
            (
                "others between: share, mean, deviation",
                f"{s.middling_share:g}, {s.middling_mean:g}, {s.middling_deviation:g}",
                "ours: the rest, varying for no reason",
            ),
            ("correlation among the others", f"{s.noise_correlation:g}", "the appendix names none"),
            ("lowest certainty", f"{s.floor:g}", "ours: a Gaussian has none, and log needs one"),
            (
                "beta and clip of R3",
                f"{s.beta:g}, {s.p_min:g} to {s.p_max:g}",
                "defaults of trainer_client.dro (ours)",
            ),
            (
                "shares of reflective tokens",
                f"{min(shares):g}% to {max(shares):g}%",
                "ours; the typical ones are small",
            ),
            (
                "reflective tokens as references grow",
                f"{tokens}, or {percent:g}%",
                "three are in the paper's example (figure 2)",
            ),
            ("z-scores of several tokens", s.against, "ours: a rollout's mean; or each token by itself"),
        )
    ]


VARIATIONS: Mapping[str, Mapping[str, Any]] = {
    "beta 0: clipping alone": {"beta": 0.0},
    "no clipping": {"p_min": 0.0, "p_max": 1.0},
    "beta 5": {"beta": 5.0},
    "beta 20": {"beta": 20.0},
    "beta 50": {"beta": 50.0},
    "reflective deviation 0.10": {"reflective_deviation": 0.10},
    "reflective deviation 0.25": {"reflective_deviation": 0.25},
    "reflective correlation 0": {"reflective_correlation": 0.0},
    "reflective correlation 0.9": {"reflective_correlation": 0.9},
    "tokens between vary by 0.10": {"middling_deviation": 0.10},
    "tokens between vary by 0.15": {"middling_deviation": 0.15},
    "half of the tokens between": {"middling_share": 0.5, "sure_share": 0.35},
    "no tokens near 0": {"stray_share": 0.0},
    "lowest certainty 1e-4": {"floor": 1e-4},
    "noise correlated by 0.05": {"noise_correlation": 0.05},
    "noise correlated by 0.2": {"noise_correlation": 0.2},
    "groups of 8": {"group_size": 8},
    "correlation with each token": {"against": "each"},
}
"""Changes to `Setup`, made one at a time, by name."""
