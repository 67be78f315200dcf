"""A run of a generator over a file, into a folder: what `adjudge generate` does.

The run is an operation in the folder's database, with a chunk for each input that has no outcome there yet. It can be
killed at any moment and started again: the same run continues its operation, and any other makes a new one.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from judge_server.generation.generator import Generator
from judge_server.generation.inputs import BadLine, RunInput, read_inputs
from judge_server.generation.kinds import open_generator
from judge_server.generation.results import RunFolder, write_results
from judge_server.generation.wording import read_templates
from judge_server.generation.writer import Writer
from judge_server.operations.handlers.base import RetryableChunkError
from judge_server.operations.handlers.generate import GenerateHandler
from judge_server.operations.runner import SingleAttempts, work_on
from judge_server.operations.service import POLL_INTERVAL_S
from judge_server.ports import OperationStore, RubricSource
from judge_server.ports.operations import MAX_PAGE_RESULTS
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store.operations.rows import NewChunk, NewOperation
from trainer_client.wire.operations import Operation, OperationProgress
from trainer_client.wire.problems import field_errors

_ALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What to generate.

    Attributes:
        generator: the kind of generator.
        input: a JSONL file.
        parameters: the parameters of the generator.
        publish: publish the rubrics to the store.
        prefix: the prefix of their names.
        limit: the number of lines of the file to use, from the first; None for all.
        concurrency: inputs in progress at a time; None for as many as the engine supports.
        templates: a folder with prompt templates that replace the generator's own.
    """

    generator: str
    input: Path
    parameters: dict[str, JsonValue] = field(default_factory=dict)
    publish: bool = True
    prefix: str = ""
    limit: int | None = None
    concurrency: int | None = None
    templates: Path | None = None


@asynccontextmanager
async def open_generator_of(settings: GenerationSettings, rubrics: RubricSource) -> AsyncIterator[Generator[Any, Any]]:
    """Open the generator that settings name. Raises `ValueError` if they cannot be used."""
    templates = None if settings.templates is None else await asyncio.to_thread(read_templates, settings.templates)
    async with AsyncExitStack() as stack:
        opened = open_generator(settings.generator, settings.parameters, rubrics, PROJECT_ID, templates)
        try:
            generator = await stack.enter_async_context(opened)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"--set {first.field}: {first.message}") from None
        yield generator


class GenerationRun:
    """One run, in a locked folder, over the store in its database. Create it, then await `run` once."""

    def __init__(
        self,
        settings: GenerationSettings,
        generator: Generator[Any, Any],
        writer: Writer,
        folder: RunFolder,
        store: OperationStore,
        rubrics: RubricSource,
        *,
        report: Callable[[OperationProgress], None],
    ) -> None:
        self._settings = settings
        self._generator = generator
        self._writer = writer
        self._folder = folder
        self._store = store
        self._rubrics = rubrics
        self._report = report
        self._total, self._seconds = 0, 0.0
        self._counts = Counter[str]()  # by field of `OperationProgress`
        self._discarded = Counter[str]()  # by reason
        self._exported: Counter[str] = Counter()  # by operation
        self._failures = 0

    @property
    def _done(self) -> int:
        """Inputs that need no more work in this run."""
        return self._counts["made"] + self._discarded.total() + self._counts["failed"]

    def progress(self) -> OperationProgress:
        """Return the counts so far, with the rate and the estimated time left."""
        finished, usage = self._done - self._counts["known"], self._writer.usage
        rate = finished / self._seconds if finished and self._seconds > 0 else None
        return OperationProgress(
            done=self._done,
            total=self._total,
            discarded=dict(self._discarded.most_common()),
            calls=usage.calls,
            tokens_computed=usage.tokens_computed,
            tokens_reused=usage.tokens_reused,
            tokens_written=usage.tokens_written,
            seconds=self._seconds,
            rate=rate,
            eta_s=(self._total - self._done) / rate if rate else None,
            **self._counts,
        )

    async def run(self) -> tuple[OperationProgress, str | None]:
        """Process the inputs that have no outcome, and write the results.

        Returns the progress at the end, and why the run stopped before its last input, if it did.

        Raises:
            OSError: the file cannot be read, or the folder cannot be written.
        """
        clock = asyncio.get_running_loop().time
        started_at = clock()
        earlier = (await self._store.list(PROJECT_ID, _ALL)).operations
        with self._folder.rewritten():
            for operation in reversed(earlier):
                async for result in self._new_results(operation.id):
                    self._folder.add(result)
        chunks, keys = await asyncio.to_thread(self._scan_inputs)
        self._report(self.progress())
        if chunks:
            problem = await self._work(await self._begin(earlier, chunks, keys), started_at)
            if problem is not None:
                return self.progress(), problem
        title = f"{self._settings.generator}: {self._settings.input.name}"
        await asyncio.to_thread(write_results, self._folder, set(keys), title=title)
        return self.progress(), None

    async def _work(self, operation: Operation, started_at: float) -> str | None:
        """Work on the operation until it ends; return why it stopped before, if it did."""
        clock = asyncio.get_running_loop().time
        added_before = operation.progress.added
        concurrency = self._settings.concurrency or self._writer.identity.concurrent_batches

        async def new_writer() -> Writer:
            return self._writer.with_own_usage()

        handler = GenerateHandler(new_writer, self._rubrics, generator=self._generator, keep_discards=True)
        attempts = SingleAttempts(handler, concurrency)
        async with work_on(
            self._store, {operation.kind: attempts}, concurrency=concurrency, interval_s=POLL_INTERVAL_S
        ) as operations:
            async for now in attempts.follow(operations, operation):
                async for result in self._new_results(operation.id):
                    self._count(result)
                self._count_failures(attempts.failures)
                self._counts["added"] = now.progress.added - added_before
                self._seconds = clock() - started_at
                self._report(self.progress())
        return attempts.problem

    async def _new_results(self, operation_id: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the results of an operation that were not read before."""
        while True:
            page = await self._store.results(
                PROJECT_ID, operation_id, after=self._exported[operation_id], limit=MAX_PAGE_RESULTS
            )
            if page is None or not page.results:
                return
            self._exported[operation_id] += len(page.results)
            for result in page.results:
                yield result

    def _count(self, result: Mapping[str, Any]) -> None:
        if self._folder.add(result):
            if "reason" in result:
                self._discarded[result["reason"]] += 1
            else:
                self._counts["made"] += 1
        if "unpublished" in result:
            self._counts["unpublished"] += 1
            self._folder.fail(result["line"], "unpublished", result["unpublished"])

    def _count_failures(self, failures: Sequence[tuple[Any, Exception]]) -> None:
        for body, error in failures[self._failures :]:
            kind = "engine" if isinstance(error, RetryableChunkError) else "error"
            self._folder.fail(body["line"], kind, str(error))
        self._counts["failed"] = self._failures = len(failures)

    async def _begin(self, earlier: Sequence[Operation], chunks: Sequence[NewChunk], keys: Sequence[str]) -> Operation:
        """Continue the newest operation if it is of this run, and otherwise make a new one."""
        now = datetime.now(UTC)
        settings = self._settings
        digest = hashlib.sha256(json.dumps([settings.publish, settings.prefix, keys]).encode()).hexdigest()
        for operation in earlier:
            await self._store.cancel(PROJECT_ID, operation.id, now)  # of a process that is gone, or ended
        only_publish = len(chunks) - (self._total - self._counts["known"])  # rubrics that were made before
        if earlier and earlier[0].id == _operation_id(digest, len(earlier)) and not only_publish:
            resumed = await self._store.retry(PROJECT_ID, earlier[0].id)
            if resumed is not None and not resumed.ended:
                return resumed
        request = {
            "generator": settings.generator,
            "parameters": settings.parameters,
            "publish": settings.publish,
            "prefix": settings.prefix,
        }
        id_ = _operation_id(digest, len(earlier) + 1)
        return await self._store.create(NewOperation(id_, PROJECT_ID, "generate_rubrics", request, chunks, now))

    def _scan_inputs(self) -> tuple[list[NewChunk], list[str]]:
        """Return the chunks left to do and the keys of all inputs; report invalid lines."""
        folder = self._folder
        made = folder.rubrics() if self._settings.publish else ()
        unpublished = {one["key"]: one for one in made if one["key"] not in folder.published}
        chunks: list[NewChunk] = []
        lines: dict[str, int] = {}
        names: dict[str, int] = {}
        identity, limit = self._writer.identity, self._settings.limit
        for run_input in read_inputs(self._settings.input, self._generator, identity, limit=limit):
            if isinstance(run_input, BadLine):
                self._refuse(run_input.line, run_input.reason)
            elif run_input.key in lines:
                self._counts["repeated"] += 1
                why = f"it has the same content as line {lines[run_input.key]}"
                folder.fail(run_input.line, "repeated", why)
            elif run_input.name in names and not self._generator.revises:
                why = f"its rubric would have the same name as that of line {names[run_input.name]}: {run_input.name}"
                self._refuse(run_input.line, why)
            else:
                lines[run_input.key] = names[run_input.name] = run_input.line
                if run_input.key in folder.made:
                    self._counts["made"] += 1
                elif (reason := folder.discarded.get(run_input.key)) is not None:
                    self._discarded[reason] += 1
                else:
                    chunks.append(_chunk(run_input))
                if (record := unpublished.get(run_input.key)) is not None:
                    chunks.append(_chunk(run_input, record=record))
        self._total = len(lines)
        self._counts["known"] = self._done
        return chunks, list(lines)

    def _refuse(self, line: int, reason: str) -> None:
        self._counts["refused"] += 1
        self._folder.fail(line, "refused", reason)


def _chunk(run_input: RunInput, **more: Any) -> NewChunk:
    row = run_input.row.model_dump(mode="json", exclude_none=True)
    return NewChunk(1, {"line": run_input.line, "key": run_input.key, "input": row, **more})


def _operation_id(run_digest: str, number: int) -> str:
    """The id of a folder's operation: from its run and its number, so that the same run finds its operation again."""
    digest = hashlib.sha256(f"{run_digest}\0{number}".encode()).hexdigest()
    return f"op-{digest[:16]}"
