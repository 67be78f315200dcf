"""Compare the judging protocols on the same items: do their scores separate met criteria from unmet ones?

`python -m benchmarks.agreement.protocols DATA` judges each item under every protocol with the default models. A
protocol that gives full marks to everything separates nothing, however plausible its scores look.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agreement.contenders import AdjudgeContender, ItemVerdict, item_verdict
from benchmarks.agreement.items import Item, load_items, tasks_of
from benchmarks.agreement.metrics import auroc, measure
from benchmarks.agreement.store import StoredEngine, StoredReply, slug, stored_engine
from benchmarks.report import publish
from judge_server.ports import CallFailure
from trainer_client.wire import JudgingProtocol, Verdict

PROTOCOLS: tuple[JudgingProtocol, ...] = ("binary", "stepwise", "graded", "checklist", "likert")
FULL = 0.999


@dataclass(frozen=True, slots=True)
class ProtocolVerdict:
    """The service's verdict on an item, and the reply that it was read from."""

    verdict: Verdict
    reply: StoredReply

    @property
    def score(self) -> float:
        """The probability of yes if the protocol has one, else the score; in [0, 1]."""
        value = self.verdict.score if self.verdict.probability is None else self.verdict.probability
        if value is None:
            raise ValueError(f"{self.verdict} has no score; only successful verdicts can be measured")
        return value

    @property
    def most_likely(self) -> float:
        """The score of the answer with the greatest mass; the score itself for a written answer."""
        masses = self.reply.masses
        if masses is None:
            return self.score
        if len(masses) == 2:
            return float(masses[0] >= masses[1])
        return masses.index(max(masses)) / (len(masses) - 1)

    @property
    def compared(self) -> ItemVerdict:
        """The verdict in the form that `measure` takes."""
        return item_verdict(self.reply, self.score >= 0.5, self.score, self.score)


async def ask_protocols(
    engine: StoredEngine, items: Sequence[Item], protocols: Sequence[JudgingProtocol]
) -> dict[str, dict[str, ProtocolVerdict]]:
    """Judge each item under each protocol; return the successful verdicts by protocol and item key."""
    verdicts: dict[str, dict[str, ProtocolVerdict]] = {}
    for protocol in protocols:
        contender = AdjudgeContender(engine, protocol=protocol)
        await contender.start()
        verdicts[protocol] = {}
        for item in items:
            answer = await contender.answer(item)
            if not isinstance(answer, CallFailure):
                verdicts[protocol][item.key] = ProtocolVerdict(*answer)
        await contender.close()
        print(f"{protocol}: {len(verdicts[protocol])} of {len(items)} items", flush=True)
    return verdicts


def table_rows(items: Sequence[Item], verdicts: Mapping[str, Mapping[str, ProtocolVerdict]]) -> list[dict[str, Any]]:
    """Return a row per protocol: the means over tasks, and how often it gives full marks."""
    compared = {name: {key: v.compared for key, v in found.items()} for name, found in verdicts.items()}
    mean = measure(items, compared).mean
    rows = []
    for name, found in verdicts.items():
        met, unmet = (
            [found[item.key] for item in items if item.key in found and item.label is label] for label in (True, False)
        )
        everything = met + unmet
        rows.append(
            {
                "protocol": name,
                "n": mean.n,
                "failed": mean.failed[name],
                "AUROC": f"{mean.values[name]['auroc']:.2f}",
                "pooled AUROC": _auroc([v.score for v in met], [v.score for v in unmet]),
                "of the most likely answer": _auroc([v.most_likely for v in met], [v.most_likely for v in unmet]),
                "balanced accuracy": f"{mean.values[name]['balanced_accuracy']:.2f}",
                "mean score, met / unmet": f"{_mean(met):.2f} / {_mean(unmet):.2f}",
                "full marks": f"{np.mean([v.score > FULL for v in everything]):.0%}",
                "most likely full": f"{np.mean([v.most_likely > FULL for v in everything]):.0%}",
                "tokens": f"{mean.tokens[name].all:.0f}",
                "written": f"{np.mean([v.reply.tokens_written for v in everything]):.0f}",
            }
        )
    return rows


def _auroc(met: Sequence[float], unmet: Sequence[float]) -> str:
    return f"{auroc([*met, *unmet], [True] * len(met) + [False] * len(unmet)):.2f}"


def _mean(found: Sequence[ProtocolVerdict]) -> float:
    return float(np.mean([v.score for v in found]))


def main() -> None:
    """Measure the protocols for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--half", choices=["fit", "held"], default="held", help="half of the rows; default: held")
    parser.add_argument("--size", type=int, default=8, help="maximum items per task")
    parser.add_argument("--longest", type=int, default=1200, help="maximum characters of an item's texts")
    parser.add_argument("--models", nargs="+", default=["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    given = parser.parse_args()
    names = tasks_of(given.half)
    tasks = load_items(given.data, given.half, names, given.size, given.longest)
    items = [item for of_task in tasks.values() for item in of_task]

    async def ask(model: str) -> dict[str, dict[str, ProtocolVerdict]]:
        async with stored_engine(model) as engine:
            return await ask_protocols(engine, items, given.protocols)

    for model in given.models:
        rows = table_rows(items, asyncio.run(ask(model)))
        notes = [
            "AUROC, balanced accuracy and tokens: means over tasks; pooled AUROC: over all items;",
            "full marks: share of scores of 1; most likely: by the answer with the greatest mass instead of the "
            "expected score; written: tokens that the model wrote",
        ]
        publish(f"protocols_{slug(model)}", f"Judging protocols, {model}, rows of the half {given.half}", rows, notes)


if __name__ == "__main__":
    main()
