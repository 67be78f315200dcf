"""A small generator and a scripted model for it, to test the code around generators."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, StringConstraints

from judge_server.engines.scripted import ScriptedEngine
from judge_server.generation.generator import GeneratedRubric, Generator, InputRow, Parameters
from judge_server.generation.writer import RubricDiscarded, Writer
from judge_server.ports import Batch, Call, CallFailure, Reply, TextOutput
from trainer_client.wire import Criterion, RubricContent


class ToyRow(InputRow):
    question: Annotated[str, StringConstraints(min_length=1)]
    document: str = ""

    @property
    def source(self) -> str:
        return self.document or self.question


class ToyParameters(Parameters):
    max_criteria: int = 4
    temperature: float = 0.0


class Item(BaseModel):
    text: str
    weight: int


class Items(BaseModel):
    items: list[Item]


class ToyGenerator(Generator[ToyRow, ToyParameters]):
    """Asks for an answer, then for criteria."""

    kind = "toy"
    summary = "Two calls and a look at what came of them."
    Input = ToyRow
    Parameters = ToyParameters
    steps = ("answer", "criteria")

    async def make(self, row: ToyRow, writer: Writer) -> GeneratedRubric:
        answer = await writer.write_text(f"Answer: {row.question}", max_tokens=64)
        items = (await writer.write_json(Items, f"Criteria for: {row.question}", max_tokens=512)).items
        if len(items) > self.parameters.max_criteria:
            raise RubricDiscarded("too_many", f"{len(items)} criteria, at most {self.parameters.max_criteria}")
        criteria = tuple(
            Criterion(id=f"c{n}", description=item.text, weight=item.weight) for n, item in enumerate(items, 1)
        )
        return GeneratedRubric(
            RubricContent(criteria=criteria),
            metadata={"question": row.question},
            tags=("toy",),
            record={"question": row.question, "answer": answer},
            flags=("short",) if len(items) < 3 else (),
        )


def good(question: str) -> str:
    """Three valid criteria, as a model would write them for a question."""
    mark = hashlib.sha256(question.encode()).hexdigest()[:6]
    return json.dumps({"items": [{"text": f"Says {mark} {n}.", "weight": n} for n in (1, 2, 3)]})


Answers = Callable[[str], str | CallFailure]


class ToyScript:
    """A script for a `ScriptedEngine` that keeps the questions for which criteria were requested."""

    def __init__(self, answers: Answers = good) -> None:
        self.answers = answers
        self.questions: list[str] = []

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        question = batch.shared.partition(": ")[2]
        if isinstance(call.answer, TextOutput):
            return Reply(text="It is so.", tokens_computed=10, tokens_written=4)
        self.questions.append(question)
        text = self.answers(question)
        if isinstance(text, CallFailure):
            return text
        return Reply(text=text, tokens_computed=20, tokens_reused=5, tokens_written=30)

    def engine(self, **options: Any) -> ScriptedEngine:
        return ScriptedEngine(self, **options)


def lines(*rows: Any) -> bytes:
    """JSONL; rows that are bytes are used unchanged."""
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def questions(number: int) -> list[dict[str, str]]:
    """This many different rows."""
    return [{"question": f"What is {n} times {n}?"} for n in range(1, number + 1)]


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
