"""`adjudge score` on CSV, Parquet and compressed files, and its use of memory for long ones."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import Result

from adjudge_services.cli.scoring.score_file import BadLine, GroupLine, RowFile, ScoredLine, read_groups, stream_groups
from tests.services.cli.scoring.test_score import GROUP, RUBRIC
from tests.services.command import adjudge
from trainer_client.wire import Group, RewardAnswer

ROWS = [
    {"prompt": "Is 7 prime?", "responses": ["yes", "no"], "ground_truth": "yes", "difficulty": 1},
    {"prompt": "Is 8 prime?", "responses": ["maybe"], "ground_truth": None, "difficulty": 2},
]


def score(file: Path | str, rubric: Path, *options: str) -> Result:
    """Run the command with the scripted engine."""
    return adjudge("score", file, "--rubric", rubric, "--engine", "scripted://yes", *options)


def rewards(result: Result) -> list[list[float | None]]:
    return [[r["reward"] for r in json.loads(line)["responses"]] for line in result.stdout.splitlines()]


@pytest.fixture
def rubric(tmp_path: Path, migrated: None) -> Path:
    path = tmp_path / "rubric.json"
    path.write_text(json.dumps(RUBRIC))
    return path


def test_parquet_is_read_row_by_row_and_other_columns_are_named(tmp_path: Path, rubric: Path) -> None:
    file = tmp_path / "groups.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
    result = score(file, rubric)
    assert result.exit_code == 0
    assert rewards(result) == [[1.0, 1.0], [1.0]]
    assert "difficulty" in result.stderr


def test_chat_messages_in_parquet_are_read_without_the_nulls_of_arrow(tmp_path: Path, rubric: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "name": "a"}]
    file = tmp_path / "chats.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"prompt": messages[:1], "response": messages[1]["content"]}]), file
    )
    assert rewards(score(file, rubric)) == [[1.0]]


def test_csv_has_one_response_per_row_or_a_json_list_of_them(tmp_path: Path, rubric: Path) -> None:
    one, several = tmp_path / "one.csv", tmp_path / "several.csv"
    one.write_text('prompt,response\n"Is 7\nprime?","yes, it is"\nIs 8 prime?,no\n')
    several.write_text('prompt,responses\nIs 7 prime?,"[""yes"", ""no""]"\nIs 8 prime?,yes\n')
    assert rewards(score(one, rubric)) == [[1.0], [1.0]]
    result = score(several, rubric)
    assert result.exit_code == 1
    assert rewards(result) == [[1.0, 1.0]]
    assert "several.csv:3:" in result.stderr


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_fields_are_read_from_columns_of_other_names(tmp_path: Path, rubric: Path, ending: str) -> None:
    file = tmp_path / f"rows.{ending}"
    if ending == "csv":
        file.write_text("question,completion\nIs 7 prime?,yes\n")
    else:
        file.write_text('{"question": "Is 7 prime?", "completion": "yes"}\n')
    refused = score(file, rubric)
    assert refused.exit_code == 1
    assert "--column prompt=question" in refused.stderr
    renamed = score(file, rubric, "--column", "prompt=question", "--column", "response=completion")
    assert (renamed.exit_code, rewards(renamed)) == (0, [[1.0]])
    assert "not read" not in renamed.stderr
    wrong = score(file, rubric, "--column", "promt=question")
    assert "did you mean 'prompt'?" in wrong.stderr


def test_answers_are_taken_for_responses_unless_the_row_has_responses(tmp_path: Path, rubric: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "Is 7 prime?", "answers": ["yes"]}\n')
    refused = score(file, rubric).stderr
    assert "responses: Field required; 'answers' may be responses: --column responses=answers" in refused
    assert "ground_truth" not in refused
    assert rewards(score(file, rubric, "--column", "responses=answers")) == [[1.0]]
    file.write_text('{"prompt": "Is 7 prime?", "responses": ["yes"], "answers": "yes"}\n')
    assert "'answers' may be ground_truth: --column ground_truth=answers" in score(file, rubric).stderr


def test_compressed_files_and_files_in_object_stores_are_read_alike(tmp_path: Path, rubric: Path) -> None:
    text = "".join(json.dumps(GROUP | {"id": f"g{i}"}) + "\n" for i in range(3)).encode()
    (tmp_path / "groups.jsonl.gz").write_bytes(gzip.compress(text))
    with fsspec.open("memory://bucket/groups.jsonl", "wb") as file:
        file.write(text)
    packed, stored = score(tmp_path / "groups.jsonl.gz", rubric), score("memory://bucket/groups.jsonl", rubric)
    assert rewards(packed) == rewards(stored) == [[1.0, 1.0]] * 3


@pytest.mark.parametrize("name", ["rewards.parquet", "REWARDS.PARQUET"])
def test_rewards_can_be_written_as_parquet(tmp_path: Path, rubric: Path, name: str) -> None:
    file, output = tmp_path / "groups.csv", tmp_path / name
    file.write_text("id,prompt,response\na,?,yes\nb,?,no\n")
    assert score(file, rubric, "-o", str(output)).exit_code == 0
    rows = pyarrow.parquet.read_table(output).to_pylist()
    assert [(row["id"], row["rewards"], row["statuses"], row["failure"]) for row in rows] == [
        ("a", [1.0], ["scored"], None),
        ("b", [1.0], ["scored"], None),
    ]
    assert json.loads(rows[0]["verdicts"])[0][0]["criterion"] == "a"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("bad.parquet", b"no", "is not Parquet"), ("bad.csv", b"prompt,response\n\xff\xfe,x\n", "is not UTF-8")],
)
def test_a_file_that_does_not_match_its_suffix_is_refused(
    tmp_path: Path, rubric: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = score(tmp_path / name, rubric)
    assert result.exit_code == 1
    assert says in result.stderr


class StubClient:
    """A client that gives every response the reward 1."""

    async def rewards(self, groups: list[dict[str, Any]], **_: Any) -> RewardAnswer:
        response = {"reward": 1.0, "status": "scored", "verdicts": []}
        return RewardAnswer.model_validate(
            {
                "request_id": "r",
                "mode": "weighted_mean",
                "on_failure": "null",
                "rubrics": [],
                "groups": [{"id": groups[0]["id"], "responses": [response]}],
                "usage": {},
            }
        )


async def test_a_long_file_is_read_only_slightly_ahead_of_scoring() -> None:
    read = 0

    def lines() -> Iterator[GroupLine | BadLine]:
        nonlocal read
        for read in range(1, 1001):
            group = Group.model_validate({"id": f"g{read}", "prompt": "?", "responses": ["a", "b"]})
            yield BadLine(read, "bad") if read % 10 == 0 else GroupLine(read, group)

    client: Any = StubClient()
    done: list[ScoredLine] = []
    async for line in stream_groups(client, lines(), {}, concurrency=4, advance=lambda: None):
        done.append(line)
        assert read - len(done) <= 2 * 4
    assert [line.number for line in done] == list(range(1, 1001))
    assert [line.number for line in done if line.refused] == list(range(10, 1001, 10))


def test_the_share_read_grows_to_one(tmp_path: Path) -> None:
    file = tmp_path / "groups.jsonl"
    file.write_text("".join(json.dumps(GROUP) + "\n" for _ in range(10)))
    rows = RowFile(str(file))
    shares = [rows.share_read for _ in read_groups(rows)]
    assert shares == sorted(shares)
    assert 0.05 < shares[0] < 0.15
    assert rows.share_read == 1.0
    assert len(list(read_groups(RowFile(str(file), limit=3)))) == 3
