"""A writer over a scripted engine that replies as the test says, call by call."""

import json
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine
from judge_server.generation.generator import GeneratedRubric, Generator, InputRow, RubricLookup
from judge_server.generation.writer import RubricDiscarded, Writer
from judge_server.ports import Batch, Call, CallFailure, EngineIdentity, LabelChoice, Reply

ANSWER = "He runs 3*3 = 9 sprints.\nHe runs 9*60 = 540 meters.\nFinal answer: 540"
WRONG = "He runs 3*60 = 180 meters.\nFinal answer: 180"


class ModelScript:
    """Gives the replies in order and keeps each call's prompt. A reply that is not text is written as JSON."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.asked: list[tuple[str, str]] = []
        self.calls: list[Call] = []

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        """The next reply: a `Reply` or failure unchanged; a text cut at `cut_after`."""
        self.asked.append((batch.system, batch.shared + call.question))
        self.calls.append(call)
        one = self.said.pop(0)
        if isinstance(one, Reply | CallFailure):
            return one
        if isinstance(call.answer, LabelChoice):
            return Reply(chosen=one, tokens_written=1)
        return Reply(text=one if isinstance(one, str) else json.dumps(one), tokens_written=7)


async def generated(
    kind: type[Generator[Any, Any]],
    row: InputRow,
    told: ModelScript,
    *,
    find: RubricLookup | None = None,
    **parameters: Any,
) -> GeneratedRubric:
    """The rubric that a kind of generator makes of a row, without the validity pass."""
    generator = kind(kind.Parameters.model_validate({"validity": False} | parameters), find=find)
    try:
        return await generator.make(row, await writer(told))
    finally:
        await generator.answers.close()


async def discarded(making: Coroutine[Any, Any, object]) -> str:
    """The reason why an input is discarded, of which a rubric is being made."""
    with pytest.raises(RubricDiscarded) as caught:
        await making
    return caught.value.reason


async def writer(told: ModelScript) -> Writer:
    """A writer with scripted replies, whose engine retries nothing."""
    engine = ScriptedEngine(told, capabilities=CAPABILITIES)
    identity: EngineIdentity = await engine.start()
    return Writer(engine, identity, retry_delay_s=0.0)


def criteria(items: Sequence[Any]) -> dict[str, Any]:
    """The JSON of criteria as most generators' models write it."""
    return {"criteria": list(items)}
