"""Reading public data sets where they lie, row by row; nothing of them is kept."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GSM8K = "gsm8k_model_rollouts.jsonl"
CONTRACTNLI = "contractnli_dev_test_docs.jsonl"
PROCESSBENCH = "processbench.jsonl"

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
"""Whose rollouts a row of GSM8K holds."""


def rows(
    file: Path, size: int | None = None, wanted: Callable[[dict[str, Any]], bool] = lambda row: True
) -> Iterator[dict[str, Any]]:
    """The first `size` rows of a JSONL file that are wanted; all of them unless given."""
    found = 0
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if found == size:
                return
            row = json.loads(line)
            if wanted(row):
                yield row
                found += 1


def criterion(id_: str, description: str, kind: str = "point") -> dict[str, Any]:
    """A criterion that the judge is asked about, also where a program could decide: the judge is what is measured."""
    return {"id": id_, "description": description, "kind": kind, "verification": {"method": "judge"}}


def gsm8k_answer(solution: str) -> str:
    """What a solution of GSM8K gives as its final answer; empty where it gives none."""
    _, found, answer = solution.rpartition("A:")
    return answer.strip() if found else ""


def in_steps(steps: list[str]) -> str:
    """Steps as one response, each under its number."""
    return "\n".join(f"### Step {number}:\n{step}" for number, step in enumerate(steps, 1))
