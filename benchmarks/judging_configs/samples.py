"""Samples of public data sets under several criteria each, every one with a label from the data. Writes nothing.

A label is 1 or 0: what the criterion's verdict should be.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.data import CONTRACTNLI, GSM8K, GSM8K_MODELS, PROCESSBENCH, criterion, gsm8k_answer, in_steps, rows

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CALCULATION = re.compile(r"<<([^=<>]*[-+*/][^=<>]*)=[^<>]*>>")


@dataclass(frozen=True, slots=True)
class Sample:
    """A group under a rubric of its own, and the labels of each of its responses by criterion id."""

    group: Mapping[str, Any]
    labels: tuple[Mapping[str, int], ...]

    @property
    def criteria(self) -> int:
        """How many criteria its rubric has."""
        return len(self.group["rubric"]["criteria"])


def contracts(folder: Path, size: int) -> list[Sample]:
    """The `size` shortest contracts, each under 17 hypotheses; yes means entailed, by human labels."""
    found = sorted(rows(folder / CONTRACTNLI), key=lambda row: len(row["text"]))
    samples = []
    for row in found[:size]:
        criteria = [criterion(c["id"], f"The agreement says: {c['hypothesis']}") for c in row["criteria"]]
        group = _group(f"contract-{row['id']}", "Draw up the agreement.", [row["text"]], criteria)
        samples.append(Sample(group, ({c["id"]: int(c["choice"] == "Entailment") for c in row["criteria"]},)))
    return samples


def answers(folder: Path, size: int) -> list[Sample]:
    """Four rollouts on each of `size` problems, the right answer beside them, under four criteria.

    Two name a final answer, that of the first rollout and the right one of the next problem; one asks for the right
    one; one asks for a calculation of the reference solution, which a rollout has written down or has not.
    """
    found = list(rows(folder / GSM8K, size + 1))
    samples = []
    for number, (row, following) in enumerate(pairwise(found)):
        rollouts = [row[model]["solution"] for model in GSM8K_MODELS]
        named = {"first": gsm8k_answer(rollouts[0]), "other": gsm8k_answer(following["ground_truth"])}
        named = {name: value for name, value in named.items() if value}
        calculation = next((c[1] for c in _CALCULATION.finditer(row["ground_truth"])), "")
        criteria = [
            criterion("right", "The final answer of the response equals the correct final answer."),
            *[criterion(name, f"The final answer of the response is {value}.") for name, value in named.items()],
            *([criterion("calculation", f"The response calculates {calculation}.")] if calculation else []),
        ]
        group = _group(f"gsm8k-{number}", row["question"], rollouts, criteria)
        group["ground_truth"] = gsm8k_answer(row["ground_truth"])
        labels = []
        for model, rollout in zip(GSM8K_MODELS, rollouts, strict=True):
            own = _value(gsm8k_answer(rollout))
            of_one = {name: int(own == _value(value)) for name, value in named.items()}
            of_one["right"] = int(row[model]["is_correct"])
            if calculation:
                of_one["calculation"] = int(calculation in {c[1] for c in _CALCULATION.finditer(rollout)})
            labels.append(of_one)
        samples.append(Sample(group, tuple(labels)))
    return samples


def steps(folder: Path, size: int) -> list[Sample]:
    """Whole solutions in steps, asked whether each step is correct up to the first that human labels call wrong."""
    samples = []
    wanted = rows(folder / PROCESSBENCH, size, lambda row: row["split"] == "gsm8k" and row["label"] > 0)
    for row in wanted:
        labels = {f"step-{n}": int(n <= row["label"]) for n in range(1, row["label"] + 2)}
        criteria = [criterion(f"step-{n}", f"Step {n} of the response is correct.") for n in range(1, len(labels) + 1)]
        group = _group(row["id"], row["problem"], [in_steps(row["steps"])], criteria)
        samples.append(Sample(group, (labels,)))
    return samples


@dataclass(frozen=True, slots=True)
class DataSet:
    """How its samples are made, and how many are asked plainly and with reasons first, unless told otherwise."""

    make: Callable[[Path, int], list[Sample]]
    plain: int
    reasoned: int


DATA_SETS = {
    "ContractNLI": DataSet(contracts, 3, 2),
    "GSM8K": DataSet(answers, 4, 2),
    "ProcessBench": DataSet(steps, 8, 4),
}


def _group(id_: str, prompt: str, responses: list[str], criteria: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": id_, "prompt": prompt, "responses": responses, "rubric": {"criteria": criteria}}


def _value(answer: str) -> float | None:
    found = _NUMBER.search(answer.replace(",", ""))
    return float(found[0]) if found else None
