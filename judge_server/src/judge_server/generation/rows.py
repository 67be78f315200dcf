"""From a run's rubrics to the rows that trainers read: what the policy answers, and what the judge judges it by.

Every row has the same columns, so that all of a file make one table. What the policy must not see, the grounding, the
ground truth and the reference answer, stands in columns of its own, which trainers show to the judge alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from judge_server.generation.folder import PUBLISHED_FILE, RUBRICS_FILE
from judge_server.generation.journal import read_journal
from judge_server.generation.results import SPLITS
from judge_server.generation.splits import Split


def trainer_rows(
    folder: Path, split: Split, *, inline: bool = False, messages: bool = False
) -> Iterator[dict[str, Any]]:
    """The rows of one split of a run, in the order of its file.

    A row has `prompt`, `rubric`, `grounding`, `ground_truth` and `reference_answer`, the last three None where the run
    knows none. `rubric` is the reference of the published version, or JSON text of the criteria where none was
    published.

    Args:
        folder: the run's `--out`, after the run ended.
        split: which file of `splits/`.
        inline: write the criteria though a version was published.
        messages: write prompts as chat messages rather than text.

    Raises:
        ValueError: the folder does not belong to a run, or a record has no question; the message says which.
    """
    file = folder / SPLITS / f"{split}.jsonl"
    if not file.is_file():
        raise ValueError(
            f"there is no {file}; give the --out folder of an `adjudge generate` that ended, with {RUBRICS_FILE} in it"
        )
    references = {} if inline else {one["key"]: one["reference"] for one in read_journal(folder / PUBLISHED_FILE)}
    for number, record in enumerate(read_journal(file), 1):
        question = record["metadata"].get("question")
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"{file}:{number}: the record has no question to ask; leave its line out")
        kept = record["record"]
        yield {
            "prompt": [{"role": "user", "content": question}] if messages else question,
            "rubric": references.get(record["key"]) or json.dumps({"criteria": record["criteria"]}, ensure_ascii=False),
            "grounding": kept.get("passage"),
            "ground_truth": record["metadata"].get("ground_truth"),
            "reference_answer": kept.get("reference_answer") or kept.get("ideal_answer"),
        }


def write_rows(folder: Path, out: Path, *, inline: bool = False, messages: bool = False) -> dict[Split, int]:
    """Write `train.jsonl`, `validation.jsonl` and `test.jsonl` of a run into a folder; returns how many rows each has.

    Raises:
        OSError: they cannot be written.
        ValueError: as `trainer_rows`, before anything is written.
    """
    if out.resolve() == (folder / SPLITS).resolve():
        raise ValueError(f"{out} holds the rubrics themselves; write the rows into another folder")
    made = {split: list(trainer_rows(folder, split, inline=inline, messages=messages)) for split in get_args(Split)}
    out.mkdir(parents=True, exist_ok=True)
    for split, rows in made.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / f"{split}.jsonl").write_text(lines, encoding="utf-8", errors="backslashreplace")
    return {split: len(rows) for split, rows in made.items()}
