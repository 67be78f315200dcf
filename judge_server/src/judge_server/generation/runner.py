"""A run of a generator over many inputs: some at a time, each kept and published as soon as it is made.

A run can be killed at any moment and started again: it goes on with what is left, asks the model nothing twice and
publishes nothing twice. Knows nothing of what a generator does, nor of where the rubrics are kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from judge_server.generation.discards import Discarded
from judge_server.generation.folder import RunFolder
from judge_server.generation.generator import Generator, Made
from judge_server.generation.inputs import BadLine, Inputs, RunInput
from judge_server.generation.tally import Tally
from judge_server.generation.writer import Writer, WriterFailed
from judge_server.operations.job import JobFailed
from trainer_client.wire.problems import field_errors

MOST_FAILURES = 8
"""Inputs in a row that the engine may leave undone, over those in flight, before the run ends."""

TELL_EVERY_S = 1.0
"""How often progress is told while no input is done: tokens are written all the while."""


class RunStopped(JobFailed):
    """A run that ended before its last input; the message says why, and that it can go on."""


class Publish(Protocol):
    """Puts a rubric into the store; the same one again changes nothing."""

    def __call__(self, record: dict[str, Any]) -> Awaitable[tuple[str, bool]]:
        """The reference of the version that holds a record of `rubrics.jsonl`, and whether it was added.

        Raises `ValueError` where the store takes no such rubric; the run goes on.
        """


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run goes.

    Attributes:
        concurrency: inputs in work at a time; None for as many batches as the engine takes.
        limit: how many lines of the file, from the first; None for all.
        prefix: what the names of rubrics begin with.
    """

    concurrency: int | None = None
    limit: int | None = None
    prefix: str = ""


class Run:
    """One run: make it, then `await run()` once. `tally` says at any time how far it is."""

    def __init__(
        self,
        generator: Generator[Any, Any],
        writer: Writer,
        folder: RunFolder,
        file: Path,
        *,
        settings: RunSettings,
        publish: Publish | None,
        report: Callable[[Tally], None],
    ) -> None:
        self.tally = Tally(usage=writer.usage)
        self._generator = generator
        self._writer = writer
        self._folder = folder
        self._inputs = Inputs(file, generator, writer.identity, limit=settings.limit)
        self._settings = settings
        self._publish = publish
        self._report = report
        self._failures_in_a_row = 0

    async def run(self) -> set[str]:
        """Work through the inputs; returns the keys of all of them.

        Raises:
            RunStopped: the engine keeps failing.
            OSError: the file cannot be read, or the folder cannot be written to.
        """
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        todo, keys = await asyncio.to_thread(self._survey)
        self._told()
        await self._publish_rest(keys)
        concurrency = self._settings.concurrency or self._writer.identity.concurrent_batches
        waiting = (one for one in self._inputs if isinstance(one, RunInput) and (one.line, one.key) in todo)
        telling = asyncio.create_task(self._keep_telling())
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, len(todo))):
                    workers.create_task(self._work(waiting, concurrency))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            telling.cancel()
        return keys

    def _survey(self) -> tuple[set[tuple[int, str]], set[str]]:
        """The lines and keys of what is to be done, and the keys of all inputs; reports lines that are no inputs."""
        todo: set[tuple[int, str]] = set()
        lines: dict[str, int] = {}
        names: dict[str, int] = {}
        for one in self._inputs:
            if isinstance(one, BadLine):
                self._refuse(one.line, one.reason)
            elif one.key in lines:
                self.tally.repeated += 1
                self._folder.fail(_problem(one.line, "repeated", f"it has the content of line {lines[one.key]}"))
            elif one.name in names and not self._generator.revises:
                self._refuse(one.line, f"its rubric would be called {one.name}, as that of line {names[one.name]} is")
            else:
                lines[one.key] = names[one.name] = one.line
                self._count_known(one.key)
                if not self._folder.knows(one.key):
                    todo.add((one.line, one.key))
        self.tally.total = len(lines)
        self.tally.known = self.tally.done
        return todo, set(lines)

    def _count_known(self, key: str) -> None:
        if key in self._folder.made:
            self.tally.made += 1
        elif (reason := self._folder.discarded.get(key)) is not None:
            self.tally.discarded[reason] += 1

    def _refuse(self, line: int, reason: str) -> None:
        self.tally.refused += 1
        self._folder.fail(_problem(line, "refused", reason))

    async def _publish_rest(self, keys: set[str]) -> None:
        """Publish what earlier runs made and did not."""
        if self._publish is None:
            return
        for record in self._folder.rubrics():
            if record["key"] in keys and record["key"] not in self._folder.published:
                await self._published(record)

    async def _work(self, waiting: Iterator[RunInput], concurrency: int) -> None:
        for one in waiting:
            await self._one(one, MOST_FAILURES + concurrency)
            self._told()

    async def _one(self, one: RunInput, most_failures: int) -> None:
        writer = self._writer.apart()
        about = {"line": one.line, "id": one.row.id}
        try:
            made = await self._generator.make(one.row, writer)
        except WriterFailed as failed:
            self.tally.failed += 1
            self._folder.fail(_problem(one.line, "engine", str(failed)))
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= most_failures:
                raise RunStopped(
                    f"the engine gave no answer for {self._failures_in_a_row} inputs in a row, the last time: {failed}"
                ) from failed
            return
        except (Discarded, ValidationError) as wrong:
            discarded = wrong if isinstance(wrong, Discarded) else _invalid(wrong)
            cost = {"usage": asdict(writer.usage)}
            self._folder.discard(one.key, about | {"reason": discarded.reason, "detail": discarded.detail} | cost)
            self.tally.discarded[discarded.reason] += 1
        else:
            record = about | self._record(one, made, writer)
            self._folder.keep(one.key, record)
            self.tally.made += 1
            if self._publish is not None:
                await self._published({"key": one.key, **record})
        self._failures_in_a_row = 0

    async def _published(self, record: dict[str, Any]) -> None:
        assert self._publish is not None
        try:
            reference, added = await self._publish(record)
        except ValueError as error:
            self.tally.unpublished += 1
            self._folder.fail(_problem(record["line"], "unpublished", str(error)))
            return
        self._folder.mark_published(record["key"], {"reference": reference, "digest": record["digest"]})
        self.tally.added += added

    def _record(self, one: RunInput, made: Made, writer: Writer) -> dict[str, Any]:
        return {
            "name": self._settings.prefix + (made.name or one.name),
            "split": one.split,
            "source_digest": one.source,
            "digest": made.content.digest,
            "criteria": made.content.model_dump(mode="json", exclude_none=True)["criteria"],
            "metadata": made.metadata,
            "tags": list(made.tags),
            "flags": list(made.flags),
            "parent": made.parent_reference,
            "record": made.record,
            "usage": asdict(writer.usage),
        }

    async def _keep_telling(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            self._told()

    def _told(self) -> None:
        self.tally.seconds = self._clock() - self._began
        self._report(self.tally)


def _problem(line: int, kind: str, detail: str) -> dict[str, Any]:
    return {"line": line, "kind": kind, "detail": detail}


def _invalid(error: ValidationError) -> Discarded:
    first = field_errors(error.errors())[0]
    return Discarded("invalid_rubric", f"{first.field}: {first.message}")
