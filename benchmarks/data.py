"""Read public data sets in place, row by row, without copying them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GSM8K = "gsm8k_model_rollouts.jsonl"
CONTRACTNLI = "contractnli_dev_test_docs.jsonl"
PROCESSBENCH = "processbench.jsonl"

GSM8K_MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
"""The models whose rollouts a row of GSM8K contains."""


def rows(
    file: Path, size: int | None = None, wanted: Callable[[dict[str, Any]], bool] = lambda row: True
) -> Iterator[dict[str, Any]]:
    """Yield the first `size` rows of a JSONL file for which `wanted` is true; all of them by default."""
    count = 0
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if count == size:
                return
            row = json.loads(line)
            if wanted(row):
                yield row
                count += 1


def gsm8k_answer(solution: str) -> str:
    """Return the final answer of a GSM8K solution; empty if there is none."""
    _, marker, answer = solution.rpartition("A:")
    return answer.strip() if marker else ""


def in_steps(steps: list[str]) -> str:
    """Join steps into one response with numbered step headers."""
    return "\n".join(f"### Step {number}:\n{step}" for number, step in enumerate(steps, 1))
