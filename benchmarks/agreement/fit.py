"""`python -m benchmarks.agreement.fit DATA`: fit the calibrations that ship, from replies on the half `fit`.

Run `python -m benchmarks.agreement DATA --half fit --contenders adjudge stepwise` first: this reads its stored replies
and loads no model. A map is Platt scaling: logit(p) = slope * logit(raw) + intercept, with one slope, and a separate
intercept for pitfalls. Every task counts the same, however many items it has.

`--pitfalls` fits that intercept alone and keeps the rest: for when only the words around a pitfall have changed, so
that the prompts of all other criteria, and with them their maps, are what they were.
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
"""The protocols that have a probability of yes, and the contender that asks in each."""

PITFALLS = "gsm8k-pitfall"
"""The task of which the intercept of pitfalls is fitted alone. The other task of pitfalls asks whether there is any
mistake at all, which these models answer no better than chance: it could only move the threshold."""

RIDGE = 0.02
"""The penalty on the square of the slope and of each intercept, which keeps maps of few items near neutral."""

_STEPS = 50
_CLIP = 1e-6


def fit_map(items: Sequence[Item], verdicts: Verdicts) -> dict[str, dict[str, float]]:
    """Fit the map of the default kind and that of pitfalls.

    Args:
        items: labelled items; those without a verdict are left out.
        verdicts: by the item's key, of which the raw probability counts.

    Raises:
        ValueError: the labels do not rise with the raw probabilities, so that no map keeps their order.
    """
    known = [item for item in items if item.key in verdicts]
    log_odds, labels, weights = _observations(known, verdicts)
    pitfall = np.array([item.kind == "pitfall" for item in known], dtype=float)
    features = np.column_stack([log_odds, 1 - pitfall, pitfall])
    slope, intercept, of_pitfalls = _logistic(features, labels, weights)
    if slope <= 0:
        raise ValueError(f"the fitted slope is {slope:.3f}: labels do not rise with raw probabilities, so ship no map")
    return {
        "default": {"slope": round(slope, 4), "intercept": round(intercept, 4)},
        "pitfall": {"slope": round(slope, 4), "intercept": round(of_pitfalls, 4)},
    }


def refit_pitfalls(
    items: Sequence[Item], verdicts: Verdicts, shipped: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Fit the intercept of pitfalls under the shipped default map's slope; returns both maps.

    Args:
        items: labelled pitfalls; those without a verdict are left out.
        verdicts: as for `fit_map`.
        shipped: the calibration whose default map stays.
    """
    log_odds, labels, weights = _observations([item for item in items if item.key in verdicts], verdicts)
    slope = shipped["default"]["slope"]
    (intercept,) = _logistic(np.ones((len(labels), 1)), labels, weights, offset=slope * log_odds)
    return {"default": shipped["default"], "pitfall": {"slope": slope, "intercept": round(intercept, 4)}}


def _observations(
    items: Sequence[Item], verdicts: Verdicts
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Log-odds of the raw probability, label as 0 or 1, and weight of each item; shape (n,) each."""
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
    """Coefficients of a logistic regression by Newton's method; shapes (n, k), (n,), (n,), (n,) to (k,)."""
    beta = np.zeros(x.shape[1])
    weights = weights / weights.sum()
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-(x @ beta + offset)))
        gradient = x.T @ (weights * (p - y)) + RIDGE * beta
        hessian = (x.T * (weights * p * (1 - p))) @ x + RIDGE * np.eye(len(beta))
        beta = beta - np.linalg.solve(hessian, gradient)
    return [float(value) for value in beta]


def digest_of(items: Sequence[Item], before: str | None = None) -> str:
    """The digest of what was fitted on: each item's key and label, in any order, and the digest of what stays."""
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
    """A fitted calibration as `calibrations.json` holds it; `shipped` is the one of which a part stays."""
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
    """The shipped calibration of a model's weights under a protocol; raises `StopIteration` if none ships."""
    return next(one["calibration"] for one in maps if weights in one["weights"] and one["protocol"] == protocol)


def main() -> None:
    """Fit each model's map, print it, and write the file where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--size", type=int, default=150, help="most items per task")
    parser.add_argument("--longest", type=int, default=6000, help="characters of an item's texts")
    parser.add_argument("--name", default="2026-11-v2", help="the version of the maps")
    parser.add_argument("--pitfalls", action="store_true", help="fit the intercept of pitfalls alone, keep the rest")
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
                    f"no {protocol} reply of {model} is stored; run python -m benchmarks.agreement {given.data} "
                    f"--half fit --contenders {contender} first"
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
