"""Public data sets as groups to score, with a label for each verdict that has one. Reads rows, writes nothing.

A label is 1 or 0: what the criterion's verdict should be. Steps have labels where the data set names a step.
"""

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.data import CONTRACTNLI, GSM8K, GSM8K_MODELS, PROCESSBENCH, criterion, gsm8k_answer, in_steps, rows

Labels = dict[str, list[dict[str, int]]]
"""Per group id, per response, criterion id to label."""


@dataclass(slots=True)
class Task:
    """Groups to score under a mode, and what their verdicts should be."""

    mode: str
    groups: list[dict[str, Any]] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    labelled_by: str = "human"


def gsm8k(folder: Path, size: int) -> Task:
    """Final answers of real rollouts under one rubric for all; the judge sees the right answer beside the response."""
    return _gsm8k(folder, size, lambda truth: "The final answer of the response equals the correct final answer.")


def gsm8k_named(folder: Path, size: int) -> Task:
    """The same rollouts under a rubric for each problem, which names the right answer in the criterion."""
    return _gsm8k(folder, size, lambda truth: f"The final answer of the response is {truth}.")


def _gsm8k(folder: Path, size: int, describe: Callable[[str], str]) -> Task:
    task = Task("weighted_mean", labelled_by="answer check")
    for number, row in enumerate(rows(folder / GSM8K, size)):
        truth = gsm8k_answer(row["ground_truth"])
        group = {
            "id": f"gsm8k-{number}",
            "prompt": row["question"],
            "ground_truth": truth,
            "responses": [row[model]["solution"] for model in GSM8K_MODELS],
            "rubric": {"criteria": [criterion("answer", describe(truth))]},
        }
        task.groups.append(group)
        task.labels[group["id"]] = [{"answer": int(row[model]["is_correct"])} for model in GSM8K_MODELS]
    return task


def contractnli(folder: Path, size: int) -> Task:
    """Hypotheses as yes/no criteria about a contract, which is the judged text; yes means entailed."""
    return _contractnli(folder, size, lambda text: {"prompt": "Draw up the agreement.", "responses": [text]})


def contractnli_grounded(folder: Path, size: int) -> Task:
    """The same hypotheses, with the contract as grounding, which only the judge sees beside an empty claim."""
    claim = "The agreement says what the source says, and nothing else."
    return _contractnli(
        folder, size, lambda text: {"prompt": "What does the agreement say?", "grounding": text, "responses": [claim]}
    )


def _contractnli(folder: Path, size: int, texts: Callable[[str], dict[str, Any]]) -> Task:
    task = Task("weighted_mean")
    found = sorted(rows(folder / CONTRACTNLI), key=lambda row: len(row["text"]))
    for row in found[:size]:
        criteria = [criterion(c["id"], f"The agreement says: {c['hypothesis']}") for c in row["criteria"]]
        group = {"id": f"contract-{row['id']}", "rubric": {"criteria": criteria}} | texts(row["text"])
        task.groups.append(group)
        task.labels[group["id"]] = [{c["id"]: int(c["choice"] == "Entailment") for c in row["criteria"]}]
    return task


def processbench(folder: Path, size: int) -> Task:
    """Solutions in steps, cut off after and before their first wrong step: is there a mistake, and where.

    The sample has no solution without a mistake; by its labels the steps before the first wrong one are right. Both
    are cut off, so that telling a whole solution from a part of one earns nothing.
    """
    task = Task("stepwise")
    criteria = [
        criterion("mistake", "A step that reasons or calculates wrongly.", "pitfall"),
        criterion("answer", "The final answer is correct.", "answer"),
    ]
    file = folder / PROCESSBENCH
    for row in rows(file, size, lambda row: row["split"] == "gsm8k" and row["label"] > 0):
        right = row["label"]
        responses = [in_steps(row["steps"][: right + 1]), in_steps(row["steps"][:right])]
        group = {"id": row["id"], "prompt": row["problem"], "responses": responses}
        task.groups.append(group | {"rubric": {"criteria": criteria}})
        task.labels[row["id"]] = [{"mistake": 1}, {"mistake": 0}]
        task.steps[row["id"]] = row["label"] + 1
    return task


def healthbench(folder: Path, size: int) -> Task:
    """Conversations and responses under physicians' point rubrics; labelled by another LLM judge. Measuring only."""
    task = Task("points", labelled_by="LLM judge")
    found = sorted(rows(folder / "healthbench_m42_responses_llmjudged.jsonl"), key=lambda row: len(json.dumps(row)))
    for row in found[:size]:
        group = {
            "id": row["prompt_id"],
            "prompt": [{"role": m["role"], "content": m["content"]} for m in row["prompt"]],
            "responses": [row["prompt_response"][-1]["content"]],
            "rubric": row["rubrics"],
        }
        verdicts = [bool(v["response_dict"]["criteria_met"]) for v in ast.literal_eval(row["responses"])]
        task.groups.append(group)
        task.labels[group["id"]] = [{f"c{n}": int(met) for n, met in enumerate(verdicts, 1)}]
        task.rewards[group["id"]] = row["score"]
    return task


TASKS: dict[str, tuple[Callable[[Path, int], Task], int]] = {
    "gsm8k": (gsm8k, 12),
    "gsm8k-named": (gsm8k_named, 12),
    "processbench": (processbench, 16),
    "healthbench": (healthbench, 8),
    "contractnli": (contractnli, 6),
    "contractnli-grounded": (contractnli_grounded, 6),
}
"""The tasks, each with how many of its rows are read unless told otherwise."""
