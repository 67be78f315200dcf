"""`python -m benchmarks.agreement.fit DATA`: fit the built-in calibrations from replies on the half `fit`.

Run `python -m benchmarks.agreement DATA --half fit` first: this command reads its stored replies and does not load a
model. The markers around judged texts make a judge a little readier to say no, and leave its order as it is. The map
gives that back, so that a verdict falls on the same side of one half as without them:

    logit(p) = slope * logit(p of yes) + intercept

is the line of least squares to the log-odds that the plain prompt gets on the same items. No label enters, so nothing
is tuned to the tasks; every task counts the same, however many items it has. The shipped templates put the
question of `binary` under `stepwise` too, so its map is the same.

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
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.store import ReplyStore
from benchmarks.agreement.verdicts import Verdicts, load_verdicts
from judge_server.judging.calibration import builtin_calibrations
from judge_server.judging.prompts import PromptForm, PromptTemplates

MAPS = Path("judge_server/src/judge_server/judging/prompts/calibrations.json")
Calibrated: TypeAlias = Literal["binary", "stepwise"]
"""The protocols with a probability of yes."""

_CLIP = 1e-6


class FittedMap(NamedTuple):
    """A map from log-odds to those of the plain prompt."""

    slope: float
    intercept: float


def fit_map(items: Sequence[Item], verdicts: Verdicts, plain: Verdicts) -> FittedMap:
    """Fit the line of least squares from the log-odds of `verdicts` to those of `plain`.

    Args:
        items: the items; those without both verdicts are left out.
        verdicts, plain: verdicts by the item's key; only their uncalibrated probabilities are used.

    Raises:
        ValueError: the plain prompt's log-odds do not increase with the others, or all are the same.
    """
    known = [item for item in items if item.key in verdicts and item.key in plain]
    sizes = Counter(item.task for item in known)
    weights = np.array([1 / sizes[item.task] for item in known])
    given = log_odds([verdicts[item.key].asked_probability for item in known])
    wanted = log_odds([plain[item.key].asked_probability for item in known])
    if not known or np.ptp(given) == 0:
        raise ValueError("a line needs items with several probabilities; judge more of them")
    slope, intercept = np.polyfit(given, wanted, 1, w=np.sqrt(weights))
    if slope <= 0:
        raise ValueError(f"the fitted slope is {slope:.3f}: the markers turn the order around; do not ship a map")
    return FittedMap(round(float(slope), 4), round(float(intercept), 4))


def log_odds(probabilities: Sequence[float]) -> NDArray[np.float64]:
    """Return the log-odds, shape (n,); probabilities at 0 and 1 count as 1e-6 away from them."""
    clipped = np.clip(probabilities, _CLIP, 1 - _CLIP)
    odds: NDArray[np.float64] = np.log(clipped / (1 - clipped))
    return odds


def digest_of(items: Sequence[Item]) -> str:
    """Compute the digest of the fitted items, in any order."""
    return "sha256:" + hashlib.sha256("\n".join(sorted(item.key for item in items)).encode()).hexdigest()


def entry(
    weights: Sequence[str], protocol: Calibrated, name: str, items: Sequence[Item], fitted: FittedMap
) -> dict[str, Any]:
    """Build an entry of `calibrations.json`; `weights` are the digests of the same weights in several formats."""
    return {
        "weights": list(weights),
        "protocol": protocol,
        "templates": PromptTemplates(PromptForm(protocol)).digest,
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
    parser.add_argument("--name", default="2026-11-v5", help="the version of the maps")
    parser.add_argument("--write", action="store_true", help=f"replace the maps in {MAPS}")
    given = parser.parse_args()
    tasks = load_items(given.data, "fit", tasks_of("fit"), given.size, given.longest)
    items = [item for found in tasks.values() for item in found]
    kept = json.loads(MAPS.read_text(encoding="utf-8"))
    maps = []
    for models in given.models:
        latest = {model: ReplyStore.of_model(model).latest for model in models.split("=", 1)}
        stored = [model for model, reply in latest.items() if reply is not None]
        weights = known_formats([reply.weights for reply in latest.values() if reply is not None], kept["maps"])
        both = [[load_verdicts(items, name, model) for name in ("adjudge", "plain")] for model in stored]
        verdicts, plain = max(both, key=lambda found: len(found[0].keys() & found[1].keys()), default=({}, {}))
        judged = [item for item in items if item.key in verdicts and item.key in plain]
        if not judged:
            parser.error(
                f"there are no stored replies of {models}; run python -m benchmarks.agreement {given.data} --half fit "
                "first"
            )
        fitted = fit_map(judged, verdicts, plain)
        maps += [entry(weights, protocol, given.name, judged, fitted) for protocol in get_args(Calibrated)]
        print(models, json.dumps(maps[-1]))
    if given.write:
        MAPS.write_text(json.dumps({**kept, "maps": maps}, indent=2) + "\n", encoding="utf-8")
        builtin_calibrations.cache_clear()
        print(f"wrote {len(builtin_calibrations().maps)} maps to {MAPS}")


if __name__ == "__main__":
    main()
