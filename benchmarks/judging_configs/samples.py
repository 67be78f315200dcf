"""Samples of public data sets, each with several criteria that have labels from the data.

A label is the right verdict on the criterion, 1 or 0.
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
    """A group with its own rubric, and the labels of each response by criterion id."""

    group: Mapping[str, Any]
    labels: tuple[Mapping[str, int], ...]

    @property
    def criteria(self) -> int:
        """The number of criteria of the rubric."""
        return len(self.group["rubric"]["criteria"])


def contracts(folder: Path, size: int) -> list[Sample]:
    """Return the `size` shortest contracts, each with 17 hypotheses; yes means entailed, by human labels."""
    shortest_first = sorted(rows(folder / CONTRACTNLI), key=lambda row: len(row["text"]))
    samples = []
    for row in shortest_first[:size]:
        criteria = [criterion(c["id"], f"The agreement says: {c['hypothesis']}") for c in row["criteria"]]
        group = _group(f"contract-{row['id']}", "Draw up the agreement.", [row["text"]], criteria)
        samples.append(Sample(group, ({c["id"]: int(c["choice"] == "Entailment") for c in row["criteria"]},)))
    return samples


def answers(folder: Path, size: int) -> list[Sample]:
    """Return four rollouts on each of `size` problems, with the ground truth, under four criteria.

    Two criteria name a final answer: that of the first rollout, and the right answer to the next problem. One asks for
    the right answer. One asks for a calculation of the reference solution, which a rollout may or may not contain.
    """
    problems = list(rows(folder / GSM8K, size + 1))
    samples = []
    for number, (row, following) in enumerate(pairwise(problems)):
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
            own_labels = {name: int(own == _value(value)) for name, value in named.items()}
            own_labels["right"] = int(row[model]["is_correct"])
            if calculation:
                own_labels["calculation"] = int(calculation in {c[1] for c in _CALCULATION.finditer(rollout)})
            labels.append(own_labels)
        samples.append(Sample(group, tuple(labels)))
    return samples


def steps(folder: Path, size: int) -> list[Sample]:
    """Return solutions in steps, with a criterion for each step up to the first that human labels call wrong."""
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
    """How to build the samples, and the default numbers of samples to judge plainly and with reasons first."""

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
    number = _NUMBER.search(answer.replace(",", ""))
    return float(number[0]) if number else None
