"""`adjudge generate` on the command line, and killed in the middle."""

import asyncio
import json
import os
import signal
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from adjudge_services.cli.rubrics import generate as generate_run
from adjudge_services.settings import Settings
from judge_server.generation.kinds import GENERATORS
from judge_server.generation.writer import Writer
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore
from tests.judge_server.generation.toy import ToyGenerator, good, lines, questions, read_lines
from tests.services.command import adjudge, failure_of
from tests.services.preforked import start
from tests.services.writing_model import WritingModel, writing_model
from trainer_client.wire import RubricVersion

pytestmark = pytest.mark.usefixtures("migrated")


@pytest.fixture
def model() -> Iterator[WritingModel]:
    with writing_model() as running:
        yield running


@pytest.fixture(autouse=True)
def _toy(no_plots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATORS, "toy", ToyGenerator)
    monkeypatch.setattr(generate_run, "Writer", partial(Writer, retry_delay_s=0.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(*questions(6)))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def generate(model: WritingModel, file: Path, out: Path, *options: str) -> Result:
    return adjudge("generate", "toy", file, "--output", out, "--engine", model.url, *options)


def stored_results(out: Path) -> list[dict[str, Any]]:
    """Return the results in the database of a folder."""
    database = sqlite3.connect(out / "operations.db")
    rows = database.execute("SELECT body FROM operation_results").fetchall()
    database.close()
    return [json.loads(zlib.decompress(body)) for (body,) in rows]


def found(reference: str) -> RubricVersion | None:
    async def find() -> RubricVersion | None:
        store = RubricStore(Settings().store_url)
        try:
            return await store.find(PROJECT_ID, reference)
        finally:
            await store.close()

    return asyncio.run(find())


def test_a_run_becomes_rows_for_a_trainer_in_one_command(
    model: WritingModel, file: Path, out: Path, tmp_path: Path
) -> None:
    assert generate(model, file, out).exit_code == 0
    adjudge("rows", out, "--output", tmp_path / "rows", exit_code=0)
    rows = [row for name in ("train", "validation", "test") for row in read_lines(tmp_path / "rows" / f"{name}.jsonl")]
    assert len(rows) == 6
    assert all(found(row["rubric"]) is not None and row["prompt"] for row in rows)
    assert "does not exist" in failure_of(adjudge("rows", tmp_path, "--output", tmp_path / "more"))


def test_an_invalid_template_set_is_refused(model: WritingModel, file: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "answer.j2").write_text("Solve it.", encoding="utf-8")
    result = generate(model, file, out, "--templates", str(tmp_path / "own"))
    assert result.exit_code == 1
    assert "own/answer.j2 does not show 'question'" in result.stderr


def test_rubrics_are_published_with_their_lineage(model: WritingModel, file: Path, out: Path) -> None:
    result = generate(model, file, out, "--prefix", "team/", "--set", "max_criteria=5")
    assert result.exit_code == 0, result.output
    assert "6 rubrics from 6 inputs" in result.stdout
    assert "6 new in the store" in result.stderr
    references = {line["key"]: line["reference"] for line in read_lines(out / "published.jsonl")}
    records = read_lines(out / "rubrics.jsonl")
    assert {record["key"] for record in records} == references.keys()
    for record in records:
        version = found(references[record["key"]])
        assert version is not None
        assert version.reference.startswith("team/toy/")
        assert [c.model_dump(mode="json", exclude_none=True) for c in version.criteria] == record["criteria"]
        assert version.lineage is not None
        assert (version.lineage.generator, version.lineage.model) == ("toy", "writer")
        assert version.lineage.parameters.items() >= {"max_criteria": 5, "temperature": 0.0}.items()
        assert version.lineage.source_digest == record["source_digest"]
        assert (version.lineage.operation_id or "").startswith("op-")
        assert version.metadata == record["metadata"]


@pytest.mark.usefixtures("plots")
def test_a_run_writes_statistics_a_plot_and_splits(model: WritingModel, file: Path, out: Path) -> None:
    generate(model, file, out, "--no-publish")
    statistics = json.loads((out / "statistics.json").read_text())
    assert (statistics["inputs"], statistics["rubrics"], statistics["criteria_counts"]) == (6, 6, {"3": 6})
    assert (out / "statistics.svg").read_text().startswith("<?xml")
    splits = {path.stem: read_lines(path) for path in (out / "splits").iterdir()}
    assert set(splits) == {"train", "validation", "test"}
    assert sum(map(len, splits.values())) == 6
    for split, records in splits.items():
        assert {record["split"] for record in records} <= {split}
    assert (out / "published.jsonl").read_bytes() == b""


def test_the_same_command_again_makes_no_calls_and_says_so(model: WritingModel, file: Path, out: Path) -> None:
    generate(model, file, out)
    before = len(model.questions)
    again = generate(model, file, out)
    assert again.exit_code == 0
    assert len(model.questions) == before
    assert "6 rubrics, 6 inputs done before; 0 calls" in again.stderr


def test_unreadable_lines_are_reported_and_fail_the_command(model: WritingModel, file: Path, out: Path) -> None:
    file.write_bytes(lines({"question": "What?"}, b"[broken\n", {"question": "What?"}))
    result = generate(model, file, out)
    assert result.exit_code == 1
    assert "line 2, refused: not JSON" in result.stderr
    assert "line 3, repeated: it has the same content as line 1" in result.stderr
    assert "1 rubric from 1 input" in result.stdout


def test_discards_are_counted_and_do_not_fail_the_command(file: Path, out: Path) -> None:
    with writing_model(lambda question: "No." if "2 times" in question else good(question)) as model:
        result = generate(model, file, out)
    assert result.exit_code == 0
    assert "1 unreadable" in result.stdout
    assert "5 rubrics from 6 inputs" in result.stdout
    assert "discarded.jsonl" in result.stderr


def test_a_failing_engine_ends_the_run_and_the_next_run_continues(file: Path, out: Path) -> None:
    file.write_bytes(lines(*questions(24)))
    with writing_model() as model:
        model.pause = lambda: setattr(model, "down", len(model.questions) >= 4)
        result = generate(model, file, out)
        assert result.exit_code == 1
        assert "the model is gone" in result.stderr
        assert "run the same command again to continue" in result.stderr
        kept = len(read_lines(out / "rubrics.jsonl"))
        assert 1 <= kept < 24
        model.pause, model.down = (lambda: None), False
        result = generate(model, file, out)
    assert result.exit_code == 0
    assert f"{kept} inputs done before" in result.stderr
    assert "24 rubrics from 24 inputs" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "nothing"], "adjudge generate KIND INPUT.jsonl --output DIR"),
        (["generate", "nothing", "IN", "--output", "OUT"], "there is no generator 'nothing'"),
        (["generate", "toy", "IN", "--output", "IN"], "is a file"),
        (["generate", "toy", "IN", "--output", "OUT", "--set", "max_criteria=many"], "max_criteria"),
        (["generate", "toy", "IN", "--output", "OUT", "--set", "mist=3"], "mist"),
        (["generate", "toy", "IN", "--output", "OUT", "--set", "max_criteria"], "NAME=VALUE"),
        (["generate", "toy", "IN", "--output", "OUT", "--engine", "nowhere://"], "engine scheme"),
        (["generate", "toy", "IN", "--output", "OUT", "--engine", "openai+http://127.0.0.1:9/v1"], "127.0.0.1:9"),
    ],
)
def test_an_invalid_command_says_why(file: Path, out: Path, arguments: list[str], says: str) -> None:
    given = [{"IN": str(file), "OUT": str(out)}.get(word, word) for word in arguments]
    if "--engine" not in given:
        given += ["--engine", "scripted://hash"]
    result = adjudge(*given)
    assert result.exit_code != 0
    assert says in result.output


def test_the_list_shows_every_generator_with_its_inputs_and_parameters() -> None:
    shown = adjudge("generate", "--list", exit_code=0)
    for word in ("toy", "answer → criteria", "question (required)", "max_criteria=4", *GENERATORS):
        assert word in shown.stdout


ADD_TOY = """
from judge_server.generation.kinds import GENERATORS
from tests.judge_server.generation.toy import ToyGenerator
GENERATORS["toy"] = ToyGenerator
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["killed", "interrupted"]
)
def test_a_killed_or_interrupted_run_continues_and_repeats_nothing(file: Path, out: Path, end: signal.Signals) -> None:
    file.write_bytes(lines(*questions(12)))
    halfway, go = threading.Event(), threading.Event()
    with writing_model() as model:

        def pause() -> None:
            if len(model.questions) > 6:
                halfway.set()
                go.wait(300)

        model.pause = pause
        command = ["generate", "toy", str(file), "--output", str(out), "--engine", model.url]
        first = start(command, os.environ, ADD_TOY)
        assert first.stderr is not None
        while not halfway.wait(0.1):
            assert first.poll() is None, first.stderr.read()
        first.send_signal(end)
        said = first.stderr.read()
        assert first.wait(300) == (-signal.SIGKILL if end == signal.SIGKILL else 130), said
        if end == signal.SIGINT:
            assert "Run the same command again to continue" in said
        model.pause = lambda: None
        go.set()
        kept = {record["metadata"]["question"] for record in stored_results(out)}
        assert 1 <= len(kept) < 12
        asked = list(model.questions)
        second = start(command, os.environ, ADD_TOY, stderr=None)
        assert second.wait(300) == 0
        assert not kept & set(model.questions[len(asked) :]), "completed inputs are not asked again"
    records = read_lines(out / "rubrics.jsonl")
    assert Counter(record["metadata"]["question"] for record in records) == Counter(
        row["question"] for row in questions(12)
    )
    references = [line["reference"] for line in read_lines(out / "published.jsonl")]
    assert len(references) == len(set(references)) == 12
    assert all(reference.endswith("@1") for reference in references)
    database = sqlite3.connect(out / "operations.db")
    assert database.execute("SELECT state FROM operations").fetchall() == [("done",)], "the same operation continues"
    database.close()
