"""Rows of JSONL, CSV and Parquet: the same fields in all of them, also from columns of other names."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from judge_server.evaluation.row_files import RowFile, parse_columns

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "question": "Is 7 prime?", "responses": ["[yes]", "no"], "answer": 7, "rubric": RUBRIC, "level": "easy"},
    {"id": 2, "question": "[Is] 8 prime?", "responses": ["no"], "answer": None, "rubric": RUBRIC, "level": "easy"},
]
COLUMNS = {"prompt": "question", "ground_truth": "answer"}
FORMATS = ("jsonl", "csv", "tsv", "parquet")


def write(folder: Path, kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows in a format."""
    file = folder / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8-sig")
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    else:
        with file.open("w", newline="", encoding="utf-8") as text:
            writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(
                {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}
                for row in rows
            )
    return str(file)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_have_the_same_fields_in_every_format(tmp_path: Path, kind: str) -> None:
    rows = RowFile(write(tmp_path, kind, ROWS), columns=COLUMNS)
    assert [row for _, row in rows] == [
        {"id": "1", "prompt": "Is 7 prime?", "responses": ["[yes]", "no"], "ground_truth": "7", "rubric": RUBRIC},
        {"id": "2", "prompt": "[Is] 8 prime?", "responses": ["no"], "rubric": RUBRIC},
    ]
    assert rows.notice == "not read: level"


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_that_look_like_a_field_are_suggested(tmp_path: Path, kind: str) -> None:
    rows = RowFile(write(tmp_path, kind, ROWS))
    assert all("prompt" not in row for _, row in rows if isinstance(row, dict))
    assert rows.notice == (
        "not read: question, answer, level; 'question' may be prompt: --column prompt=question; "
        "'answer' may be ground_truth: --column ground_truth=answer"
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_a_column_that_the_file_does_not_have_is_named(tmp_path: Path, kind: str) -> None:
    rows = RowFile(write(tmp_path, kind, ROWS), columns={"grounding": "source"})
    if kind == "jsonl":  # known only at the end
        assert len(list(rows)) == 2
        assert "no row has the column 'source'" in rows.notice
    else:
        with pytest.raises(ValueError, match="has no column 'source' for grounding; its columns are id, question"):
            list(rows)


def test_a_column_that_a_file_has_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("note,note,prompt,response\n1,2,What?,Four.\n")
    assert [row for _, row in RowFile(str(file))] == [{"prompt": "What?", "responses": ["Four."]}]
    file.write_text("prompt,response,response\nWhat?,Four.,Five.\n")
    with pytest.raises(ValueError, match="has the column 'response' twice; rename one"):
        list(RowFile(str(file)))


def test_a_row_of_csv_with_a_comma_too_many_is_refused_and_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('prompt,response\nWhat?,"Four, surely."\nWhat?,Four, surely.\nWhat?,Four.,,\nWhat?\n')
    read = dict(RowFile(str(file)))
    assert "more cells than the header" in str(read.pop(3))
    assert [row["responses"] for row in read.values() if isinstance(row, dict) and "responses" in row] == [
        ["Four, surely."],
        ["Four."],
    ]


def test_a_line_that_is_no_object_does_not_end_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n{\n[1]\n' + "[" * 100_000 + '\n{"prompt": "b"}\n')
    read = dict(RowFile(str(file)))
    assert [number for number, row in read.items() if isinstance(row, dict)] == [1, 5]
    assert "not JSON" in str(read[2])
    assert "not JSON" in str(read[4])
    assert "not an object" in str(read[3])


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("prompt", "write FIELD=COLUMN, such as prompt=question"),
        ("=question", "write FIELD=COLUMN"),
        ("promt=question", "a row has no field 'promt'; did you mean 'prompt'?"),
        ("zzz=question", "the fields are id, prompt, responses"),
    ],
)
def test_a_wrong_column_option_is_explained(option: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("?", r"\?")):
        parse_columns([option])
