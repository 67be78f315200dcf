"""`generate_rubrics`: a run as an operation, over a real store."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds import GENERATORS
from judge_server.generation.run import MAX_CONSECUTIVE_FAILURES
from judge_server.generation.writer import Writer
from judge_server.operations import InProcessOperations
from judge_server.operations.handlers.generate import GenerateJob
from judge_server.ports import CallFailure, Operation
from judge_server.rubrics import PROJECT_ID
from rubric_store import RubricStore
from tests.judge_server.generation.running import write
from tests.judge_server.generation.toy import ToyGenerator, ToyRow, ToyScript, lines, questions, read_lines


class Revising(ToyGenerator):
    """Revises the version that the row's document names."""

    kind = "revising"
    revises = True
    closed = 0

    async def make(self, row: ToyRow, writer: Writer) -> GeneratedRubric:
        made = await super().make(row, writer)
        assert self.find is not None
        assert (await self.find(row.document)) is not None
        return replace(made, name=row.document.partition("@")[0], parent_reference=row.document)

    async def close(self) -> None:
        Revising.closed += 1


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for generator in (ToyGenerator, Revising):
        monkeypatch.setitem(GENERATORS, generator.kind, generator)
    Revising.closed = 0


async def generated(
    folder: Path, store: RubricStore, script: ToyScript, request: dict[str, Any]
) -> tuple[Operation, tuple[dict[str, Any], ...]]:
    """The operation when it has ended, and its first page of results."""
    engine = script.engine()

    async def writer() -> Writer:
        return Writer(engine, await engine.start(), retry_delay_s=0.0)

    operations = InProcessOperations(folder, {"generate_rubrics": GenerateJob(writer, store)})
    try:
        begun = await operations.submit(PROJECT_ID, "generate_rubrics", request)
        *_, ended = [one async for one in operations.events(PROJECT_ID, begun.id)]
        return ended, (await operations.results(PROJECT_ID, begun.id)).results
    finally:
        await operations.close()


async def test_an_operation_makes_publishes_and_tells_its_results(tmp_path: Path, store: RubricStore) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(3), b"broken\n"))
    operation, results = await generated(tmp_path / "ops", store, ToyScript(), {"generator": "toy", "input": str(file)})
    progress = operation.progress
    assert (operation.state, progress.made, progress.added, progress.refused) == ("done", 3, 3, 1)
    assert (progress.calls, progress.tokens_written, progress.eta_s) == (6, 102, 0)
    assert list(results) == read_lines(tmp_path / "ops" / operation.id / "rubrics.jsonl")
    for result in results:
        version = await store.find(PROJECT_ID, result["name"])
        assert version is not None
        assert version.digest == result["digest"]
        assert version.lineage is not None
        assert version.lineage.operation_id == operation.id


async def test_a_revision_is_a_version_whose_parent_is_the_one_it_revises(tmp_path: Path, store: RubricStore) -> None:
    first = write(tmp_path / "first.jsonl", lines({"question": "What is 1?", "name": "team/one"}))
    await generated(tmp_path / "ops", store, ToyScript(), {"generator": "toy", "input": str(first)})
    rows = [{"question": f"What is {n}?", "document": "team/one@1"} for n in (2, 3)]
    file = write(tmp_path / "in.jsonl", lines(*rows))
    request = {"generator": "revising", "input": str(file), "out": str(tmp_path / "out"), "concurrency": 1}
    operation, results = await generated(tmp_path / "ops", store, ToyScript(), request)
    assert operation.state == "done", operation.problem
    assert [result["name"] for result in results] == ["team/one", "team/one"]
    versions = [await store.find(PROJECT_ID, f"team/one@{n}") for n in (1, 2, 3)]
    assert [version and version.parent for version in versions] == [None, 1, 1]
    assert Revising.closed == 1


async def test_a_generator_is_closed_also_where_its_run_fails(tmp_path: Path, store: RubricStore) -> None:
    script = ToyScript(lambda question: CallFailure("engine", "gone"))
    rows = [{"question": f"What is {n}?", "document": f"x@{n}"} for n in range(2 * MAX_CONSECUTIVE_FAILURES)]
    file = write(tmp_path / "in.jsonl", lines(*rows))
    request = {"generator": "revising", "input": str(file), "concurrency": 1}
    operation, _ = await generated(tmp_path / "ops", store, script, request)
    assert (operation.state, Revising.closed) == ("failed", 1)
    assert "gone" in (operation.problem or "")


async def test_a_file_that_goes_away_fails_the_operation_with_a_sentence(tmp_path: Path, store: RubricStore) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(1)))
    script = ToyScript()
    engine = script.engine()

    async def writer() -> Writer:
        file.unlink()
        return Writer(engine, await engine.start())

    operations = InProcessOperations(tmp_path / "ops", {"generate_rubrics": GenerateJob(writer, store)})
    begun = await operations.submit(PROJECT_ID, "generate_rubrics", {"generator": "toy", "input": str(file)})
    *_, ended = [one async for one in operations.events(PROJECT_ID, begun.id)]
    assert ended.state == "failed"
    assert "No such file" in (ended.problem or "")


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"input": "IN"}, "generator"),
        ({"generator": "nothing", "input": "IN"}, "there is no generator 'nothing'; there are"),
        ({"generator": "toy", "input": "elsewhere"}, "there is no file elsewhere"),
        ({"generator": "toy", "input": "IN", "parameters": {"mist": 1}}, "mist"),
        ({"generator": "toy", "input": "IN", "limit": 0}, "limit"),
        ({"generator": "toy", "input": "IN", "more": 1}, "more"),
    ],
)
async def test_a_request_that_cannot_be_run_is_refused(
    tmp_path: Path, store: RubricStore, request_: dict[str, Any], says: str
) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(1)))
    request = {key: str(file) if value == "IN" else value for key, value in request_.items()}
    with pytest.raises(ValueError, match=says):
        await generated(tmp_path / "ops", store, ToyScript(), request)
