"""`validate_rubrics`: the validity of published rubrics, as an operation over a real store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from judge_server.engines import ScriptedEngine
from judge_server.engines.scripted import by_hash
from judge_server.generation.validity import VALIDITY_PROMPTS, rates_by_kind
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer
from judge_server.operations import InProcessOperations
from judge_server.operations.handlers.validate import ValidateJob
from judge_server.ports import Batch, Call, CallFailure, Operation, Reply
from judge_server.rubrics import PROJECT_ID
from rubric_store import RubricStore
from tests.fixtures.migrated import NewSQLite
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.rubrics import RubricValidation


@pytest_asyncio.fixture
async def store(tmp_path: Path, new_sqlite: NewSQLite) -> AsyncIterator[RubricStore]:
    store = RubricStore(new_sqlite(tmp_path / "store.db"))
    for n in range(3):
        criteria = tuple(Criterion(id=f"c{i}", description=f"Says {n} and {i}.", kind="factual") for i in range(n + 1))
        metadata = {"question": f"What is {n}?"} if n != 1 else {}
        await store.publish(PROJECT_ID, f"team/{n}", RubricContent(criteria=criteria), metadata=metadata)
    yield store
    await store.close()


class Model:
    """A scripted model that counts what it is asked, and can be down for one question."""

    def __init__(self) -> None:
        self.asked = 0
        self.down = ""

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        self.asked += 1
        if self.down and self.down in batch.shared + call.question:
            return CallFailure("engine", "gone")
        return by_hash(batch, call)


async def validated(
    folder: Path, store: RubricStore, model: Model, *, weights: str = "none", **request: Any
) -> tuple[Operation, list[Any]]:
    """The operation when it has ended, and its results."""
    engine = ScriptedEngine(model)

    async def writer() -> Writer:
        return Writer(engine, replace(await engine.start(), weights_digest=weights), retry_delay_s=0.0)

    operations = InProcessOperations(folder, {"validate_rubrics": ValidateJob(writer, store, store)})
    try:
        begun = await operations.submit(PROJECT_ID, "validate_rubrics", request)
        *_, operation = [one async for one in operations.events(PROJECT_ID, begun.id)]
        page = await operations.results(PROJECT_ID, begun.id)
        return operation, list(page.results)
    finally:
        await operations.close()


async def resumed(folder: Path, store: RubricStore, model: Model, operation: Operation) -> tuple[Operation, list[Any]]:
    """The same for an operation whose process is taken to have been killed."""
    state = folder / operation.id / "operation.json"
    state.write_text(state.read_text().replace('"state":"done"', '"state":"running"'))
    engine = ScriptedEngine(model)

    async def writer() -> Writer:
        return Writer(engine, replace(await engine.start(), weights_digest="none"))

    operations = InProcessOperations(folder, {"validate_rubrics": ValidateJob(writer, store, store)})
    try:
        await operations.start()
        *_, after = [one async for one in operations.events(PROJECT_ID, operation.id)]
        return after, list((await operations.results(PROJECT_ID, operation.id)).results)
    finally:
        await operations.close()


async def test_every_criterion_gets_a_verdict_and_a_reason(tmp_path: Path, store: RubricStore) -> None:
    operation, results = await validated(tmp_path / "ops", store, Model(), references=["team/0", "team/2@1"])
    assert (operation.state, operation.progress.made, operation.progress.total) == ("done", 2, 2)
    assert operation.progress.calls == 4
    by_reference = {result["reference"]: result for result in results}
    assert sorted(by_reference) == ["team/0@1", "team/2@1"]
    for item in by_reference["team/2@1"]["items"]:
        assert item["reason"]
        assert item["valid"] in (True, False)
    items = [item for result in results for item in result["items"]]
    assert rates_by_kind(items)["factual"]["items"] == 4


async def test_a_prefix_means_the_newest_of_every_name_and_what_cannot_be_judged_is_counted(
    tmp_path: Path, store: RubricStore
) -> None:
    operation, results = await validated(tmp_path / "ops", store, Model(), prefix="team/")
    assert sorted(result["reference"] for result in results) == ["team/0@1", "team/2@1"]
    assert operation.progress.discarded == {"no_question": 1}
    operation, _ = await validated(tmp_path / "ops", store, Model(), references=["team/9"])
    assert operation.progress.discarded == {"unknown_rubric": 1}


async def test_an_attempt_that_goes_on_judges_only_what_is_left(tmp_path: Path, store: RubricStore) -> None:
    model = Model()
    model.down = "Says 2"
    operation, results = await validated(tmp_path / "ops", store, model, prefix="team/")
    assert (operation.progress.failed, len(results)) == (1, 1)
    up = Model()
    after, results = await resumed(tmp_path / "ops", store, up, operation)
    assert (up.asked, after.progress.known, after.progress.made) == (3, 1, 2)
    assert len({result["key"] for result in results}) == len(results) == 2


async def kept(store: RubricStore, reference: str) -> tuple[RubricValidation, ...]:
    name, _, version = reference.partition("@")
    return await store.validations(PROJECT_ID, name, int(version))


async def test_the_verdicts_are_kept_with_the_version(tmp_path: Path, store: RubricStore) -> None:
    _, results = await validated(tmp_path / "ops", store, Model(), references=["team/2"])
    [validation] = await kept(store, "team/2@1")
    items = results[0]["items"]
    assert [(one.criterion, one.valid, one.reason) for one in validation.items] == [
        (item["id"], item["valid"], item["reason"]) for item in items
    ]
    assert (validation.model, validation.template_digest) == (results[0]["model"], VALIDITY_PROMPTS.digest)
    assert await kept(store, "team/0@1") == ()


async def test_another_operation_reads_what_was_kept_and_asks_nothing(tmp_path: Path, store: RubricStore) -> None:
    _, first = await validated(tmp_path / "ops", store, Model(), references=["team/2"])
    again = Model()
    operation, second = await validated(tmp_path / "other", store, again, prefix="team/2")
    assert (again.asked, operation.progress.known, operation.progress.added) == (0, 1, 0)
    assert second == first
    assert len(await kept(store, "team/2@1")) == 1


async def test_a_judge_with_other_weights_judges_for_itself(tmp_path: Path, store: RubricStore) -> None:
    await validated(tmp_path / "ops", store, Model(), references=["team/2"])
    other = Model()
    operation, _ = await validated(tmp_path / "other", store, other, weights="sha256:other", references=["team/2"])
    assert (other.asked, operation.progress.known, operation.progress.added) == (3, 0, 1)
    assert len(await kept(store, "team/2@1")) == 2


async def test_other_words_ask_the_same_judge_anew_and_its_newest_verdicts_count(
    tmp_path: Path, store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await validated(tmp_path / "ops", store, Model(), references=["team/2"])
    monkeypatch.setattr(GeneratorTemplates, "digest", "sha256:" + "1" * 64)
    other = Model()
    await validated(tmp_path / "other", store, other, references=["team/2"])
    assert other.asked == 3
    [validation] = await kept(store, "team/2@1")
    assert validation.template_digest == "sha256:" + "1" * 64


async def test_two_references_of_one_version_are_one(tmp_path: Path, store: RubricStore) -> None:
    model = Model()
    operation, results = await validated(tmp_path / "ops", store, model, references=["team/2", "team/2@1"])
    progress = operation.progress
    assert (model.asked, progress.repeated, progress.total, progress.done, len(results)) == (3, 1, 1, 1, 1)


async def test_the_same_criteria_of_another_name_are_judged_and_kept_for_themselves(
    tmp_path: Path, store: RubricStore
) -> None:
    found = await store.find(PROJECT_ID, "team/0")
    assert found is not None
    content = RubricContent(criteria=found.criteria)
    await store.publish(PROJECT_ID, "team/twin", content, metadata={"question": "What is nought?"})
    model = Model()
    model.down = "nought"
    asked = ["team/0", "team/twin"]
    operation, results = await validated(tmp_path / "ops", store, model, references=asked)
    assert [result["reference"] for result in results] == ["team/0@1"]
    _, results = await resumed(tmp_path / "ops", store, Model(), operation)
    assert [result["reference"] for result in results] == ["team/0@1", "team/twin@1"]
    assert len(await kept(store, "team/twin@1")) == 1


@pytest.mark.parametrize("request_", [{}, {"references": ["a"], "prefix": "b"}, {"names": ["a"]}])
def test_a_request_says_which_rubrics_in_one_way(store: RubricStore, request_: dict[str, Any]) -> None:
    async def writer() -> Writer:
        raise AssertionError

    with pytest.raises(ValueError, match=r"references|names"):
        ValidateJob(writer, store, store).check(request_)
