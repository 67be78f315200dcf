"""Rows for a trainer, made from a run's splits."""

import json
from pathlib import Path
from typing import Any

import pytest

from judge_server.generation.results import trainer_rows, write_rows

CRITERIA = [{"id": "c1", "description": "Says why.", "weight": 2.0}]
COLUMNS = ["prompt", "rubric", "grounding", "ground_truth", "reference_answer"]


def made(key: str, **more: Any) -> dict[str, Any]:
    """A record as in `splits/`."""
    return {"key": key, "criteria": CRITERIA, "metadata": {"question": f"Why {key}?"}, "record": {}} | more


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three rubrics, one of them published."""
    of_document = made("a", record={"passage": "A heap is a list."})
    of_reference = made(
        "b", metadata={"question": "Why b?", "ground_truth": "7"}, record={"reference_answer": "It is 7."}
    )
    files = {
        "splits/train.jsonl": [of_document, of_reference],
        "splits/validation.jsonl": [made("c", record={"ideal_answer": "So."})],
        "splits/test.jsonl": [],
        "published.jsonl": [{"key": "a", "reference": "team/a@1", "digest": "sha256:0"}],
    }
    (tmp_path / "run" / "splits").mkdir(parents=True)
    for name, records in files.items():
        (tmp_path / "run" / name).write_text("".join(json.dumps(one) + "\n" for one in records))
    return tmp_path / "run"


def test_a_row_has_the_prompt_the_rubric_and_the_references_for_the_judge_alone(run: Path) -> None:
    document, reference = trainer_rows(run, "train")
    inline = json.dumps({"criteria": CRITERIA})
    assert document == dict(zip(COLUMNS, ["Why a?", "team/a@1", "A heap is a list.", None, None], strict=True))
    assert reference == dict(zip(COLUMNS, ["Why b?", inline, None, "7", "It is 7."], strict=True))
    assert [row["reference_answer"] for row in trainer_rows(run, "validation")] == ["So."]


def test_criteria_may_be_inline_and_prompts_may_be_messages(run: Path) -> None:
    row = next(trainer_rows(run, "train", inline=True, messages=True))
    assert json.loads(row["rubric"]) == {"criteria": CRITERIA}
    assert row["prompt"] == [{"role": "user", "content": "Why a?"}]


def test_every_split_has_its_own_file(run: Path, tmp_path: Path) -> None:
    assert write_rows(run, tmp_path / "rows") == {"train": 2, "validation": 1, "test": 0}
    lines = (tmp_path / "rows" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == list(trainer_rows(run, "train"))
    assert (tmp_path / "rows" / "test.jsonl").read_text() == ""


def test_an_invalid_run_is_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adjudge generate"):
        write_rows(tmp_path, tmp_path / "rows")
    with pytest.raises(ValueError, match="another folder"):
        write_rows(run, run / "splits")
    (run / "splits" / "test.jsonl").write_text(json.dumps(made("d", metadata={})) + "\n")
    with pytest.raises(ValueError, match=r"test.jsonl:1: the record has no question"):
        write_rows(run, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
