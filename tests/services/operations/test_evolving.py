"""Evolving the rubrics of a training run over HTTP: write, lint, discriminate, publish under the parent version."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx2
import pytest

from adjudge_services import wiring
from judge_server.engines.scripted import ScriptedEngine
from judge_server.ports import Batch, Call, LabelChoice, Reply
from tests.services.operations.in_process import Start
from trainer_client import AsyncClient
from trainer_client.trl.evolution import EvolutionConfig, EvolutionResult, SeenGroup, evolve
from trainer_client.wire import Group

OLD = [{"id": "sum", "description": "Adds the numbers."}]
RESPONSES = ("3 + 4 is 7.", "It is 8.", "Seven, I think.", "3 and 4 make 7, since 3 + 4 = 7.")


class WritingModel:
    """A model that writes these criteria, and grades responses differently."""

    def __init__(self, *criteria: tuple[str, str]) -> None:
        self.criteria: Sequence[tuple[str, str]] = criteria
        self.asked: list[str] = []

    def __call__(self, batch: Batch, call: Call) -> Reply:
        if isinstance(call.answer, LabelChoice):
            return Reply(chosen="0" if "It is 8." in batch.shared else "1")
        self.asked.append(batch.shared)
        written = [{"sign": sign, "description": text} for sign, text in self.criteria]
        return Reply(text=json.dumps({"criteria": written}))


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> WritingModel:
    model = WritingModel(("positive", "Names the result in words."), ("positive", "Shows the sum."))
    monkeypatch.setattr(wiring, "build_engine", lambda *_: ScriptedEngine(model))
    return model


def seen(reference: str, *responses: str, correct: Sequence[bool | None] = (), prompt: Any = "What is 3 + 4?") -> Any:
    group = Group.model_validate({"id": reference, "prompt": prompt, "responses": responses or RESPONSES})
    return SeenGroup(reference, (1, 0), group, tuple(correct) or (None,) * len(group.responses))


async def evolved(client: AsyncClient, *groups: SeenGroup, deadline_s: float = 60.0, **more: Any) -> EvolutionResult:
    """Evolve rubrics that are pinned to their first versions."""
    parameters = {"validity": False, **more.pop("parameters", {})}
    config = EvolutionConfig(more.pop("mode", "graded_mean"), more, parameters, 0.001, deadline_s, step=40)  # type: ignore[arg-type]
    return await evolve(client, groups, lambda reference: f"{reference.partition('@')[0]}@1", config)


async def served(start: Start, engine: str = "scripted://hash", *names: str) -> AsyncClient:
    client = await start(engine, writer_url="openai+http://writer")
    for name in names or ("team/a",):
        await client.publish_rubric(name, OLD, metadata={"about": "sums"})
    return client


async def test_a_rubric_evolves_to_a_child_of_the_version_that_judged(start: Start, writing: WritingModel) -> None:
    client = await served(start)
    await client.publish_rubric("team/a", [*OLD, {"id": "other", "description": "Is by another run."}])
    evolution = await evolved(client, seen("team/a"))
    assert evolution.unchanged == {}
    assert evolution.pins == {"team/a": "team/a@3"}
    version = await client.rubric("team/a@3")
    assert (version.parent, version.criteria[0].id) == (1, "sum")
    assert {one.description for one in version.criteria[1:]} <= {text for _, text in writing.criteria}
    assert len(version.criteria) == 1 + evolution.criteria > 1
    assert version.lineage is not None
    assert (version.lineage.generator, version.lineage.parameters["training_step"]) == ("evolving", 40)
    assert version.lineage.operation_id is not None
    assert version.metadata["about"] == "sums"
    measured: Any = version.metadata["discrimination"]
    assert [*measured] == [one.id for one in version.criteria[1:]]
    assert all(one["spread"] >= 0.001 for one in measured.values())
    assert "It is 8." in writing.asked[0]
    assert "Adds the numbers." in writing.asked[0]


async def test_criteria_with_equal_scores_for_all_responses_are_not_added(start: Start, writing: WritingModel) -> None:
    client = await served(start, "scripted://yes")
    evolution = await evolved(client, seen("team/a"), mode="points")
    assert (evolution.pins, evolution.unchanged["team/a"].reason) == ({}, "same")
    assert [one.version async for one in client.rubric_history("team/a")] == [1]


async def test_criteria_that_favour_wrong_responses_are_not_added(start: Start, writing: WritingModel) -> None:
    client = await served(start)
    writing.criteria = [("positive", "Names the result in words.")]
    first = await evolved(client, seen("team/a"))
    ((figures),) = (await client.rubric(first.pins["team/a"])).metadata["discrimination"].values()  # type: ignore[union-attr]
    assert figures["difference"] is None  # type: ignore[index,call-overload]
    kinds = [[True, False, False, False], [False, True, True, True]]
    made = [await evolved(client, seen("team/a", correct=known)) for known in kinds]
    assert sorted(len(one.pins) for one in made) == [0, 1]
    assert [unchanged.reason for one in made for unchanged in one.unchanged.values()] == ["backwards"]


async def test_criteria_with_a_lint_error_are_left_out_and_the_others_are_added(
    start: Start, writing: WritingModel
) -> None:
    client = await served(start)
    writing.criteria = [("negative", "Correctly names the result."), ("positive", "Shows the sum.")]
    version = await client.rubric((await evolved(client, seen("team/a"))).pins["team/a"])
    assert [one.description for one in version.criteria] == ["Adds the numbers.", "Shows the sum."]
    writing.criteria = writing.criteria[:1]
    unchanged = (await evolved(client, seen("team/a"))).unchanged["team/a"]
    assert unchanged.reason == "lint"
    assert "good-penalised" in unchanged.detail


async def test_criteria_that_the_mode_does_not_support_are_not_added(start: Start, writing: WritingModel) -> None:
    client = await served(start)
    writing.criteria = [("negative", "Guesses the result.")]
    unchanged = (await evolved(client, seen("team/a"), mode="weighted_mean")).unchanged["team/a"]
    assert unchanged.reason == "unsuitable"
    assert "negative weights" in unchanged.detail


async def test_each_unchanged_rubric_has_its_own_reason_and_the_others_evolve(
    start: Start, writing: WritingModel
) -> None:
    client = await served(start, "scripted://hash", "team/a", "team/b", "team/c")
    evolution = await evolved(
        client, seen("team/a"), seen("team/b", "7.", " 7. "), seen("team/c", prompt="x" * 12_001), seen("team/none")
    )
    assert evolution.pins == {"team/a": "team/a@2"}
    assert {name: unchanged.reason for name, unchanged in evolution.unchanged.items()} == {
        "team/b": "alike",
        "team/c": "question",
        "team/none": "discarded",
    }
    assert evolution.failures == {}


async def test_evolving_twice_with_the_same_result_publishes_one_version(start: Start, writing: WritingModel) -> None:
    client = await served(start)
    first, again = [await evolved(client, seen("team/a")) for _ in range(2)]
    assert first.pins == again.pins == {"team/a": "team/a@2"}


async def test_older_evolved_criteria_are_dropped_only_for_added_ones(start: Start, writing: WritingModel) -> None:
    client = await start("scripted://hash", writer_url="openai+http://writer")
    old = [{"id": f"evolved-{n}", "description": f"Shows part {n}.", "tags": ["evolved"]} for n in range(2)]
    await client.publish_rubric("team/a", [*OLD, *old])
    writing.criteria = [("negative", "Correctly names the result."), ("positive", "Shows the sum.")]
    evolution = await evolved(client, seen("team/a"), parameters={"max_evolved": 2})
    version = await client.rubric(evolution.pins["team/a"])
    assert [one.description for one in version.criteria] == ["Adds the numbers.", "Shows part 1.", "Shows the sum."]


async def test_without_a_writer_rubrics_stay_unchanged_and_the_missing_setting_is_named(start: Start) -> None:
    client = await start()
    await client.publish_rubric("team/a", OLD)
    evolution = await evolved(client, seen("team/a"))
    assert evolution.failures["team/a"].reason == "writer"
    assert "ADJUDGE_WRITER_URL" in evolution.failures["team/a"].detail


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/v1/operations", lambda: httpx2.Response(503, json={}), "service"),
        ("/v1/operations", lambda: httpx2.Response(202, json={"no": "operation"}), "service"),
        ("/v1/rubrics/team/a@1", lambda: httpx2.Response(500, json={}), "service"),
        ("/v1/rewards", lambda: httpx2.Response(500, json={}), "judge"),
        ("/v1/rubrics/team/a/versions", lambda: httpx2.Response(403, json={}), "publishing"),
    ],
)
async def test_a_failure_of_the_service_leaves_the_rubric_unchanged(
    start: Start, writing: WritingModel, path: str, answer: Callable[[], httpx2.Response], reason: str
) -> None:
    client = await served(start)
    inner: Any = client.settings.transport

    class FailingTransport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return answer() if request.url.path == path else await inner.handle_async_request(request)

    async with AsyncClient("http://localhost", transport=FailingTransport(), retries=0) as failing:
        evolution = await evolved(failing, seen("team/a"))
    assert (evolution.pins, evolution.failures["team/a"].reason) == ({}, reason)
    assert [one.version async for one in client.rubric_history("team/a")] == [1]


async def test_an_unresponsive_model_times_out_at_the_deadline(
    start: Start, monkeypatch: pytest.MonkeyPatch, writing: WritingModel
) -> None:
    monkeypatch.setattr(wiring, "build_engine", lambda *_: ScriptedEngine(writing, delay_s=3600.0))
    client = await served(start)
    evolution = await evolved(client, seen("team/a"), deadline_s=0.8)
    assert evolution.failures["team/a"].reason == "timeout"
    (operation,) = [one async for one in client.operations()]
    assert operation.state == "cancelled"
