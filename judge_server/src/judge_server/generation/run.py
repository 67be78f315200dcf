"""Run a generator over many inputs, resumably.

Inputs are the lines of a JSONL file; a line that cannot be used is reported and skipped. Several inputs are in work at
a time, and each rubric is stored and published as soon as it is made.

A run can be killed at any moment and started again. An input's key is a hash of everything that affects its rubric,
including the generator and the model; work that is done under a key is not repeated, and publishing it again changes
nothing.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from judge_server.generation.generator import GeneratedRubric, Generator, InputRow, source_digest
from judge_server.generation.run_folder import RunFolder, Split, split_of
from judge_server.generation.writer import RubricDiscarded, Writer, WriterFailed, WriterUsage
from judge_server.ports import EngineIdentity
from judge_server.ports.operations import JobFailed
from trainer_client.wire.operations import OperationProgress
from trainer_client.wire.problems import field_errors

SHORT_DIGEST = 12
"""Number of digits of a digest in a rubric's default name."""

MAX_CONSECUTIVE_FAILURES = 8
"""How many inputs in a row, besides those in work, the engine may fail on before the run stops."""

REPORT_INTERVAL_S = 1.0
"""How often progress is reported while no input finishes; the token counts change meanwhile."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid input, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunInput:
    """One input of a run.

    Attributes:
        line: its line number, from 1.
        row: the parsed line, with the contents of the files it refers to.
        key: 64 hex digits; inputs with the same key give the same rubric.
        source: `sha256:…` of the text that the rubric is made from.
        split: the split of that text, and of every rubric made from it.
        name: the rubric's name if the generator does not set one.
    """

    line: int
    row: InputRow
    key: str
    source: str
    split: Split
    name: str


class Inputs:
    """The inputs of a file for one generator and one model. Each iteration reads the file again, in order."""

    def __init__(
        self, file: Path, generator: Generator[Any, Any], identity: EngineIdentity, *, limit: int | None = None
    ) -> None:
        self._file = file
        self._generator = generator
        self._limit = limit
        self._fingerprint = _fingerprint(generator, identity)

    def __iter__(self) -> Iterator[RunInput | BadLine]:
        """Yield each line's inputs, in order, skipping blank lines. Raises `OSError` if the file cannot be read."""
        with self._file.open("rb") as lines:
            numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
            for number, line in islice(numbered, self._limit):
                yield from self._read(number, line)

    def _read(self, number: int, line: bytes) -> Sequence[RunInput | BadLine]:
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError:
            return [BadLine(number, "the line is not UTF-8 text; save the file as UTF-8")]
        try:
            row = json.loads(text)
            if not isinstance(row, dict):
                return [BadLine(number, f"the line is not a JSON object; write an object with {self._fields()}")]
            loaded = self._generator.Input.model_validate(row).loaded(self._file.parent)
            return [self._input(number, one) for one in self._generator.inputs_of(loaded)]
        except UnicodeDecodeError:
            reason = "a file that the line refers to is not UTF-8 text; save it as UTF-8"
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            reason = f"{first.field}: {first.message}"
        except json.JSONDecodeError as error:
            reason = f"not JSON: {error}"
        except RecursionError:
            reason = "the JSON is nested too deeply"
        except (ValueError, OSError) as error:
            reason = str(error)
        return [BadLine(number, reason)]

    def _input(self, number: int, row: InputRow) -> RunInput:
        content = hashlib.sha256(row.canonical.encode("utf-8", "surrogatepass")).hexdigest()
        source = source_digest(self._generator.source_of(row))
        key = hashlib.sha256(f"{self._fingerprint}\0{content}".encode()).hexdigest()
        name = self._generator.name_of(row) or f"{self._generator.kind}/{content[:SHORT_DIGEST]}"
        return RunInput(number, row, key, source, split_of(source), name)

    def _fields(self) -> str:
        needed = [name for name, field in self._generator.Input.model_fields.items() if field.is_required()]
        return ", ".join(needed) or "the generator's fields"


def _fingerprint(generator: Generator[Any, Any], identity: EngineIdentity) -> str:
    """Return everything that affects a rubric besides the input, as canonical JSON."""
    parts = [
        generator.kind,
        generator.template_digest,
        generator.parameters.model_dump(mode="json"),
        identity.model,
        identity.weights_digest,
        identity.chat_template_digest,
    ]
    return json.dumps(parts, sort_keys=True, ensure_ascii=False)


@dataclass(slots=True)
class RunCounts:
    """Counts of a run.

    Attributes:
        total: distinct inputs of the run.
        known: inputs that an earlier run finished.
        made: rubrics for this run's inputs, from this run and earlier ones.
        added: versions that this run added to the store.
        unpublished: rubrics that the store rejected.
        discarded: inputs without a rubric, by reason, from this run and earlier ones.
        failed: inputs that are not done because the engine failed.
        refused: lines that are not valid inputs.
        repeated: lines with the same content as an earlier line.
        usage: the writer's usage in this run.
        seconds: elapsed time of this run.
    """

    total: int = 0
    known: int = 0
    made: int = 0
    added: int = 0
    unpublished: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    refused: int = 0
    repeated: int = 0
    usage: WriterUsage = field(default_factory=WriterUsage)
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """Inputs that need no more work in this run."""
        return self.made + self.discarded.total() + self.failed

    def progress(self) -> OperationProgress:
        """Return the counts as the progress of an operation, with the rate and the estimated time left."""
        finished = self.done - self.known
        rate = finished / self.seconds if finished and self.seconds > 0 else None
        return OperationProgress(
            done=self.done,
            total=self.total,
            known=self.known,
            made=self.made,
            added=self.added,
            unpublished=self.unpublished,
            discarded=dict(self.discarded.most_common()),
            failed=self.failed,
            refused=self.refused,
            repeated=self.repeated,
            calls=self.usage.calls,
            tokens_computed=self.usage.tokens_computed,
            tokens_reused=self.usage.tokens_reused,
            tokens_written=self.usage.tokens_written,
            seconds=self.seconds,
            rate=rate,
            eta_s=(self.total - self.done) / rate if rate else None,
        )


class RunStopped(JobFailed):
    """The run ended before its last input; the message says why. A further run continues from there."""


class Publisher(Protocol):
    """Publishes a rubric to the store; publishing the same rubric again changes nothing."""

    def __call__(self, record: dict[str, Any]) -> Awaitable[tuple[str, bool]]:
        """Publish a record of `rubrics.jsonl`; return the version's reference and whether it is new.

        Raises `ValueError` if the store rejects the rubric; the run continues.
        """


@dataclass(frozen=True, slots=True)
class GeneratorRunSettings:
    """Settings of a run.

    Attributes:
        concurrency: inputs in work at a time; None for as many as the engine has concurrent batches.
        limit: number of lines to read from the start of the file; None for all.
        prefix: prefix of the names of rubrics.
    """

    concurrency: int | None = None
    limit: int | None = None
    prefix: str = ""


class GeneratorRun:
    """One run: create it, then `await run()` once. `run_counts` shows its progress at any time."""

    def __init__(
        self,
        generator: Generator[Any, Any],
        writer: Writer,
        folder: RunFolder,
        file: Path,
        *,
        settings: GeneratorRunSettings,
        publish: Publisher | None,
        report: Callable[[RunCounts], None],
    ) -> None:
        self.run_counts = RunCounts(usage=writer.usage)
        self._generator = generator
        self._writer = writer
        self._folder = folder
        self._inputs = Inputs(file, generator, writer.identity, limit=settings.limit)
        self._settings = settings
        self._publish = publish
        self._report = report
        self._failures_in_a_row = 0

    async def run(self) -> set[str]:
        """Process the inputs and return the keys of all of them.

        Raises:
            RunStopped: the engine keeps failing.
            OSError: the file cannot be read, or the folder cannot be written.
        """
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()
        todo, keys = await asyncio.to_thread(self._scan_inputs)
        self._report_progress()
        await self._publish_rest(keys)
        concurrency = self._settings.concurrency or self._writer.identity.concurrent_batches
        waiting = (
            run_input
            for run_input in self._inputs
            if isinstance(run_input, RunInput) and (run_input.line, run_input.key) in todo
        )
        reporter = asyncio.create_task(self._report_periodically())
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(concurrency, len(todo))):
                    workers.create_task(self._worker(waiting, concurrency))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            reporter.cancel()
        return keys

    def _scan_inputs(self) -> tuple[set[tuple[int, str]], set[str]]:
        """Return the lines and keys of the inputs left to do, and the keys of all inputs; report invalid lines."""
        todo: set[tuple[int, str]] = set()
        lines: dict[str, int] = {}
        names: dict[str, int] = {}
        for run_input in self._inputs:
            if isinstance(run_input, BadLine):
                self._refuse(run_input.line, run_input.reason)
            elif run_input.key in lines:
                self.run_counts.repeated += 1
                self._folder.fail(
                    _problem(run_input.line, "repeated", f"it has the same content as line {lines[run_input.key]}")
                )
            elif run_input.name in names and not self._generator.revises:
                self._refuse(
                    run_input.line,
                    f"its rubric would have the same name as that of line {names[run_input.name]}: {run_input.name}",
                )
            else:
                lines[run_input.key] = names[run_input.name] = run_input.line
                self._count_known(run_input.key)
                if not self._folder.is_done(run_input.key):
                    todo.add((run_input.line, run_input.key))
        self.run_counts.total = len(lines)
        self.run_counts.known = self.run_counts.done
        return todo, set(lines)

    def _count_known(self, key: str) -> None:
        if key in self._folder.made:
            self.run_counts.made += 1
        elif (reason := self._folder.discarded.get(key)) is not None:
            self.run_counts.discarded[reason] += 1

    def _refuse(self, line: int, reason: str) -> None:
        self.run_counts.refused += 1
        self._folder.fail(_problem(line, "refused", reason))

    async def _publish_rest(self, keys: set[str]) -> None:
        """Publish the rubrics that earlier runs made but did not publish."""
        if self._publish is None:
            return
        for record in self._folder.rubrics():
            if record["key"] in keys and record["key"] not in self._folder.published:
                await self._publish_record(record)

    async def _worker(self, waiting: Iterator[RunInput], concurrency: int) -> None:
        for run_input in waiting:
            await self._generate_one(run_input, MAX_CONSECUTIVE_FAILURES + concurrency)
            self._report_progress()

    async def _generate_one(self, run_input: RunInput, most_failures: int) -> None:
        writer = self._writer.with_own_usage()
        line_fields = {"line": run_input.line, "id": run_input.row.id}
        try:
            made = await self._generator.make(run_input.row, writer)
        except WriterFailed as failed:
            self.run_counts.failed += 1
            self._folder.fail(_problem(run_input.line, "engine", str(failed)))
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= most_failures:
                raise RunStopped(
                    f"the engine gave no answer for {self._failures_in_a_row} inputs in a row; the last error: {failed}"
                ) from failed
            return
        except (RubricDiscarded, ValidationError) as error:
            discarded = error if isinstance(error, RubricDiscarded) else _invalid(error)
            cost = {"usage": asdict(writer.usage)}
            self._folder.discard(
                run_input.key, line_fields | {"reason": discarded.reason, "detail": discarded.detail} | cost
            )
            self.run_counts.discarded[discarded.reason] += 1
        else:
            record = line_fields | self._record(run_input, made, writer)
            self._folder.keep(run_input.key, record)
            self.run_counts.made += 1
            if self._publish is not None:
                await self._publish_record({"key": run_input.key, **record})
        self._failures_in_a_row = 0

    async def _publish_record(self, record: dict[str, Any]) -> None:
        assert self._publish is not None
        try:
            reference, added = await self._publish(record)
        except ValueError as error:
            self.run_counts.unpublished += 1
            self._folder.fail(_problem(record["line"], "unpublished", str(error)))
            return
        self._folder.mark_published(record["key"], {"reference": reference, "digest": record["digest"]})
        self.run_counts.added += added

    def _record(self, run_input: RunInput, made: GeneratedRubric, writer: Writer) -> dict[str, Any]:
        return {
            "name": self._settings.prefix + (made.name or run_input.name),
            "split": run_input.split,
            "source_digest": run_input.source,
            "digest": made.content.digest,
            "criteria": made.content.model_dump(mode="json", exclude_none=True)["criteria"],
            "metadata": made.metadata,
            "tags": list(made.tags),
            "flags": list(made.flags),
            "parent": made.parent_reference,
            "record": made.record,
            "usage": asdict(writer.usage),
        }

    async def _report_periodically(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self._report_progress()

    def _report_progress(self) -> None:
        self.run_counts.seconds = self._clock() - self._started_at
        self._report(self.run_counts)


def _problem(line: int, kind: str, detail: str) -> dict[str, Any]:
    return {"line": line, "kind": kind, "detail": detail}


def _invalid(error: ValidationError) -> RubricDiscarded:
    first = field_errors(error.errors())[0]
    return RubricDiscarded("invalid_rubric", f"{first.field}: {first.message}")
