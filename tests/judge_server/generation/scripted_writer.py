"""A writer over the scripted engine that is told, call by call, what the model writes."""

import json
from collections.abc import Sequence
from typing import Any

from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine
from judge_server.generation.writer import Writer
from judge_server.ports import Batch, Call, CallFailure, EngineIdentity, LabelChoice, Reply

ANSWER = "He runs 3*3 = 9 sprints.\nHe runs 9*60 = 540 meters.\nFinal answer: 540"
WRONG = "He runs 3*60 = 180 meters.\nFinal answer: 180"


class ModelScript:
    """Writes what it is told, in order; each call's prompt is kept. Whatever is no text is written as JSON."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.asked: list[tuple[str, str]] = []
        self.calls: list[Call] = []

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        """The next reply: a `Reply` or a failure as it is; a text cut where `cut_after` ends it."""
        self.asked.append((batch.system, batch.shared + call.question))
        self.calls.append(call)
        one = self.said.pop(0)
        if isinstance(one, Reply | CallFailure):
            return one
        if isinstance(call.answer, LabelChoice):
            return Reply(chosen=one, tokens_written=1)
        return Reply(text=one if isinstance(one, str) else json.dumps(one), tokens_written=7)


async def writer(told: ModelScript) -> Writer:
    """A writer that is told what to write; the engine asks nothing twice."""
    engine = ScriptedEngine(told, capabilities=CAPABILITIES)
    identity: EngineIdentity = await engine.start()
    return Writer(engine, identity, retry_delay_s=0.0)


def criteria(items: Sequence[Any]) -> dict[str, Any]:
    """What most generators' models write."""
    return {"criteria": list(items)}
