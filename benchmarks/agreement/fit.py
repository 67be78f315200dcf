"""`python -m benchmarks.agreement.fit DATA`: fit the built-in calibrations from replies on the half `fit`.

Run `python -m benchmarks.agreement DATA --half fit --contenders contextual contextual-stepwise` first: this command
reads its stored replies and does not load a model. Two numbers and a weight are fitted:

    logit(p) = slope * (logit(p of yes) - weight * logit(p of yes about an empty response)) + intercept

The weight is kept between 0 and 1. Every task counts the same, however many items it has.

`--models NAME=URL` names the same weights twice, as llama.cpp and as another engine loads them. The maps then hold for
both, and are fitted on the replies of whichever has judged more items.
"""

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

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
CONTENDER_OF: Mapping[Calibrated, str] = {"binary": "contextual", "stepwise": "contextual-stepwise"}
"""The protocols with a probability of yes, and the contender for each."""

RIDGE = 0.02
"""The penalty on the squares of the coefficients, which keeps maps from few items close to neutral."""

_STEPS = 50
_CLIP = 1e-6


class FittedMap(NamedTuple):
    """A map from log-odds to calibrated ones, and the weight of those about an empty response (0: not asked)."""

    slope: float
    intercept: float
    weight: float


def fit_map(items: Sequence[Item], verdicts: Verdicts) -> FittedMap:
    """Fit the map, and the weight if the verdicts have probabilities about an empty response.

    Args:
        items: labelled items; those without a verdict are left out.
        verdicts: verdicts by the item's key; only their uncalibrated probabilities are used.

    Raises:
        ValueError: the labels do not increase with the probabilities, so no map preserves their order.
    """
    known = [verdicts[item.key] for item in items if item.key in verdicts]
    labelled = [item for item in items if item.key in verdicts]
    sizes = Counter(item.task for item in labelled)
    weights = np.array([1 / sizes[item.task] for item in labelled])
    labels = np.array([item.label for item in labelled], float)
    given = log_odds([one.asked_probability for one in known])
    ones = np.ones(len(known))
    weight = 0.0
    without = [one.content_free_probability for one in known if one.content_free_probability is not None]
    if known and len(without) == len(known):
        empty = log_odds(without)
        slope, shift, _ = _logistic(np.column_stack([given, empty, ones]), labels, weights)
        weight = round(float(np.clip(-shift / slope, 0.0, 1.0)), 2) if slope > 0 else 0.0
        given = given - weight * empty
    slope, intercept = _logistic(np.column_stack([given, ones]), labels, weights)
    if slope <= 0:
        raise ValueError(
            f"the fitted slope is {slope:.3f}: labels do not increase with raw probabilities; do not ship a map"
        )
    return FittedMap(round(slope, 4), round(intercept, 4), weight)


def log_odds(probabilities: Sequence[float]) -> NDArray[np.float64]:
    """Return the log-odds, shape (n,); probabilities at 0 and 1 count as 1e-6 away from them."""
    clipped = np.clip(probabilities, _CLIP, 1 - _CLIP)
    odds: NDArray[np.float64] = np.log(clipped / (1 - clipped))
    return odds


def _logistic(x: NDArray[np.float64], y: NDArray[np.float64], weights: NDArray[np.float64]) -> list[float]:
    """Fit a logistic regression by Newton's method; shapes (n, k), (n,), (n,) to the k coefficients."""
    beta = np.zeros(x.shape[1])
    weights = weights / weights.sum()
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-(x @ beta)))
        gradient = x.T @ (weights * (p - y)) + RIDGE * beta
        hessian = (x.T * (weights * p * (1 - p))) @ x + RIDGE * np.eye(len(beta))
        beta = beta - np.linalg.solve(hessian, gradient)
    return [float(value) for value in beta]


def digest_of(items: Sequence[Item]) -> str:
    """Compute the digest of the fitted items: keys and labels, in any order."""
    lines = sorted(f"{item.key} {int(item.label)}" for item in items)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def entry(
    weights: Sequence[str], protocol: Calibrated, name: str, items: Sequence[Item], fitted: FittedMap
) -> dict[str, Any]:
    """Build an entry of `calibrations.json`; `weights` are the digests of the same weights in several formats."""
    templates = PromptTemplates(PromptForm(protocol), Fence(b"any secret of 16 bytes or more"))
    return {
        "weights": list(weights),
        "protocol": protocol,
        "templates": templates.digest,
        "content_free_weight": fitted.weight or None,
        "calibration": {
            "name": name,
            "fitted_on": digest_of(items),
            "items": len(items),
            "default": {"slope": fitted.slope, "intercept": fitted.intercept},
        },
    }


def known_formats(weights: Sequence[str], maps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return these digests, and those that entries of `calibrations.json` list as other formats of the same weights."""
    listed = [one["weights"] for one in maps if not set(weights).isdisjoint(one["weights"])]
    return list(dict.fromkeys([*chain.from_iterable(listed), *weights]))


def main() -> None:
    """Fit and print each model's maps; write the file with `--write`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME[=URL]",
        default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"],
        help="models; with a URL, also the engine that runs the same weights in another format",
    )
    parser.add_argument("--size", type=int, default=150, help="maximum items per task")
    parser.add_argument("--longest", type=int, default=6000, help="maximum characters of an item's texts")
    parser.add_argument("--name", default="2026-11-v4", help="the version of the maps")
    parser.add_argument("--write", action="store_true", help=f"replace the maps in {MAPS}")
    given = parser.parse_args()
    tasks = load_items(given.data, "fit", tasks_of("fit"), given.size, given.longest)
    items = [item for found in tasks.values() for item in found]
    kept = json.loads(MAPS.read_text(encoding="utf-8"))
    maps = []
    for models in given.models:
        latest = {model: ReplyStore.of_model(model).latest for model in models.split("=", 1)}
        weights = known_formats([reply.weights for reply in latest.values() if reply is not None], kept["maps"])
        for protocol, contender in CONTENDER_OF.items():
            found = [load_verdicts(items, contender, model) for model, reply in latest.items() if reply is not None]
            verdicts = max(found, key=len, default={})
            judged = [item for item in items if item.key in verdicts]
            if not judged:
                parser.error(
                    f"there are no stored {protocol} replies of {models}; run python -m benchmarks.agreement "
                    f"{given.data} --half fit --contenders {contender} first"
                )
            maps.append(entry(weights, protocol, given.name, judged, fit_map(judged, verdicts)))
            print(models, protocol, json.dumps(maps[-1]))
    if given.write:
        MAPS.write_text(json.dumps({**kept, "maps": maps}, indent=2) + "\n", encoding="utf-8")
        builtin_calibrations.cache_clear()
        print(f"wrote {len(builtin_calibrations().maps)} maps to {MAPS}")


if __name__ == "__main__":
    main()
