"""Operations of a service that evaluate a judge, write rubrics and validate them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from adjudge_services import wiring
from adjudge_services.settings import Settings
from judge_server.engines import engine_from_url
from judge_server.engines.scripted import ScriptedEngine
from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds import GENERATORS
from judge_server.generation.writer import Writer
from judge_server.operations.handlers.generate import GenerateHandler, WriterProvider
from judge_server.ports import Batch, Call, Reply
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore
from rubric_store.operations.rows import ChunkRef, LeasedChunk
from tests.judge_server.generation.toy import ToyGenerator, ToyRow, good, questions
from tests.services.operations.cluster import CRITERIA, groups
from tests.services.operations.in_process import Start, end_of, results_of
from tests.services.writing_model import writing_model
from trainer_client import AsyncClient, InvalidRequest
from trainer_client.wire import RubricContent


async def test_an_evaluation_reports_how_far_verdicts_agree_with_labels(start: Start) -> None:
    client = await start("scripted://yes")
    labelled = [group | {"labels": [{"right": r % 2 == 0} for r in range(8)]} for group in groups(6)]
    request = {"kind": "evaluate_judge", "rubric": {"criteria": CRITERIA}, "groups": labelled}
    done = await end_of(client, (await client.submit(request)).id)
    assert (done.state, done.progress.done) == ("done", 6)
    assert done.summary is not None
    figures = {name: value for name, value in done.summary.items() if name not in ("criteria", "report")}
    assert figures == {
        "verdicts": 48,
        "failed": 0,
        "accuracy": 0.5,
        "kappa": 0.0,
        "auroc": 0.5,
        "yes_labels": 24,
        "yes_verdicts": 48,
    }
    assert done.summary["criteria"] == {"right": figures}
    report: Any = done.summary["report"]
    assert report["agreement"][0]["rows"] == 6
    assert report["agreement"][0]["figures"]["balanced_accuracy"]["value"] == 0.5
    assert sum(one["n"] for one in report["reliability"]) == 48
    first, *_ = await results_of(client, done.id)
    assert (first["id"], len(first["verdicts"]), first["verdicts"][1]["label"]) == ("q0", 8, False)
    one = first["verdicts"][0]
    assert one["raw_probability"] == one["probability"] is not None


REASONED = {
    "criteria": [
        {"id": "reason", "description": "Gives a reason.", "verification": {"method": "contains", "all_of": ["odd"]}},
        {"id": "polite", "description": "Says please.", "verification": {"method": "contains", "all_of": ["please"]}},
        {"id": "vague", "weight": -1, "description": "Is vague.",
         "verification": {"method": "contains", "all_of": ["some"]}},
    ]
}  # fmt: skip


async def test_a_comparison_of_good_and_bad_responses_reports_each_criterion(start: Start) -> None:
    client = await start("scripted://yes")
    version = await client.publish_rubric("reasoned", REASONED["criteria"])
    pairs = [{"prompt": f"{n}?", "good": "Yes, as it is odd.", "bad": ["Yes, please.", "some"]} for n in range(40)]
    own = {"id": "own", "prompt": "?", "good": ["no"], "bad": "no", "rubric": REASONED}
    lines = "\n".join(json.dumps(one) for one in [*pairs, own])
    request = {"kind": "discriminate_rubrics", "rubric": "reasoned", "reward": {"mode": "points"}, "groups": lines}
    done = await end_of(client, (await client.submit(request)).id)
    assert (done.state, done.progress.done, done.progress.failed) == ("done", 41, 0), done.problem
    summary: Any = done.summary
    assert (summary["prompts"], summary["good"], summary["bad"]) == (41, 41, 81)
    assert summary["ordered"] == pytest.approx((40 * 0.75 + 0.5) / 41)
    low, high = summary["interval"]
    assert low < summary["ordered"] <= high
    assert summary["rubrics"] == {"above_chance": 1, "at_chance": 1, "below_chance": 0, "not_compared": 0}
    differences = {one["criterion"]: one["difference"] for one in summary["criteria"] if one["rubric"] == "reasoned@1"}
    assert differences == {"reason": 1.0, "polite": -0.5, "vague": 0.5}
    results = sorted(await results_of(client, done.id), key=lambda one: one["index"])
    assert [one["id"] for one in results[:2]] + [results[-1]["id"]] == ["line-1", "line-2", "own"]
    assert (results[0]["rubric"], len(results[0]["good"]), len(results[0]["bad"])) == (version.reference, 1, 2)
    assert done.request["rubric"] == "reasoned@1"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": "?", "good": "a"}, "bad"),
        ({"prompt": "?", "good": "a", "bad": []}, "at least 1"),
        ({"prompt": "?", "responses": ["a"], "good": "a", "bad": "b"}, "responses"),
    ],
)
async def test_a_prompt_without_good_and_bad_responses_is_refused(start: Start, line: Any, says: str) -> None:
    client = await start("scripted://yes")
    with pytest.raises(InvalidRequest, match=says):
        await client.submit({"kind": "discriminate_rubrics", "rubric": REASONED, "groups": [line]})


async def test_rubrics_are_written_by_the_configured_model(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATORS, "toy", ToyGenerator)
    with writing_model() as model:
        client = await start(writer_url=model.url)
        request = {"kind": "generate_rubrics", "generator": "toy", "prefix": "team/", "inputs": questions(4)}
        done = await end_of(client, (await client.submit(request)).id)
        assert (done.state, done.problem) == ("done", None)
        assert (done.progress.done, done.progress.made, done.progress.added) == (4, 4, 4)
        results = await results_of(client, done.id)
    assert [one["index"] for one in results] == [0, 1, 2, 3]
    version = await client.rubric(results[0]["reference"])
    assert version.lineage is not None
    assert (version.lineage.operation_id, version.name.startswith("team/")) == (done.id, True)
    assert [one.id for one in version.criteria] == [one["id"] for one in results[0]["criteria"]]


async def test_an_unpublished_rubric_has_its_lineage_and_lint_findings(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GENERATORS, "toy", ToyGenerator)
    twice = json.dumps({"items": [{"text": "Names the unit.", "weight": 1}] * 2})
    with writing_model(lambda _: twice) as model:
        client = await start(writer_url=model.url)
        request = {"kind": "generate_rubrics", "generator": "toy", "publish": False, "inputs": questions(1)}
        done = await end_of(client, (await client.submit(request)).id)
        (result,) = await results_of(client, done.id)
    assert "reference" not in result
    assert [(one["code"], one["severity"], one["criterion"]) for one in result["lint"]] == [
        ("duplicate", "error", "c2")
    ]
    made_by = {name: result["lineage"][name] for name in ("generator", "model", "operation_id", "source_digest")}
    assert made_by == {
        "generator": "toy",
        "model": "writer",
        "operation_id": done.id,
        "source_digest": result["source_digest"],
    }
    version = await client.publish_rubric(result["name"], result["criteria"], lineage=result["lineage"])
    assert version.lineage is not None
    assert version.lineage.operation_id == done.id


async def test_without_a_writer_an_operation_fails_and_names_the_missing_setting(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GENERATORS, "toy", ToyGenerator)
    request = {"kind": "generate_rubrics", "generator": "toy", "inputs": questions(2)}
    failed = await end_of(client, (await client.submit(request)).id)
    assert failed.state == "failed"
    assert "ADJUDGE_WRITER_URL" in (failed.problem or "")


async def test_generators_read_no_files_of_the_server(client: AsyncClient) -> None:
    request = {"kind": "generate_rubrics", "generator": "document", "inputs": [{"path": "/etc/hostname"}]}
    with pytest.raises(InvalidRequest, match="files cannot be read here"):
        await client.submit(request)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"prefix": "Team A/"}, "inputs.0: with the prefix 'Team A/', its rubric could not be published"),
        ({"prefix": "a" * 199}, "its rubric could not be published"),
        ({"prefix": "team/", "name": "diff/a"}, "'team/' and the name 'diff/a', its .* 'diff' after a slash"),
        ({"parameters": {"min_criteria": 9, "max_criteria": 3}}, "min_criteria is 9, above max_criteria 3"),
        ({"generator": "gate", "parameters": {"kept": 9}}, "kept is 9, above max_criteria 8"),
    ],
)
async def test_inputs_that_can_give_no_published_rubric_are_refused(
    client: AsyncClient, changed: dict[str, Any], problem: str
) -> None:
    row = {"question": "Is 7 prime?", "reference_answer": "Yes."} | {n: v for n, v in changed.items() if n == "name"}
    request = {"kind": "generate_rubrics", "generator": "points", "inputs": [row]} | changed
    request.pop("name", None)
    with pytest.raises(InvalidRequest, match=problem):
        await client.submit(request)


async def test_published_rubrics_are_validated_and_the_findings_are_stored(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def valid(batch: Batch, call: Call) -> Reply:
        return Reply(text=json.dumps({"valid": True, "reason": "So."}))

    monkeypatch.setattr(wiring, "build_engine", lambda *_: ScriptedEngine(valid))
    client = await start(writer_url="openai+http://writer")
    for name in ("team/a", "team/b"):
        await client.publish_rubric(name, CRITERIA, metadata={"question": "Is 7 prime?"})
    request = {"kind": "validate_rubrics", "references": ["team/a", "team/b@1", "team/a@1"]}
    done = await end_of(client, (await client.submit(request)).id)
    assert (done.state, done.progress.total, done.progress.added) == ("done", 2, 2)
    results = await results_of(client, done.id)
    assert [one["reference"] for one in results] == ["team/a@1", "team/b@1"]
    assert [item["valid"] for item in results[0]["items"]] == [True, True]
    again = await end_of(client, (await client.submit(request)).id)
    assert (again.progress.known, again.progress.added, again.usage.judge_calls) == (0, 0, 0)


async def test_a_chunk_that_runs_twice_publishes_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GENERATORS, "toy", ToyGenerator)
    await start()  # creates the database
    store = RubricStore(Settings().store_url)
    body = {"index": 0, "input": questions(1)[0]}
    request = {"generator": "toy"}
    work = LeasedChunk(ChunkRef(PROJECT_ID, "op-1", 0), "generate_rubrics", request, body, 1, 1, "w")
    with writing_model() as model:
        writers = WriterProvider(lambda: engine_from_url(model.url))
        kind = GenerateHandler(writers.writer, store)
        first = await kind.run(work)
        model.answer = lambda question: good(question + " And what else?")
        again = await kind.run(work._replace(attempt=2))
        await writers.close()
    (one,), (other,) = first.results, again.results
    assert len(model.questions) == 2
    assert (one["reference"], one["digest"], one["criteria"]) == (
        other["reference"],
        other["digest"],
        other["criteria"],
    )
    assert (first.counts["added"], again.counts["added"]) == (1, 1)
    assert str(one["reference"]).endswith("@1")
    await store.close()


class SharedRow(ToyRow):
    """A row whose rubric is a version of `shared`."""

    @property
    def rubric_name(self) -> str | None:
        return "shared"


class RevisingGenerator(ToyGenerator):
    """Adds criteria to the rubric `shared`, as a new version."""

    Input = SharedRow
    revises = True

    async def make(self, row: ToyRow, writer: Writer) -> GeneratedRubric:
        assert self.find is not None
        parent = await self.find("shared")
        made = await super().make(row, writer)
        known = parent.criteria if parent is not None else ()
        new = [one.model_copy(update={"id": f"c{len(known) + n}"}) for n, one in enumerate(made.content.criteria)]
        return replace(made, content=RubricContent(criteria=(*known, *new)))


class UncaughtError(BaseException):
    """An exception that our code does not catch."""


class KilledAfterPublishing(RubricStore):
    """A store that fails right after each publication, before the caller can act on it."""

    async def publish(self, *given: Any, **named: Any) -> Any:
        await super().publish(*given, **named)
        raise UncaughtError


async def test_a_worker_killed_between_publishing_and_its_result_publishes_one_version(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GENERATORS, "toy", RevisingGenerator)
    await start()  # creates the database
    store, killing = RubricStore(Settings().store_url), KilledAfterPublishing(Settings().store_url)
    works = [
        LeasedChunk(ChunkRef(PROJECT_ID, "op-1", n), "generate_rubrics", {"generator": "toy"}, body, 1, 1, "w")
        for n, body in enumerate([{"index": n, "input": one} for n, one in enumerate(questions(2))])
    ]
    with writing_model() as model:
        writers = WriterProvider(lambda: engine_from_url(model.url))
        with pytest.raises(UncaughtError):
            await GenerateHandler(writers.writer, killing).run(works[0])
        other = await GenerateHandler(writers.writer, store).run(works[1])
        asked = list(model.questions)
        again = await GenerateHandler(writers.writer, store).run(works[0]._replace(attempt=2))
        await writers.close()
    assert model.questions == asked
    history = await store.history(PROJECT_ID, "shared")
    assert history is not None
    assert [version.version for version in history.versions] == [2, 1]
    (result,), (second,) = again.results, other.results
    assert (result["reference"], second["reference"]) == ("shared@1", "shared@2")
    assert (again.counts["added"], len(result["criteria"]), len(second["criteria"])) == (1, 3, 6)  # type: ignore[arg-type]
    assert result.keys() == second.keys() - {"key"}
    for one in (store, killing):
        await one.close()
