"""Runs over many inputs: what is bad costs only itself, and a run that was stopped does nothing twice."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from judge_server.generation.run import MAX_CONSECUTIVE_FAILURES, GeneratorRunSettings, RunStopped
from judge_server.generation.run_folder import FolderInUse, RunFolder, read_failures, split_of
from judge_server.ports import CallFailure
from tests.judge_server.generation.running import Store, kinds, run_toy, write
from tests.judge_server.generation.toy import ToyGenerator, ToyRow, ToyScript, good, lines, questions, read_lines


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


async def test_every_input_gives_a_rubric_that_is_kept_and_published(tmp_path: Path, out: Path) -> None:
    file, store = write(tmp_path / "in.jsonl", lines(*questions(5))), Store()
    run_counts = await run_toy(out, file, ToyScript(), publish=store)
    records = read_lines(out / "rubrics.jsonl")
    assert (run_counts.total, run_counts.made, run_counts.added, run_counts.done) == (5, 5, 5, 5)
    assert {record["metadata"]["question"] for record in records} == {row["question"] for row in questions(5)}
    published = {line["key"]: line for line in read_lines(out / "published.jsonl")}
    for record in records:
        assert published[record["key"]]["digest"] == record["digest"]
        assert published[record["key"]]["reference"] == f"{record['name']}@1"
        assert record["split"] == split_of(record["source_digest"])
        assert record["usage"] == {"calls": 2, "tokens_computed": 30, "tokens_reused": 5, "tokens_written": 34}
    assert (run_counts.usage.calls, run_counts.usage.tokens_written) == (10, 170)


async def test_a_line_that_stands_for_several_inputs_gives_a_rubric_for_each(tmp_path: Path, out: Path) -> None:
    class Twice(ToyGenerator):
        """Makes two rubrics of a line."""

        def inputs_of(self, row: ToyRow) -> list[ToyRow]:
            """The question, and once more."""
            return [row, row.model_copy(update={"question": row.question + " Again?"})]

    file = write(tmp_path / "in.jsonl", lines(*questions(2), *questions(1)))
    run_counts = await run_toy(out, file, ToyScript(), generator=Twice)
    assert (run_counts.total, run_counts.made, run_counts.repeated) == (4, 4, 2)
    assert sorted(record["line"] for record in read_lines(out / "rubrics.jsonl")) == [1, 1, 2, 2]
    again = ToyScript()
    assert (await run_toy(out, file, again, generator=Twice)).known == 4
    assert again.questions == []


async def test_a_second_run_asks_and_publishes_nothing(tmp_path: Path, out: Path) -> None:
    file, store = write(tmp_path / "in.jsonl", lines(*questions(4))), Store()
    await run_toy(out, file, ToyScript(), publish=store)
    before = _contents(out)
    again = ToyScript()
    run_counts = await run_toy(out, file, again, publish=store)
    assert (again.questions, store.calls) == ([], 4)
    assert (run_counts.known, run_counts.made, run_counts.added, run_counts.done) == (4, 4, 0, 4)
    assert _contents(out) == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


async def test_only_what_is_new_in_the_file_is_asked(tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(3)))
    await run_toy(out, file, ToyScript(), settings=GeneratorRunSettings(limit=2))
    more = ToyScript()
    await run_toy(out, write(file, lines(*questions(4))), more)
    assert sorted(more.questions) == ["What is 3 times 3?", "What is 4 times 4?"]


@pytest.mark.parametrize("what", ["parameters", "model"])
async def test_another_way_of_making_makes_anew(tmp_path: Path, out: Path, what: str) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(2)))
    await run_toy(out, file, ToyScript())
    again = ToyScript()
    if what == "parameters":
        await run_toy(out, file, again, parameters={"most": 9})
    else:
        engine = again.engine
        again.engine = lambda **options: _renamed(engine(**options))  # type: ignore[method-assign]
        await run_toy(out, file, again)
    assert len(again.questions) == 2


def _renamed(engine):  # type: ignore[no-untyped-def]
    start = engine.start

    async def renamed():  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return replace(await start(), model="another")

    engine.start = renamed
    return engine


async def test_what_was_made_and_not_published_is_published_by_the_next_run_without_a_model(
    tmp_path: Path, out: Path
) -> None:
    file, store = write(tmp_path / "in.jsonl", lines(*questions(3))), Store()
    await run_toy(out, file, ToyScript())
    again = ToyScript()
    run_counts = await run_toy(out, file, again, publish=store)
    assert (again.questions, store.calls, run_counts.added) == ([], 3, 3)


async def test_what_a_kill_left_half_written_is_made_again_and_the_rest_is_not(tmp_path: Path, out: Path) -> None:
    file, store = write(tmp_path / "in.jsonl", lines(*questions(3))), Store()
    settings = GeneratorRunSettings(concurrency=1)
    await run_toy(out, file, ToyScript(), publish=store, settings=settings)
    for name in ("rubrics.jsonl", "published.jsonl"):
        whole = (out / name).read_bytes()
        (out / name).write_bytes(whole[:-20])
    again = ToyScript()
    await run_toy(out, file, again, publish=store, settings=settings)
    assert again.questions == ["What is 3 times 3?"]
    assert len({record["key"] for record in read_lines(out / "rubrics.jsonl")}) == 3
    assert len(read_lines(out / "rubrics.jsonl")) == 3
    assert [len(digests) for digests in store.versions.values()] == [1, 1, 1]


async def test_a_run_cancelled_midway_goes_on_where_it_was(tmp_path: Path, out: Path) -> None:
    file, store, first = write(tmp_path / "in.jsonl", lines(*questions(12))), Store(), ToyScript()
    options = {"delay_s": 0.01, "concurrent_batches": 2}
    three = asyncio.Event()
    task = asyncio.create_task(
        run_toy(
            out,
            file,
            first,
            publish=store,
            report=lambda run_counts: three.set() if run_counts.made >= 3 else None,
            engine_options=options,
        )
    )
    await three.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    kept = len(read_lines(out / "rubrics.jsonl"))
    assert 3 <= kept < 12
    second = ToyScript()
    run_counts = await run_toy(out, file, second, publish=store)
    assert (len(second.questions), run_counts.known, run_counts.made) == (12 - kept, kept, 12)
    assert [len(digests) for digests in store.versions.values()] == [1] * 12


HALF = good("x")[:40]
FORTY = json.dumps({"items": [{"text": f"Says {n}.", "weight": 1} for n in range(40)]})
NEGATIVE = json.dumps({"items": [{"text": "Says it.", "weight": -3}]})


async def test_what_a_model_writes_wrongly_is_discarded_by_reason_and_the_run_goes_on(
    tmp_path: Path, out: Path
) -> None:
    wrong = {1: "I would rather talk about the weather.", 2: HALF, 3: FORTY, 4: NEGATIVE, 5: '{"items": [{"text": 1}]}'}
    script = ToyScript(lambda question: wrong.get(int(question.split()[2]), good(question)))
    file, store = write(tmp_path / "in.jsonl", lines(*questions(8))), Store()
    run_counts = await run_toy(out, file, script, publish=store)
    assert run_counts.discarded == {"unreadable": 2, "too_many": 1, "invalid_rubric": 1, "wrong_shape": 1}
    assert (run_counts.made, store.calls, run_counts.failed) == (3, 3, 0)
    discarded = {line["line"]: line for line in read_lines(out / "discarded.jsonl")}
    assert sorted(discarded) == [1, 2, 3, 4, 5]
    assert all(line["detail"] and line["usage"]["calls"] == 2 for line in discarded.values())
    assert Counter(line["reason"] for line in discarded.values()) == run_counts.discarded
    again = ToyScript()
    assert (await run_toy(out, file, again)).discarded == run_counts.discarded
    assert again.questions == []


async def test_lines_that_are_no_input_are_reported_with_their_number_and_the_others_are_done(
    tmp_path: Path, out: Path
) -> None:
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
    run_counts = await run_toy(out, write(tmp_path / "in.jsonl", content), ToyScript())
    assert (run_counts.made, run_counts.refused, run_counts.total) == (2, 7, 2)
    problems = list(read_failures(out))
    assert kinds(problems) == [(n, "refused") for n in (2, 3, 4, 5, 7, 8, 9)]
    assert "question" in problems[3]["detail"]
    assert "name" in problems[-1]["detail"]


async def test_two_inputs_of_the_same_content_are_done_and_reported_once(tmp_path: Path, out: Path) -> None:
    rows = [
        {"id": "a", "question": "What is 1?", "document": "One."},
        {"id": "b", "question": " What is 1?\n", "document": "One.\n"},
        {"id": "c", "question": "What is 2?", "document": "One."},
    ]
    script = ToyScript()
    run_counts = await run_toy(out, write(tmp_path / "in.jsonl", lines(*rows)), script)
    assert (run_counts.made, run_counts.repeated, len(script.questions)) == (2, 1, 2)
    (problem,) = read_failures(out)
    assert (problem["line"], problem["kind"]) == (2, "repeated")
    assert "line 1" in problem["detail"]
    first, second = read_lines(out / "rubrics.jsonl")
    assert first["split"] == second["split"], "what shares a document shares a split"


async def test_a_name_stands_for_one_input_unless_the_generator_revises(tmp_path: Path, out: Path) -> None:
    rows = [{"question": f"What is {n}?", "name": "sums/one"} for n in (1, 2)]
    file, store = write(tmp_path / "in.jsonl", lines(*rows)), Store()
    settings = GeneratorRunSettings(prefix="team/", concurrency=1)
    run_counts = await run_toy(out, file, ToyScript(), publish=store, settings=settings)
    assert (run_counts.refused, list(store.versions)) == (1, ["team/sums/one"])

    class Revising(ToyGenerator):
        revises = True

    run_counts = await run_toy(out / "revised", file, ToyScript(), publish=store, settings=settings, generator=Revising)
    assert (run_counts.refused, len(store.versions["team/sums/one"])) == (0, 2)


async def test_an_input_that_an_engine_failed_on_is_no_discard_and_is_tried_again(tmp_path: Path, out: Path) -> None:
    down = ToyScript(lambda question: CallFailure("engine", "it is down") if "2 times" in question else good(question))
    file = write(tmp_path / "in.jsonl", lines(*questions(4)))
    run_counts = await run_toy(out, file, down)
    assert (run_counts.made, run_counts.failed, run_counts.discarded, run_counts.done) == (3, 1, Counter(), 4)
    assert kinds(list(read_failures(out))) == [(2, "engine")]
    up = ToyScript()
    run_counts = await run_toy(out, file, up)
    assert (run_counts.made, run_counts.failed, up.questions) == (4, 0, ["What is 2 times 2?"])
    assert list(read_failures(out)) == []


async def test_a_run_ends_where_the_engine_keeps_failing_and_says_so(tmp_path: Path, out: Path) -> None:
    script = ToyScript(lambda question: CallFailure("engine", "connection refused"))
    file = write(tmp_path / "in.jsonl", lines(*questions(200)))
    with pytest.raises(RunStopped, match="connection refused"):
        await run_toy(out, file, script, settings=GeneratorRunSettings(concurrency=2))
    assert len(set(script.questions)) < 20


async def test_failures_that_are_not_in_a_row_do_not_end_a_run(tmp_path: Path, out: Path) -> None:
    number = 4 * MAX_CONSECUTIVE_FAILURES
    script = ToyScript(
        lambda question: good(question) if int(question.split()[2]) % 2 else CallFailure("engine", "it hiccups")
    )
    file = write(tmp_path / "in.jsonl", lines(*questions(number)))
    run_counts = await run_toy(out, file, script, settings=GeneratorRunSettings(concurrency=1))
    assert (run_counts.made, run_counts.failed) == (number // 2, number // 2)


async def test_a_passing_failure_of_the_engine_costs_nothing(tmp_path: Path, out: Path) -> None:
    seen: Counter[str] = Counter()

    def flaky(question: str) -> str | CallFailure:
        seen[question] += 1
        return good(question) if seen[question] > 2 else CallFailure("overloaded", "later", retry_after_s=0.0)

    run_counts = await run_toy(out, write(tmp_path / "in.jsonl", lines(*questions(3))), ToyScript(flaky))
    assert (run_counts.made, run_counts.failed) == (3, 0)


async def test_a_prompt_that_does_not_fit_is_a_discard(tmp_path: Path, out: Path) -> None:
    file = write(tmp_path / "in.jsonl", lines(*questions(1), {"question": "word " * 20_000}))
    run_counts = await run_toy(out, file, ToyScript(), engine_options={"context_tokens": 4096})
    assert (run_counts.made, run_counts.discarded) == (1, {"too_long": 1})


async def test_what_the_store_does_not_take_is_reported_and_the_run_goes_on(tmp_path: Path, out: Path) -> None:
    store = Store()

    async def picky(record: dict[str, object]) -> tuple[str, bool]:
        if "2 times" in str(record["record"]):
            raise ValueError("its name is too long")
        return await store(record)

    file = write(tmp_path / "in.jsonl", lines(*questions(3)))
    run_counts = await run_toy(out, file, ToyScript(), publish=picky)
    assert (run_counts.made, run_counts.added, run_counts.unpublished) == (3, 2, 1)
    assert kinds(list(read_failures(out))) == [(2, "unpublished")]


async def test_at_most_as_many_inputs_as_asked_are_in_work(tmp_path: Path, out: Path) -> None:
    working, most = 0, 0

    class Counting(ToyGenerator):
        async def make(self, row, writer):  # type: ignore[no-untyped-def]
            nonlocal working, most
            working += 1
            most = max(most, working)
            try:
                return await super().make(row, writer)
            finally:
                working -= 1

    file = write(tmp_path / "in.jsonl", lines(*questions(12)))
    await run_toy(out, file, ToyScript(), settings=GeneratorRunSettings(concurrency=3), generator=Counting)
    assert most == 3


async def test_progress_is_told_from_none_to_all(tmp_path: Path, out: Path) -> None:
    told: list[tuple[int, int | None, float | None]] = []

    def report(run_counts):  # type: ignore[no-untyped-def]
        progress = run_counts.progress()
        told.append((progress.done, progress.total, progress.eta_s))

    file = write(tmp_path / "in.jsonl", lines(*questions(4)))
    await run_toy(out, file, ToyScript(), settings=GeneratorRunSettings(concurrency=1), report=report)
    assert [done for done, _, _ in told] == [0, 1, 2, 3, 4]
    assert told[0] == (0, 4, None)
    assert told[-1][2] == 0


def test_two_runs_do_not_share_a_folder(out: Path) -> None:
    with RunFolder(out), pytest.raises(FolderInUse, match="another folder"), RunFolder(out):
        pass
    with RunFolder(out):
        pass


class FileRow(ToyRow):
    """A row whose document stands in a file."""

    question: str = "What does it say?"
    path: str

    def loaded(self, folder: Path | None) -> "FileRow":
        assert folder is not None
        return self.model_copy(update={"document": (folder / self.path).read_text(encoding="utf-8")})


class FileGenerator(ToyGenerator):
    Input = FileRow


async def test_a_document_that_cannot_be_read_is_reported_and_the_others_are_done(tmp_path: Path, out: Path) -> None:
    (tmp_path / "good.txt").write_text("It says so.")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    rows = [{"path": path} for path in ("bad.txt", "good.txt", "none.txt", ".")]
    run_counts = await run_toy(out, write(tmp_path / "in.jsonl", lines(*rows)), ToyScript(), generator=FileGenerator)
    assert (run_counts.made, run_counts.refused) == (1, 3)
    problems = list(read_failures(out))
    assert kinds(problems) == [(1, "refused"), (3, "refused"), (4, "refused")]
    assert "UTF-8" in problems[0]["detail"]
    assert "none.txt" in problems[1]["detail"]


async def test_an_empty_file_is_a_run_over_nothing(tmp_path: Path, out: Path) -> None:
    run_counts = await run_toy(out, write(tmp_path / "in.jsonl", b""), ToyScript())
    assert (run_counts.total, run_counts.done, run_counts.made) == (0, 0, 0)
