"""Operations as tasks of this event loop, stored in files: for commands.

Each operation has a folder, whose state file is replaced atomically at every change. The next process resumes
operations that have not ended.
"""

import asyncio
import hashlib
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from judge_server.ports.operations import Job, JobContext, JobFailed, UnknownOperation
from trainer_client.wire.operations import MAX_PAGE_RESULTS, Operation, OperationKind, OperationProgress, ResultPage

log = logging.getLogger("adjudge")

_STATE = "operation.json"


def _now() -> datetime:
    return datetime.now(UTC)


class InProcessOperations:
    """Runs jobs in the order of their submission, at most `concurrency` at a time.

    Call `start` to resume the operations of an earlier process, and `close` to stop. Operations that are queued or
    running at that time resume at the next `start`.
    """

    def __init__(
        self,
        root: Path,
        jobs: Mapping[OperationKind, Job],
        *,
        concurrency: int = 1,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._files = OperationFiles(root)
        self._jobs = jobs
        self._slots = asyncio.Semaphore(concurrency)
        self._now = now
        self._operations: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._closing = False

    async def start(self) -> None:
        """Read the stored operations, and resume those that have not ended."""
        for operation in sorted(self._files.load(), key=lambda stored: stored.created_at):
            self._operations[operation.id] = operation
            if not operation.ended and operation.kind in self._jobs:
                self._change(operation.id, state="queued")
                self._begin(operation.id)

    async def close(self) -> None:
        """Stop all tasks; their operations do not end and can be resumed."""
        self._closing = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def submit(
        self, project_id: str, kind: OperationKind, request: Mapping[str, JsonValue], *, submission: str | None = None
    ) -> Operation:
        """Queue an operation; it is stored when this returns. A `submission` determines its id."""
        job = self._jobs.get(kind)
        if job is None:
            raise ValueError(f"{kind} cannot be run here; there are {', '.join(self._jobs) or 'no operations'}")
        job.check(dict(request))
        suffix = secrets.token_hex(8) if submission is None else hashlib.sha256(submission.encode()).hexdigest()[:16]
        if (existing := self._operations.get(f"op-{suffix}")) is not None:
            return existing
        operation = Operation(
            id=f"op-{suffix}",
            project_id=project_id,
            kind=kind,
            request=dict(request),
            state="queued",
            revision=1,
            created_at=self._now(),
        )
        self._files.save(operation)
        self._operations[operation.id] = operation
        self._begin(operation.id)
        return operation

    async def get(self, project_id: str, operation_id: str) -> Operation:
        """The current state of an operation."""
        operation = self._operations.get(operation_id)
        if operation is None or operation.project_id != project_id:
            raise UnknownOperation(f"there is no operation {operation_id}")
        return operation

    async def list(self, project_id: str) -> tuple[Operation, ...]:
        """The project's operations, newest first."""
        operations = (operation for operation in self._operations.values() if operation.project_id == project_id)
        return tuple(sorted(operations, key=lambda operation: operation.created_at, reverse=True))

    async def events(self, project_id: str, operation_id: str, *, after: int = 0) -> AsyncIterator[Operation]:
        """Yield the operation after each change, until it has ended."""
        while True:
            changed = self._changed
            operation = await self.get(project_id, operation_id)
            if operation.revision > after:
                after = operation.revision
                yield operation
            if operation.ended:
                return
            if changed is self._changed:
                await changed.wait()

    async def results(self, project_id: str, operation_id: str, *, after: int = 0, limit: int = 100) -> ResultPage:
        """A page of the results so far."""
        if not 1 <= limit <= MAX_PAGE_RESULTS or after < 0:
            raise ValueError(f"a page holds 1 to {MAX_PAGE_RESULTS} results, after 0 or more")
        operation = await self.get(project_id, operation_id)
        job = self._jobs.get(operation.kind)
        if job is None:
            return ResultPage(results=(), next_after=None)
        file = job.results_file(operation.request, self._files.folder(operation_id))
        return await asyncio.to_thread(read_page, file, after=after, limit=limit, ended=operation.ended)

    async def cancel(self, project_id: str, operation_id: str) -> Operation:
        """Cancel an operation; results that exist are kept."""
        await self.get(project_id, operation_id)
        task = self._tasks.get(operation_id)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return await self.get(project_id, operation_id)

    async def retry(self, project_id: str, operation_id: str) -> Operation:
        """Resume an operation that failed or was cancelled."""
        operation = await self.get(project_id, operation_id)
        if operation.state in ("failed", "cancelled"):
            self._change(operation_id, state="queued", problem=None, ended_at=None, tries=operation.tries + 1)
            self._begin(operation_id)
        return await self.get(project_id, operation_id)

    def _begin(self, operation_id: str) -> None:
        task = asyncio.create_task(self._run(operation_id))
        self._tasks[operation_id] = task
        task.add_done_callback(lambda done: self._end(operation_id, done))

    async def _run(self, operation_id: str) -> None:
        async with self._slots:
            operation = self._operations[operation_id]
            self._change(operation_id, state="running", started_at=operation.started_at or self._now())
            context = JobContext(
                operation_id,
                operation.project_id,
                dict(operation.request),
                self._files.folder(operation_id),
                lambda progress: self._report_progress(operation_id, progress),
            )
            await self._jobs[operation.kind].run(context)

    def _end(self, operation_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[operation_id]
        if task.cancelled():
            if not self._closing:
                self._change(operation_id, state="cancelled", ended_at=self._now())
        elif (error := task.exception()) is not None:
            if not isinstance(error, JobFailed | OSError | ValueError):
                log.error("operation %s failed", operation_id, exc_info=error)
            problem = str(error) or type(error).__name__
            self._change(operation_id, state="failed", problem=problem, ended_at=self._now())
        else:
            self._change(operation_id, state="done", ended_at=self._now())

    def _report_progress(self, operation_id: str, progress: OperationProgress) -> None:
        if not self._operations[operation_id].ended:
            self._change(operation_id, progress=progress)

    def _change(self, operation_id: str, **changes: Any) -> None:
        before = self._operations[operation_id]
        operation = before.model_copy(update={**changes, "revision": before.revision + 1})
        self._operations[operation_id] = operation
        self._files.save(operation)
        self._changed.set()
        self._changed = asyncio.Event()


class OperationFiles:
    """The operations stored under one folder, which belongs to one process."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, operation_id: str) -> Path:
        """The folder of an operation."""
        return self._root / operation_id

    def save(self, operation: Operation) -> None:
        """Store an operation; any state but `running` is flushed to disk, so that it survives a crash."""
        folder = self.folder(operation.id)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{_STATE}.new"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(operation.model_dump_json())
            if operation.state != "running":
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(folder / _STATE)

    def load(self) -> Iterator[Operation]:
        """Yield all stored operations; a folder without a complete state file is ignored."""
        for state in sorted(self._root.glob(f"*/{_STATE}")):
            yield Operation.model_validate_json(state.read_bytes())


def read_page(file: Path, *, after: int, limit: int, ended: bool) -> ResultPage:
    """Read a page of a results file. An incomplete last line is left for the next page."""
    results: list[dict[str, Any]] = []
    if file.exists():
        with file.open("rb") as lines:
            complete = (line for line in lines if line.endswith(b"\n"))
            results = [json.loads(line) for line in islice(complete, after, after + limit + 1)]
    more = len(results) > limit or not ended
    page = tuple(results[:limit])
    return ResultPage(results=page, next_after=after + len(page) if more else None)
