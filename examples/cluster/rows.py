"""Write GSM8K as rows for training with step-wise rubrics: `python rows.py rows.jsonl`.

Each line of a worked solution becomes a criterion of kind `suggest`. `--source` reads a JSONL file with the columns
`question` and `answer` in place of the data set on the Hugging Face hub.
"""

import argparse
import json
import re
from pathlib import Path

from datasets import load_dataset

from trainer_client.steps import with_step_format

ANSWER = {"id": "answer", "kind": "answer", "description": "The final answer equals the ground truth."}


def row(question: str, answer: str) -> dict[str, object]:
    """A row with the problem, its rubric, its worked solution and its result."""
    solution, _, result = re.sub(r"<<.*?>>", "", answer).rpartition("####")
    lines = [line.strip() for line in solution.splitlines() if line.strip()]
    suggestions = [
        {"id": f"suggest-{number}", "kind": "suggest", "description": f"Finds what this says: {line}"}
        for number, line in enumerate(lines, 1)
    ]
    return {
        "prompt": with_step_format(question),
        "rubric": json.dumps([*suggestions, {**ANSWER, "verification": {"method": "math"}}]),
        "reference_answer": "\n".join(lines),
        "ground_truth": result.strip().replace(",", ""),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--source")
    given = parser.parse_args()
    found = (
        load_dataset("json", data_files=given.source, split="train")
        if given.source
        else load_dataset("openai/gsm8k", "main", split="train")
    )
    rows = [row(one["question"], one["answer"]) for one in found]
    given.output.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
    print(f"{len(rows)} rows in {given.output}")
