"""`adjudge export`: a run of the database in, rows for training out, as JSONL and Parquet."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from rubric_store import SQLLedger
from tests.judge_server.evaluation.test_export import body, by_marks
from tests.judge_server.ledger.judged import rows
from tests.services.command import adjudge, failure_of

TOOLS = [
    {"role": "user", "content": "What is 3 + 4?\ud800 请"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": {"a": 3, "b": 4}}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "seven"},
]
READ = [TOOLS[0] | {"content": "What is 3 + 4?\N{REPLACEMENT CHARACTER} 请"}, *TOOLS[1:]]


@pytest.fixture
def record(migrated: None, data_dir: Path) -> Any:
    """Have requests judged and recorded in the data folder's database."""

    def write(*bodies: dict[str, Any], keep_texts: bool = True) -> None:
        async def written() -> None:
            ledger = SQLLedger(f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}")
            ledger.write(await rows(*bodies, script=by_marks, keep_texts=keep_texts))
            await ledger.close()

        asyncio.run(written())

    return write


def test_rows_are_printed_and_what_is_left_out_is_said(record: Any) -> None:
    record(body("7 please", "no", "broken", step=2), body("7", "7 indeed", step=3))
    result = adjudge("export", "r", exit_code=0)
    (row,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (row["chosen"], row["rejected"], row["step"]) == ("7 please", "no", 2)
    assert result.stderr.splitlines() == [
        "1 row as pairs, from 5 responses",
        "  left out: 1 responses without a reward, because judging failed or no reward was asked for",
        "  left out: 1 comparisons without a difference",
    ]


@pytest.mark.parametrize("kind", ["pairs", "sft", "best", "verdicts"])
def test_parquet_has_the_rows_of_jsonl(record: Any, tmp_path: Path, kind: str) -> None:
    record(body("7 please\0", "no 🙂", step=2), body("7", "no", group={"grounding": "A source"}))
    for ending in ("jsonl", "parquet"):
        adjudge("export", "r", "--as", kind, "-o", tmp_path / f"rows.{ending}", exit_code=0)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == lines
    assert sorted(file.name for file in tmp_path.glob("rows*")) == ["rows.jsonl", "rows.parquet"]


def test_messages_keep_their_tool_calls(record: Any, tmp_path: Path) -> None:
    record(body("7 please", "no", group={"prompt": TOOLS}))
    for ending in ("jsonl", "parquet"):
        adjudge("export", "r", "-o", tmp_path / f"rows.{ending}", exit_code=0)
    (line,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert line["prompt"] == READ
    (row,) = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    user, call, tool = row["prompt"]
    assert (user["content"], user["tool_calls"]) == (READ[0]["content"], None)
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"a": 3, "b": 4}
    assert (tool["content"], tool["tool_call_id"]) == ("seven", "c")
    assert row["rejected"][0]["content"] == "no"


def test_a_run_with_nothing_to_export_leaves_the_file_as_it_was(record: Any, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("before")
    record(body("7", "7 too"))
    said = failure_of(adjudge("export", "r", "-o", file))
    assert "left out: 1 comparisons without a difference" in said
    assert "nothing of run 'r' can be exported as pairs" in said
    assert file.read_text() == "before"
    assert "adjudge runs" in failure_of(adjudge("export", "nobody", "-o", file))
    record(body("8 please", "8", run="s"))
    assert "No such file" in failure_of(adjudge("export", "s", "--as", "sft", "-o", tmp_path / "nowhere" / "file"))
    assert "leave it out" in failure_of(adjudge("export", "r", "--as", "sft", "--min-margin", 0.5))


def test_a_ledger_without_texts_says_what_to_set(record: Any) -> None:
    record(body("7", "no"), keep_texts=False)
    assert "ADJUDGE_LEDGER=all" in failure_of(adjudge("export", "r"))


def test_a_rubric_is_selected_by_its_name(record: Any, tmp_path: Path) -> None:
    record(body("7", "no"))
    criteria = tmp_path / "short.json"
    criteria.write_text(json.dumps({"criteria": [{"id": "sum", "description": "Says 7.", "weight": 2}]}))
    adjudge("rubrics", "publish", "team/short", criteria, exit_code=0)
    assert "no such responses" in failure_of(adjudge("export", "r", "--rubric", "team/short@1"))
    record(body("7 also", "none", rubric=json.loads(criteria.read_text())))
    result = adjudge("export", "r", "--rubric", "team/short@1", exit_code=0)
    assert [json.loads(line)["chosen"] for line in result.stdout.splitlines()] == ["7 also"]


def test_a_link_stays_and_other_files_are_left_alone(record: Any, tmp_path: Path) -> None:
    record(body("7 please", "no", step=2))
    file, link, beside = tmp_path / "rows.jsonl", tmp_path / "link.jsonl", tmp_path / "rows.part.jsonl"
    file.write_text("old")
    beside.write_text("mine")
    link.symlink_to(file)
    failure_of(adjudge("export", "nosuch", "-o", file))
    assert file.read_text() == "old"
    adjudge("export", "r", "-o", link, exit_code=0)
    assert link.is_symlink()
    assert json.loads(file.read_text())["chosen"] == "7 please"
    assert beside.read_text() == "mine"
    assert sorted(tmp_path.glob("*.jsonl")) == sorted([file, link, beside])


def test_a_criterion_that_no_verdict_is_on_is_the_reason_for_no_rows(record: Any) -> None:
    record(body("7 please", "no"))
    for options in (["--as", "verdicts"], ["--by", "criterion"]):
        refused = adjudge("export", "r", *options, "--criterion", "none")
        assert "no response has a verdict on what --criterion names" in failure_of(refused)


def test_rows_that_are_always_jsonl_get_no_name_of_parquet(record: Any, tmp_path: Path) -> None:
    record(body("7 please", "no"))
    refused = adjudge("recompute", "r", "-o", tmp_path / "rows.parquet")
    assert "name a file that ends in .jsonl" in failure_of(refused)
    assert not (tmp_path / "rows.parquet").exists()
