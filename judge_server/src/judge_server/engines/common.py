"""What engines share: calls that can be cancelled, templates split at marks, and the check after sleep."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from judge_server.errors import EngineUnavailable
from judge_server.ports import Batch, Call, CallFailure, Option, Reply, TokenChoice


def _in_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{error}; write the whole path") from None


LoraPath = Annotated[Path, AfterValidator(_in_home)]
"""The path of a LoRA adapter in an engine URL, in which `~` is the home folder."""

_CLOSED = CallFailure("engine", "the engine was closed")


class RunningCalls:
    """The running calls of any number of batches."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Reply | CallFailure]] = set()

    async def answers(
        self, calls: Mapping[int, Coroutine[Any, Any, Reply | CallFailure]]
    ) -> AsyncGenerator[tuple[int, Reply | CallFailure], None]:
        """Start all calls in order, and yield (index, outcome) as each is done. Closing cancels those not done."""
        tasks = {asyncio.create_task(call): index for index, call in calls.items()}
        self._tasks |= tasks.keys()
        done: asyncio.Queue[asyncio.Task[Reply | CallFailure]] = asyncio.Queue()
        for task in tasks:
            task.add_done_callback(done.put_nowait)
        try:
            for _ in range(len(tasks)):
                task = await done.get()
                yield tasks[task], _CLOSED if task.cancelled() else task.result()
        finally:
            await _cancel_tasks(tasks)
            self._tasks -= tasks.keys()

    async def cancel_all(self) -> None:
        """Cancel all running calls and wait for them; their outcome says that the engine was closed."""
        await _cancel_tasks(self._tasks.copy())


async def _cancel_tasks(tasks: Collection[asyncio.Task[Reply | CallFailure]]) -> None:
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)


class ThinkingMarks(NamedTuple):
    """How a model's chat template marks thinking.

    Attributes:
        opening: begins the thinking, where the template does not.
        end: what the model writes to end it.
        closing: stands between the thinking and the answer.
        answer: begins an answer without thinking, where the template does not. It enters the template's digest.
    """

    opening: str
    end: str
    closing: str
    answer: str

    def opened(self, text: str) -> str:
        """Return what a template puts before the model's turn, with the opening at its end."""
        return text if text.rstrip().endswith(self.opening.rstrip()) else text + self.opening


TAGS = ThinkingMarks("<think>\n", "</think>", "\n</think>\n\n", "")
HARMONY = ThinkingMarks(
    opening="<|channel|>analysis<|message|>",
    end="<|end|>",
    closing="<|end|><|start|>assistant<|channel|>final<|message|>",
    answer="<|channel|>final<|message|>",
)
"""OpenAI's harmony, the format of gpt-oss: thinking and answer are messages of two channels."""


def thinking_marks(template: str) -> ThinkingMarks:
    """Return the marks of a chat template, or of what it rendered with an answer of the model in it."""
    return HARMONY if "<|channel|>" in template else TAGS


def split_at_marks(text: str, *marks: str) -> list[str] | None:
    """Return the pieces before, between and after the marks; None unless each occurs once, in this order."""
    if any(text.count(mark) != 1 for mark in marks):
        return None
    pieces = []
    for mark in marks:
        piece, found, text = text.partition(mark)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]


SleepLevel = Annotated[int, Field(ge=1, le=2)]
"""vLLM's levels of sleep: weights are kept in main memory, or discarded and read from disk again."""

FIXED_QUESTION = Batch(
    "Answer yes or no.",
    "The sun rises in the east.\n",
    (Call("Is this true?", TokenChoice((Option("yes", ("yes", "Yes")), Option("no", ("no", "No"))))),),
)
"""A question that an engine is asked before it sleeps and after it wakes, because weights may be lost in between."""

_SAME_MASS = 0.05
"""How far a mass may lie from the one before: engines round differently from one batch to another."""


def require_same_answer(before: Reply | CallFailure, after: Reply | CallFailure) -> None:
    """Compare the answers to the fixed question.

    Raises:
        EngineUnavailable: the second answer differs, or failed.
    """
    if isinstance(before, CallFailure):
        return
    if isinstance(after, CallFailure):
        raise EngineUnavailable(f"it woke, but does not answer: {after.detail}")
    if before.masses is None or after.masses is None:
        same = before.masses is after.masses and before.text == after.text
    else:
        same = all(abs(one - other) <= _SAME_MASS for one, other in zip(before.masses, after.masses, strict=True))
    if not same:
        raise EngineUnavailable("it answers a fixed question in another way than before it slept; restart it")
