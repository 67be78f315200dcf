"""Runs over many inputs: bad inputs affect only themselves, and a stopped run repeats nothing."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric, Generator
from judge_server.generation.results import FolderInUse, RunFolder, read_failures, read_records, split_of
from judge_server.generation.writer import Writer
from judge_server.operations.generation_run import GenerationRun, GenerationSettings
from judge_server.operations.runner import MAX_CONSECUTIVE_FAILURES
from judge_server.ports import CallFailure, RubricSource
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore, SQLOperations
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.generation.toy import (
    ToyGenerator,
    ToyParameters,
    ToyRow,
    ToyScript,
    good,
    lines,
    questions,
    read_lines,
)
from trainer_client.wire import RubricContent
from trainer_client.wire.operations import OperationProgress


class ToyRuns:
    """Runs into a folder, over a rubric store. `problem` is why the last run stopped early, if it did."""

    def __init__(self, folder: Path, new_sqlite: NewSQLite, rubrics: RubricStore) -> None:
        self.folder = folder
        self.rubrics: RubricSource = rubrics
        self.problem: str | None = None
        self._new_sqlite = new_sqlite

    async def run(
        self,
        content: bytes,
        script: ToyScript,
        *,
        parameters: Mapping[str, Any] | None = None,
        generator: type[Generator[Any, Any]] = ToyGenerator,
        report: Callable[[OperationProgress], None] = lambda progress: None,
        model: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        publish: bool = False,
        **settings: Any,
    ) -> OperationProgress:
        """Run over a file with this content to the end; return the final progress."""
        file = write(self.folder.parent / "in.jsonl", content)
        engine = script.engine(**(engine_options or {}))
        identity = await engine.start()
        if model is not None:
            identity = replace(identity, model=model)
        writer = Writer(engine, identity, retry_delay_s=0.0)

        async def find(reference: str) -> Any:
            return await self.rubrics.find(PROJECT_ID, reference)

        made = generator(ToyParameters(**(parameters or {})), find=find)
        wanted = GenerationSettings(made.kind, file, dict(parameters or {}), publish=publish, **settings)
        with RunFolder(self.folder) as folder:
            if not folder.database.exists():
                self._new_sqlite(folder.database)
            store = SQLOperations(f"sqlite+aiosqlite:///{folder.database}")
            try:
                run = GenerationRun(wanted, made, writer, folder, store, self.rubrics, report=report)
                progress, self.problem = await run.run()
            finally:
                await store.close()
        return progress

    async def operations(self) -> list[tuple[str, str]]:
        """The ids and states of the operations in the folder, newest first."""
        store = SQLOperations(f"sqlite+aiosqlite:///{self.folder / 'operations.db'}")
        try:
            return [(one.id, one.state) for one in (await store.list(PROJECT_ID, 100)).operations]
        finally:
            await store.close()


def write(file: Path, content: bytes) -> Path:
    """Write the content to the file; return the file."""
    file.write_bytes(content)
    return file


def kinds(problems: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """The line and kind of each problem."""
    return [(problem["line"], problem["kind"]) for problem in problems]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def toy(out: Path, new_sqlite: NewSQLite, store: RubricStore, no_plots: None) -> ToyRuns:
    return ToyRuns(out, new_sqlite, store)


async def test_every_input_gives_a_rubric_that_is_stored_and_published(out: Path, toy: ToyRuns) -> None:
    progress = await toy.run(lines(*questions(5)), ToyScript(), publish=True)
    records = read_lines(out / "rubrics.jsonl")
    assert (progress.total, progress.made, progress.added, progress.done) == (5, 5, 5, 5)
    assert {record["metadata"]["question"] for record in records} == {row["question"] for row in questions(5)}
    published = {line["key"]: line for line in read_lines(out / "published.jsonl")}
    for record in records:
        assert published[record["key"]]["digest"] == record["digest"]
        assert published[record["key"]]["reference"] == f"{record['name']}@1"
        assert record["split"] == split_of(record["source_digest"])
        assert record["usage"] == {"calls": 2, "tokens_computed": 30, "tokens_reused": 5, "tokens_written": 34}
    assert (progress.calls, progress.tokens_written) == (10, 170)


async def test_a_line_with_several_inputs_gives_a_rubric_for_each(out: Path, toy: ToyRuns) -> None:
    class TwoRubricsGenerator(ToyGenerator):
        """Makes two rubrics of each line."""

        def inputs_of(self, row: ToyRow) -> list[ToyRow]:
            """The question twice."""
            return [row, row.model_copy(update={"question": row.question + " Again?"})]

    given = lines(*questions(2), *questions(1))
    progress = await toy.run(given, ToyScript(), generator=TwoRubricsGenerator)
    assert (progress.total, progress.made, progress.repeated) == (4, 4, 2)
    assert sorted(record["line"] for record in read_lines(out / "rubrics.jsonl")) == [1, 1, 2, 2]
    again = ToyScript()
    assert (await toy.run(given, again, generator=TwoRubricsGenerator)).known == 4
    assert again.questions == []


async def test_a_second_run_asks_and_publishes_nothing(out: Path, toy: ToyRuns) -> None:
    given = lines(*questions(4))
    await toy.run(given, ToyScript(), publish=True)
    before = _contents(out)
    again = ToyScript()
    progress = await toy.run(given, again, publish=True)
    assert again.questions == []
    assert (progress.known, progress.made, progress.added, progress.done) == (4, 4, 0, 4)
    assert _contents(out) == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


async def test_only_new_lines_of_the_file_are_asked(toy: ToyRuns) -> None:
    await toy.run(lines(*questions(3)), ToyScript(), limit=2)
    more = ToyScript()
    await toy.run(lines(*questions(4)), more)
    assert sorted(more.questions) == ["What is 3 times 3?", "What is 4 times 4?"]


@pytest.mark.parametrize("what", ["parameters", "model"])
async def test_other_parameters_or_another_model_generate_again(toy: ToyRuns, what: str) -> None:
    given = lines(*questions(2))
    await toy.run(given, ToyScript())
    again = ToyScript()
    await toy.run(
        given, again, **({"parameters": {"max_criteria": 9}} if what == "parameters" else {"model": "another"})
    )
    assert len(again.questions) == 2


async def test_unpublished_rubrics_are_published_by_the_next_run_without_a_model(out: Path, toy: ToyRuns) -> None:
    given = lines(*questions(3))
    await toy.run(given, ToyScript())
    again = ToyScript()
    progress = await toy.run(given, again, publish=True)
    assert (again.questions, progress.made, progress.added) == ([], 3, 3)
    assert [len(read_lines(out / name)) for name in ("rubrics.jsonl", "published.jsonl")] == [3, 3]


async def test_the_files_are_rewritten_from_the_database(out: Path, toy: ToyRuns) -> None:
    given = lines(*questions(3))
    await toy.run(given, ToyScript(), publish=True)
    before = _contents(out)
    for name in ("rubrics.jsonl", "published.jsonl"):
        (out / name).write_bytes(before[name][:-20])
    again = ToyScript()
    await toy.run(given, again, publish=True)
    assert again.questions == []
    assert _contents(out) == before


async def test_results_of_a_release_without_a_database_are_not_touched(out: Path, toy: ToyRuns) -> None:
    write(out / "rubrics.jsonl", b"{}\n")
    with pytest.raises(ValueError, match="use another folder"):
        await toy.run(lines(*questions(1)), ToyScript())
    assert (out / "rubrics.jsonl").read_bytes() == b"{}\n"


async def test_a_run_cancelled_midway_continues_where_it_stopped(out: Path, toy: ToyRuns, store: RubricStore) -> None:
    given, first = lines(*questions(12)), ToyScript()
    three = asyncio.Event()

    def report(progress: OperationProgress) -> None:
        if progress.made >= 3:
            three.set()

    options = {"delay_s": 0.02, "concurrent_batches": 2}
    task = asyncio.create_task(toy.run(given, first, publish=True, report=report, engine_options=options))
    await three.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    begun = await toy.operations()
    second = ToyScript()
    progress = await toy.run(given, second, publish=True)
    assert 3 <= progress.known < 12
    assert (len(second.questions), progress.made) == (12 - progress.known, 12)
    for record in read_lines(out / "published.jsonl"):
        version = await store.find(PROJECT_ID, record["reference"])
        assert version is not None
        assert version.lineage is not None
        assert (version.version, version.lineage.operation_id) == (1, begun[0][0])
    assert await toy.operations() == [(begun[0][0], "done")], "the operation continues; no new one is created"


HALF = good("x")[:40]
FORTY = json.dumps({"items": [{"text": f"Says {n}.", "weight": 1} for n in range(40)]})
NEGATIVE = json.dumps({"items": [{"text": "Says it.", "weight": -3}]})


async def test_bad_model_output_is_discarded_by_reason_and_the_run_continues(out: Path, toy: ToyRuns) -> None:
    wrong = {1: "I would rather talk about the weather.", 2: HALF, 3: FORTY, 4: NEGATIVE, 5: '{"items": [{"text": 1}]}'}
    script = ToyScript(lambda question: wrong.get(int(question.split()[2]), good(question)))
    given = lines(*questions(8))
    progress = await toy.run(given, script, publish=True)
    assert progress.discarded == {"unreadable": 2, "too_many": 1, "invalid_rubric": 1, "wrong_shape": 1}
    assert (progress.made, progress.added, progress.failed) == (3, 3, 0)
    discarded = {line["line"]: line for line in read_lines(out / "discarded.jsonl")}
    assert sorted(discarded) == [1, 2, 3, 4, 5]
    assert all(line["detail"] and line["usage"]["calls"] == 2 for line in discarded.values())
    assert Counter(line["reason"] for line in discarded.values()) == progress.discarded
    again = ToyScript()
    assert (await toy.run(given, again)).discarded == progress.discarded
    assert again.questions == []


async def test_invalid_lines_are_reported_by_number_and_the_others_are_done(out: Path, toy: ToyRuns) -> None:
    content = lines(
        {"question": "What is 1?"},
        b"{not json\n",
        b'{"question": "\xff"}\n',
        [1, 2],
        {"other": 1},
        b"\n",
        {"question": "   "},
        b"[" * 100_000 + b"\n",
        {"question": "What is 2?", "name": "Not A Name"},
        {"question": "What is 2?"},
    )
    progress = await toy.run(content, ToyScript())
    assert (progress.made, progress.refused, progress.total) == (2, 7, 2)
    problems = list(read_failures(out))
    assert kinds(problems) == [(n, "refused") for n in (2, 3, 4, 5, 7, 8, 9)]
    assert "question" in problems[3]["detail"]
    assert "name" in problems[-1]["detail"]


async def test_two_inputs_with_the_same_content_are_done_and_reported_once(out: Path, toy: ToyRuns) -> None:
    rows = [
        {"id": "a", "question": "What is 1?", "document": "One."},
        {"id": "b", "question": " What is 1?\n", "document": "One.\n"},
        {"id": "c", "question": "What is 2?", "document": "One."},
    ]
    script = ToyScript()
    progress = await toy.run(lines(*rows), script)
    assert (progress.made, progress.repeated, len(script.questions)) == (2, 1, 2)
    (problem,) = read_failures(out)
    assert (problem["line"], problem["kind"]) == (2, "repeated")
    assert "line 1" in problem["detail"]
    first, second = read_lines(out / "rubrics.jsonl")
    assert first["split"] == second["split"], "rows with one document belong to one split"


async def test_a_name_is_used_by_one_input_unless_the_generator_revises(out: Path, toy: ToyRuns) -> None:
    rows = [{"question": f"What is {n}?", "name": "sums/one"} for n in (1, 2)]
    progress = await toy.run(lines(*rows), ToyScript(), publish=True, prefix="team/", concurrency=1)
    assert (progress.refused, progress.added) == (1, 1)
    assert [one["name"] for one in read_lines(out / "rubrics.jsonl")] == ["team/sums/one"]


class RevisingGenerator(ToyGenerator):
    """Revises the version named by the row's document."""

    kind = "revising"
    revises = True

    async def make(self, row: ToyRow, writer: Writer) -> GeneratedRubric:
        made = await super().make(row, writer)
        assert self.find is not None
        assert (await self.find(row.document)) is not None
        return replace(made, name=row.document.partition("@")[0], parent_reference=row.document)


async def test_a_revision_is_a_version_whose_parent_is_the_revised_one(toy: ToyRuns, store: RubricStore) -> None:
    first = lines({"question": "What is 1?", "name": "team/one"})
    await toy.run(first, ToyScript(), publish=True)
    rows = [{"question": f"What is {n}?", "document": "team/one@1", "name": "team/one"} for n in (2, 3)]
    progress = await toy.run(lines(*rows), ToyScript(), publish=True, generator=RevisingGenerator, concurrency=1)
    assert (progress.refused, progress.added) == (0, 2)
    versions = [await store.find(PROJECT_ID, f"team/one@{n}") for n in (1, 2, 3)]
    assert [version and version.parent for version in versions] == [None, 1, 1]


async def test_an_input_on_which_the_engine_failed_is_not_a_discard_and_is_retried(out: Path, toy: ToyRuns) -> None:
    down = ToyScript(lambda question: CallFailure("engine", "it is down") if "2 times" in question else good(question))
    given = lines(*questions(4))
    progress = await toy.run(given, down)
    assert (progress.made, progress.failed, progress.discarded, progress.done) == (3, 1, Counter(), 4)
    assert kinds(list(read_failures(out))) == [(2, "engine")]
    up = ToyScript()
    progress = await toy.run(given, up)
    assert (progress.made, progress.failed, up.questions) == (4, 0, ["What is 2 times 2?"])
    assert list(read_failures(out)) == []


async def test_a_run_ends_when_the_engine_keeps_failing_and_says_so(toy: ToyRuns) -> None:
    script = ToyScript(lambda question: CallFailure("engine", "connection refused"))
    given = lines(*questions(40))
    progress = await toy.run(given, script, concurrency=2)
    assert "connection refused" in (toy.problem or "")
    assert len(set(script.questions)) == progress.failed == MAX_CONSECUTIVE_FAILURES + 2
    again = ToyScript()
    assert (await toy.run(given, again)).made == 40
    assert toy.problem is None


async def test_failures_that_are_not_consecutive_do_not_end_a_run(toy: ToyRuns) -> None:
    number = 4 * MAX_CONSECUTIVE_FAILURES
    script = ToyScript(
        lambda question: good(question) if int(question.split()[2]) % 2 else CallFailure("engine", "it hiccups")
    )
    progress = await toy.run(lines(*questions(number)), script, concurrency=1)
    assert (progress.made, progress.failed) == (number // 2, number // 2)


async def test_a_transient_engine_failure_is_retried(toy: ToyRuns) -> None:
    seen: Counter[str] = Counter()

    def flaky(question: str) -> str | CallFailure:
        seen[question] += 1
        return good(question) if seen[question] > 2 else CallFailure("overloaded", "later", retry_after_s=0.0)

    progress = await toy.run(lines(*questions(3)), ToyScript(flaky))
    assert (progress.made, progress.failed) == (3, 0)


async def test_a_prompt_that_does_not_fit_is_a_discard(toy: ToyRuns) -> None:
    given = lines(*questions(1), {"question": "word " * 20_000})
    progress = await toy.run(given, ToyScript(), engine_options={"context_tokens": 4096})
    assert (progress.made, progress.discarded) == (1, {"too_long": 1})


async def test_a_rubric_that_the_store_rejects_is_reported_and_published_by_the_next_run(
    out: Path, toy: ToyRuns, store: RubricStore
) -> None:
    class RejectingStore:
        """A store that rejects one of the rubrics."""

        async def publish(self, project_id: str, name: str, content: RubricContent, **more: Any) -> Any:
            if more["metadata"]["question"] == "What is 2 times 2?":
                raise ValueError("its name is too long")
            return await store.publish(project_id, name, content, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    given = lines(*questions(3))
    toy.rubrics = RejectingStore()  # type: ignore[assignment]
    progress = await toy.run(given, ToyScript(), publish=True)
    assert (progress.made, progress.added, progress.unpublished) == (3, 2, 1)
    (problem,) = read_failures(out)
    assert (problem["line"], problem["kind"], problem["detail"]) == (2, "unpublished", "its name is too long")
    toy.rubrics = store
    again = ToyScript()
    progress = await toy.run(given, again, publish=True)
    assert (again.questions, progress.added, progress.unpublished) == ([], 1, 0)


async def test_at_most_the_requested_number_of_inputs_is_in_work(toy: ToyRuns) -> None:
    working, most, three = 0, 0, asyncio.Event()

    class CountingGenerator(ToyGenerator):
        async def make(self, row, writer):  # type: ignore[no-untyped-def]
            nonlocal working, most
            working += 1
            most = max(most, working)
            if working == 3:
                three.set()
            await three.wait()
            try:
                return await super().make(row, writer)
            finally:
                working -= 1

    await toy.run(lines(*questions(12)), ToyScript(), concurrency=3, generator=CountingGenerator)
    assert most == 3


async def test_progress_is_reported_from_none_to_all(toy: ToyRuns) -> None:
    told: list[tuple[int, int | None, float | None]] = []

    def report(progress: OperationProgress) -> None:
        told.append((progress.done, progress.total, progress.eta_s))

    await toy.run(lines(*questions(4)), ToyScript(), concurrency=1, report=report)
    assert told[0] == (0, 4, None)
    assert told[-1] == (4, 4, 0)
    assert sorted(told, key=lambda one: one[0]) == told


def test_two_runs_do_not_share_a_folder(out: Path) -> None:
    with RunFolder(out), pytest.raises(FolderInUse, match="another folder"), RunFolder(out):
        pass
    with RunFolder(out):
        pass


class FileRow(ToyRow):
    """A row whose document is a file."""

    question: str = "What does it say?"
    path: str

    def loaded(self, folder: Path | None) -> "FileRow":
        if self.document:
            return self
        assert folder is not None
        return self.model_copy(update={"document": (folder / self.path).read_text(encoding="utf-8")})


class FileGenerator(ToyGenerator):
    Input = FileRow


async def test_an_unreadable_document_is_reported_and_the_others_are_done(
    tmp_path: Path, out: Path, toy: ToyRuns
) -> None:
    (tmp_path / "good.txt").write_text("It says so.")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    rows = [{"path": path} for path in ("bad.txt", "good.txt", "none.txt", ".")]
    progress = await toy.run(lines(*rows), ToyScript(), generator=FileGenerator)
    assert (progress.made, progress.refused) == (1, 3)
    problems = list(read_failures(out))
    assert kinds(problems) == [(1, "refused"), (3, "refused"), (4, "refused")]
    assert "UTF-8" in problems[0]["detail"]
    assert "none.txt" in problems[1]["detail"]


async def test_a_run_over_an_empty_file_does_nothing(toy: ToyRuns) -> None:
    progress = await toy.run(b"", ToyScript())
    assert (progress.total, progress.done, progress.made) == (0, 0, 0)


async def test_inputs_done_by_another_run_in_between_are_not_repeated(toy: ToyRuns) -> None:
    down = ToyScript(lambda question: CallFailure("engine", "down") if "1 times" not in question else good(question))
    given = lines(*questions(3))
    assert (await toy.run(given, down)).failed == 2
    more = lines(*questions(4))
    assert (await toy.run(more, ToyScript())).made == 4
    again = ToyScript()
    progress = await toy.run(given, again)
    assert (again.questions, progress.known, progress.failed) == ([], 3, 0)


@pytest.mark.parametrize("line", [b"{broken}\n", b"[1]\n", b"\xff\n"])
def test_a_corrupt_record_is_named_by_line(tmp_path: Path, line: bytes) -> None:
    file = write(tmp_path / "j", lines({"a": 1}) + line)
    with pytest.raises(ValueError, match="j:2 is not a JSON record"):
        list(read_records(file))


def test_an_incomplete_line_is_not_read(tmp_path: Path) -> None:
    assert list(read_records(write(tmp_path / "j", b'{"a": "\xe2\x80\xa8"}\n{"b"'))) == [{"a": "\u2028"}]
    assert list(read_records(tmp_path / "none")) == []
