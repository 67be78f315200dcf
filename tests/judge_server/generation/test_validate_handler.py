"""Chunks of `validate_rubrics`: the validity of published rubrics, over a real store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.generation.validity import VALIDITY_PROMPTS, rates_by_kind
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer
from judge_server.operations.handlers.base import RetryableChunkError
from judge_server.operations.handlers.generate import ValidateHandler
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk
from rubric_store.rubrics.rows import RubricValidation
from tests.fixtures.migrated import NewSQLite
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.operations import ValidateOperation


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
    """A scripted model that counts its calls, and can be down for one question."""

    def __init__(self) -> None:
        self.asked = 0
        self.down = ""

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        self.asked += 1
        if self.down and self.down in batch.shared + call.question:
            return CallFailure("engine", "gone")
        return by_hash(batch, call)


async def validated(
    store: RubricStore, model: Model, *references: str, weights: str = "none"
) -> list[ChunkOutcome | RetryableChunkError]:
    """The outcome of each chunk of an operation over these references."""
    engine = ScriptedEngine(model)

    async def writer() -> Writer:
        return Writer(engine, replace(await engine.start(), weights_digest=weights), retry_delay_s=0.0)

    handler = ValidateHandler(writer, store, store)
    _, chunks = await handler.split(PROJECT_ID, ValidateOperation(references=references))
    outcomes: list[ChunkOutcome | RetryableChunkError] = []
    for number, chunk in enumerate(chunks):
        ref = ChunkRef(PROJECT_ID, "op-1", number)
        work = LeasedChunk(ref, "validate_rubrics", {}, chunk.body, chunk.inputs, 1, "owner")
        try:
            outcomes.append(await handler.run(work))
        except RetryableChunkError as error:
            outcomes.append(error)
    return outcomes


async def results_of(store: RubricStore, model: Model, *references: str, weights: str = "none") -> list[Any]:
    """The results of chunks that did not fail."""
    outcomes = await validated(store, model, *references, weights=weights)
    return [result for one in outcomes if isinstance(one, ChunkOutcome) for result in one.results]


async def test_every_criterion_gets_a_verdict_and_a_reason(store: RubricStore) -> None:
    model = Model()
    outcomes = await validated(store, model, "team/0", "team/2@1")
    results = [result for one in outcomes if isinstance(one, ChunkOutcome) for result in one.results]
    assert [(result["index"], result["reference"]) for result in results] == [(0, "team/0@1"), (1, "team/2@1")]
    items: list[Any] = [item for result in results for item in result["items"]]  # type: ignore[union-attr]
    assert all(item["reason"] and item["valid"] in (True, False) for item in items)
    assert rates_by_kind(items)["factual"]["items"] == model.asked == 4
    assert [one.usage.judge_calls for one in outcomes if isinstance(one, ChunkOutcome)] == [1, 3]


async def test_a_version_that_cannot_be_judged_is_discarded(store: RubricStore) -> None:
    (outcome,) = await validated(store, Model(), "team/1")
    assert isinstance(outcome, ChunkOutcome)
    assert (outcome.results, outcome.discarded) == ((), {"no_question": 1})


async def test_a_version_on_which_the_engine_fails_is_retried_and_the_others_are_kept(store: RubricStore) -> None:
    model = Model()
    model.down = "Says 2"
    good, failed = await validated(store, model, "team/0", "team/2")
    assert isinstance(good, ChunkOutcome)
    assert isinstance(failed, RetryableChunkError)
    assert "gone" in str(failed)
    up = Model()
    assert len(await results_of(store, up, "team/0", "team/2")) == 2
    assert up.asked == 3


async def kept(store: RubricStore, reference: str) -> tuple[RubricValidation, ...]:
    name, _, version = reference.partition("@")
    return await store.validations(PROJECT_ID, name, int(version))


async def test_the_verdicts_are_stored_with_the_version(store: RubricStore) -> None:
    (result,) = await results_of(store, Model(), "team/2")
    [validation] = await kept(store, "team/2@1")
    assert [(one.criterion, one.valid, one.reason) for one in validation.items] == [
        (item["id"], item["valid"], item["reason"]) for item in result["items"]
    ]
    assert (validation.model, validation.template_digest) == (result["model"], VALIDITY_PROMPTS.digest)
    assert await kept(store, "team/0@1") == ()


async def test_another_operation_reads_the_stored_verdicts_and_asks_nothing(store: RubricStore) -> None:
    first = await results_of(store, Model(), "team/2")
    again = Model()
    (outcome,) = await validated(store, again, "team/2")
    assert isinstance(outcome, ChunkOutcome)
    assert (again.asked, outcome.counts, list(outcome.results)) == (0, {"added": 0}, first)
    assert len(await kept(store, "team/2@1")) == 1


async def test_a_judge_with_other_weights_judges_again(store: RubricStore) -> None:
    await validated(store, Model(), "team/2")
    other = Model()
    await validated(store, other, "team/2", weights="sha256:other")
    assert other.asked == 3
    assert len(await kept(store, "team/2@1")) == 2


async def test_changed_prompts_ask_the_same_judge_again_and_its_newest_verdicts_count(
    store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await validated(store, Model(), "team/2")
    monkeypatch.setattr(GeneratorTemplates, "digest", "sha256:" + "1" * 64)
    other = Model()
    await validated(store, other, "team/2")
    assert other.asked == 3
    [validation] = await kept(store, "team/2@1")
    assert validation.template_digest == "sha256:" + "1" * 64


async def test_two_references_to_one_version_are_validated_once(store: RubricStore) -> None:
    model = Model()
    assert len(await validated(store, model, "team/2", "team/2@1")) == 1
    assert model.asked == 3


async def test_equal_criteria_under_another_name_are_judged_and_stored_separately(store: RubricStore) -> None:
    found = await store.find(PROJECT_ID, "team/0")
    assert found is not None
    content = RubricContent(criteria=found.criteria)
    await store.publish(PROJECT_ID, "team/twin", content, metadata={"question": "What is nought?"})
    results = await results_of(store, Model(), "team/0", "team/twin")
    assert [result["reference"] for result in results] == ["team/0@1", "team/twin@1"]
    assert len(await kept(store, "team/twin@1")) == 1
