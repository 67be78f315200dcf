"""`python -m benchmarks.agreement.fence_secrets DATA`: measure how much verdicts depend on a deployment's fence secret.

Markers around the judged texts are made from the secret, so each deployment shows its judge other letters. The same
items are judged under several secrets, directly and relative to an empty response. Replies are stored as those of
`python -m benchmarks.agreement`.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.agreement.__main__ import MODELS
from benchmarks.agreement.contenders import AdjudgeContender
from benchmarks.agreement.fit import log_odds
from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import slug, stored_engine
from benchmarks.agreement.verdicts import Verdicts, judge_items
from benchmarks.report import publish
from judge_server.prompts.fencing import Fence

HOW = {"directly": False, "relative to an empty response": True}


def secret(number: int) -> bytes:
    """Return the secret of one deployment."""
    return f"the fence secret of deployment {number}".encode()


async def judge_under_secrets(model: str, items: Sequence[Item], secrets: int) -> dict[str, list[Verdicts]]:
    """Judge all items under each secret; return the verdicts of each way of judging, secret by secret."""
    found: dict[str, list[Verdicts]] = {how: [] for how in HOW}
    async with stored_engine(model) as engine:
        for number in range(secrets):
            for how, contextual in HOW.items():
                contender = AdjudgeContender(engine, contextual=contextual, fence=Fence(secret(number)))
                await contender.start()
                shown = track(items, f"{model} {number} {how}", transient=True, disable=not sys.stdout.isatty())
                found[how].append((await judge_items(contender, shown)).verdicts)
                await contender.close()
            print(f"{model}: {number + 1} of {secrets} secrets, asked {engine.asked} times", flush=True)
    return found


def rows_of(items: Sequence[Item], found: Mapping[str, Sequence[Verdicts]]) -> list[dict[str, object]]:
    """Build the table: a row for each way of judging, with figures over secrets.

    `verdicts that differ` is the share of items whose verdicts differ, as mean over pairs of secrets. `log-odds, sd` is
    the standard deviation over secrets of an item's calibrated log-odds, as root mean square over items, and `of it
    common` that of their mean over all items, which moves every verdict the same way.
    """
    rows: list[dict[str, object]] = []
    for how, by_secret in found.items():
        judged = [item for item in items if all(item.key in verdicts for verdicts in by_secret)]
        said = np.array([[verdicts[item.key].satisfied for item in judged] for verdicts in by_secret])
        odds = np.array([log_odds([verdicts[item.key].probability for item in judged]) for verdicts in by_secret])
        agreement = measure(judged, {str(number): verdicts for number, verdicts in enumerate(by_secret)}).pooled
        accuracies = [agreement.values[str(number)]["balanced_accuracy"] for number in range(len(by_secret))]
        differing = [float(np.mean(one != other)) for one, other in combinations(said, 2)]
        rates = said.mean(axis=1)
        rows.append(
            {
                "judged": how,
                "n": len(judged),
                "judged met": f"{rates.mean():.2f} ({rates.min():.2f} to {rates.max():.2f})",
                "balanced accuracy": f"{np.mean(accuracies):.2f} ({min(accuracies):.2f} to {max(accuracies):.2f})",
                "verdicts that differ": f"{np.mean(differing):.3f}",
                "log-odds, sd": f"{np.sqrt(np.mean(odds.var(axis=0, ddof=1))):.2f}",
                "of it common": f"{odds.mean(axis=1).std(ddof=1):.2f}",
            }
        )
    return rows


def main() -> None:
    """Measure each model and publish its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--size", type=int, default=8, help="maximum items per task, half of them met")
    parser.add_argument("--longest", type=int, default=1500, help="maximum characters of an item")
    parser.add_argument("--secrets", type=int, default=6, help="number of secrets, at least 2")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    given = parser.parse_args()
    if given.secrets < 2:
        parser.error("give at least 2 secrets; one has nothing to differ from")
    tasks = load_items(given.data, "held", tasks_of("held"), given.size, given.longest)
    items = [item for of_task in tasks.values() for item in of_task]
    if not items:
        parser.error("no item is left; raise --size or --longest")
    for model in given.models:
        found = asyncio.run(judge_under_secrets(model, items, given.secrets))
        publish(
            f"agreement_fence_secrets_{slug(model)}",
            f"Verdicts under {given.secrets} fence secrets, {model}",
            rows_of(items, found),
        )


if __name__ == "__main__":
    main()
