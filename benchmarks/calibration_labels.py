"""From how many labels on does each way of calibrating help? `python -m benchmarks.calibration_labels` simulates it.

A judge's raw log-odds are drawn for met and unmet criteria; labels follow the true probability, which differs from the
raw one in four ways. Each method is fitted on n labels, and compared with the raw probability on 20,000 others: by how
much its Brier score is lower, and in which share of the draws it is.
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.report import publish
from judge_server.evaluation.metrics import Floats
from judge_server.fitting.calibrations import METHODS, fit_map

TRUTHS: Mapping[str, Callable[[Floats], Floats]] = {
    "overconfident": lambda odds: 0.45 * odds,
    "overconfident, says yes": lambda odds: 0.45 * odds - 0.7,
    "asymmetric": lambda odds: np.where(odds > 0, 0.25, 0.9) * odds - 0.2,
    "already calibrated": lambda odds: odds,
}
"""The true log-odds of met as a function of the raw log-odds."""

SIZES = (20, 40, 60, 100, 200, 500, 1000, 3000)


def main() -> None:
    """Simulate and publish the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100, help="draws of labels per size")
    given = parser.parse_args()
    rows = []
    for truth, log_odds in TRUTHS.items():
        for size in SIZES:
            gains: dict[str, list[float]] = {method: [] for method in METHODS}
            for draw in range(given.draws):
                rng = np.random.default_rng([draw, size])
                raw, labels = _sample(rng, size, log_odds)
                test, held = _sample(np.random.default_rng([draw, 7]), 20_000, log_odds)
                grid = np.linspace(0.0005, 0.9995, 1000)
                for method in METHODS:
                    try:
                        fitted = fit_map(raw.tolist(), labels.tolist(), method)
                    except ValueError:
                        gains[method].append(0.0)  # nothing is fitted, so the raw probability stays
                        continue
                    mapped = np.interp(test, grid, [fitted.calibrate(float(p)) for p in grid])
                    gains[method].append(float(np.mean((test - held) ** 2) - np.mean((mapped - held) ** 2)))
            rows.append(
                {"truth": truth, "labels": size}
                | {
                    m: f"{np.mean(g):+.4f} ± {1.96 * np.std(g) / len(g) ** 0.5:.4f} ({np.mean(np.array(g) > 0):.0%})"
                    for m, g in gains.items()
                }
            )
    publish(
        "calibration_labels",
        "Brier score saved by calibrating, by method and number of labels",
        rows,
        [f"mean of {given.draws} draws ± its 95% interval, and the share of draws with a gain"],
    )


def _sample(rng: np.random.Generator, size: int, log_odds: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    raw = rng.normal(0.4, 2.0, size)
    labels = rng.random(size) < 1 / (1 + np.exp(-log_odds(raw)))
    return 1 / (1 + np.exp(-raw)), labels.astype(float)


if __name__ == "__main__":
    main()
