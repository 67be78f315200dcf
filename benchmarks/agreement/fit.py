"""`python -m benchmarks.agreement.fit DATA`: fit the built-in calibrations from replies on the half `fit`.

Run `python -m benchmarks.agreement DATA --half fit --contenders adjudge stepwise` first: this command reads its stored
replies and does not load a model. A map is Platt scaling: logit(p) = slope * logit(raw) + intercept, with one slope and
a separate intercept for pitfalls. Every task has the same weight, however many items it has.

`--pitfalls` fits only the intercept of pitfalls. Use it if only the wording of pitfalls has changed, so that the
prompts and maps of all other criteria are still valid.
"""

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.store import ReplyStore
from benchmarks.agreement.verdicts import Verdicts, load_verdicts
from judge_server.judging.calibration import builtin_calibrations
from judge_server.prompts import PromptForm, PromptTemplates
from judge_server.prompts.fencing import Fence

MAPS = Path("judge_server/src/judge_server/prompts/calibrations.json")
Calibrated: TypeAlias = Literal["binary", "stepwise"]
CONTENDER_OF: Mapping[Calibrated, str] = {"binary": "adjudge", "stepwise": "stepwise"}
"""The protocols with a probability of yes, and the contender for each."""

PITFALLS = "gsm8k-pitfall"
"""The task that `--pitfalls` fits the intercept on. The other pitfall task asks whether there is any mistake at all,
which these models answer no better than chance, so it could only shift the threshold."""

RIDGE = 0.02
"""The penalty on the squares of the slope and the intercepts, which keeps maps from few items close to neutral."""

_STEPS = 50
_CLIP = 1e-6


def fit_map(items: Sequence[Item], verdicts: Verdicts) -> dict[str, dict[str, float]]:
    """Fit the default map and the map for pitfalls.

    Args:
        items: labelled items; those without a verdict are left out.
        verdicts: verdicts by the item's key; only the raw probability is used.

    Raises:
        ValueError: the labels do not increase with the raw probabilities, so no map preserves their order.
    """
    known = [item for item in items if item.key in verdicts]
    log_odds, labels, weights = _observations(known, verdicts)
    pitfall = np.array([item.kind == "pitfall" for item in known], dtype=float)
    features = np.column_stack([log_odds, 1 - pitfall, pitfall])
    slope, intercept, pitfall_intercept = _logistic(features, labels, weights)
    if slope <= 0:
        raise ValueError(
            f"the fitted slope is {slope:.3f}: labels do not increase with raw probabilities; do not ship a map"
        )
    return {
        "default": {"slope": round(slope, 4), "intercept": round(intercept, 4)},
        "pitfall": {"slope": round(slope, 4), "intercept": round(pitfall_intercept, 4)},
    }


def refit_pitfalls(
    items: Sequence[Item], verdicts: Verdicts, shipped: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Fit the intercept of pitfalls with the slope of the shipped default map; return both maps.

    Args:
        items: labelled pitfalls; those without a verdict are left out.
        verdicts: as for `fit_map`.
        shipped: the calibration whose default map is kept.
    """
    log_odds, labels, weights = _observations([item for item in items if item.key in verdicts], verdicts)
    slope = shipped["default"]["slope"]
    (intercept,) = _logistic(np.ones((len(labels), 1)), labels, weights, offset=slope * log_odds)
    return {"default": shipped["default"], "pitfall": {"slope": slope, "intercept": round(intercept, 4)}}


def _observations(
    items: Sequence[Item], verdicts: Verdicts
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the log-odds of the raw probability, the label (0 or 1) and the weight of each item; shape (n,) each."""
    raw = np.clip([verdicts[item.key].raw_probability for item in items], _CLIP, 1 - _CLIP)
    sizes = Counter(item.task for item in items)
    weights = np.array([1 / sizes[item.task] for item in items])
    return np.log(raw / (1 - raw)), np.array([item.label for item in items], float), weights


def _logistic(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    weights: NDArray[np.float64],
    offset: NDArray[np.float64] | float = 0.0,
) -> list[float]:
    """Fit a logistic regression by Newton's method; shapes (n, k), (n,), (n,), (n,) to the k coefficients."""
    beta = np.zeros(x.shape[1])
    weights = weights / weights.sum()
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-(x @ beta + offset)))
        gradient = x.T @ (weights * (p - y)) + RIDGE * beta
        hessian = (x.T * (weights * p * (1 - p))) @ x + RIDGE * np.eye(len(beta))
        beta = beta - np.linalg.solve(hessian, gradient)
    return [float(value) for value in beta]


def digest_of(items: Sequence[Item], before: str | None = None) -> str:
    """Compute the digest of the fitted items (keys and labels, in any order) and of the digest `before`, if given."""
    lines = sorted([f"{item.key} {int(item.label)}" for item in items] + ([before] if before else []))
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def entry(
    weights: str,
    protocol: Calibrated,
    name: str,
    items: Sequence[Item],
    maps: Mapping[str, Mapping[str, float]],
    shipped: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build an entry of `calibrations.json`; `shipped` is the calibration of which a part is kept."""
    templates = PromptTemplates(PromptForm(protocol), Fence(b"any secret of 16 bytes or more"))
    return {
        "weights": [weights],
        "protocol": protocol,
        "templates": templates.digest,
        "calibration": {
            "name": name,
            "fitted_on": digest_of(items, shipped and shipped["fitted_on"]),
            "items": len(items) + (shipped["items"] if shipped else 0),
            "default": maps["default"],
            "by_kind": {"pitfall": maps["pitfall"]},
        },
    }


def _shipped(maps: Sequence[Mapping[str, Any]], weights: str, protocol: Calibrated) -> Mapping[str, Any]:
    """Return the shipped calibration of a model's weights under a protocol; raise `StopIteration` if there is none."""
    return next(one["calibration"] for one in maps if weights in one["weights"] and one["protocol"] == protocol)


def main() -> None:
    """Fit and print each model's maps; write the file with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--size", type=int, default=150, help="maximum items per task")
    parser.add_argument("--longest", type=int, default=6000, help="maximum characters of an item's texts")
    parser.add_argument("--name", default="2026-11-v2", help="the version of the maps")
    parser.add_argument("--pitfalls", action="store_true", help="fit only the intercept of pitfalls")
    parser.add_argument("--write", action="store_true", help=f"replace the maps in {MAPS}")
    given = parser.parse_args()
    names = [PITFALLS] if given.pitfalls else tasks_of("fit")
    tasks = load_items(given.data, "fit", names, given.size, given.longest)
    items = [item for found in tasks.values() for item in found]
    kept = json.loads(MAPS.read_text(encoding="utf-8"))
    maps = []
    for model in given.models:
        latest = ReplyStore.of_model(model).latest
        for protocol, contender in CONTENDER_OF.items():
            verdicts = {} if latest is None else load_verdicts(items, contender, model)
            judged = [item for item in items if item.key in verdicts]
            if latest is None or not judged:
                parser.error(
                    f"there are no stored {protocol} replies of {model}; run python -m benchmarks.agreement "
                    f"{given.data} --half fit --contenders {contender} first"
                )
            shipped = _shipped(kept["maps"], latest.weights, protocol) if given.pitfalls else None
            fitted = fit_map(judged, verdicts) if shipped is None else refit_pitfalls(judged, verdicts, shipped)
            maps.append(entry(latest.weights, protocol, given.name, judged, fitted, shipped))
            print(model, protocol, json.dumps(maps[-1]["calibration"]))
    if given.write:
        MAPS.write_text(json.dumps({**kept, "maps": maps}, indent=2) + "\n", encoding="utf-8")
        builtin_calibrations.cache_clear()
        print(f"wrote {len(builtin_calibrations().maps)} maps to {MAPS}")


if __name__ == "__main__":
    main()
