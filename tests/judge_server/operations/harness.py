"""Operations in chunks, with both queues over both databases, whose work a test releases piece by piece."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from celery.contrib.testing.worker import start_worker
from pydantic import BaseModel

from judge_server.operations.queues import TASK, CeleryQueue, LocalQueue, celery_app
from judge_server.operations.runner import ChunkRunner
from judge_server.operations.service import Dispatcher, Operations
from judge_server.ports import ChunkQueue
from rubric_store import SQLOperations
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk
from tests.fixtures.short_intervals import POLL_INTERVAL_S
from trainer_client.wire.operations import TERMINAL_STATES, Operation, ScoreOperation
from trainer_client.wire.verdicts import Usage

PROJECT = "p"
LEASE_S = 3.0


def request(groups: int) -> dict[str, Any]:
    """A request with this many groups."""
    return {
        "rubric": {"criteria": [{"id": "a", "description": "Is right."}]},
        "groups": [{"id": f"q{n}", "prompt": "?", "responses": ["Yes!"]} for n in range(groups)],
    }


@dataclass
class CountingHandler:
    """An operation kind with a chunk per group; a chunk is done when released, or raises its error in `raises`."""

    has_final_chunk: bool = False
    lets: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    raises: dict[int, Exception] = field(default_factory=dict)
    cannot_split: Exception | None = None
    begun: Counter[int] = field(default_factory=Counter)
    stopped: Counter[int] = field(default_factory=Counter)
    done: Counter[int] = field(default_factory=Counter)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        assert isinstance(request, ScoreOperation)
        if self.cannot_split is not None:
            raise self.cannot_split
        if request.run == "refused":
            raise ValueError("run: this one is refused")
        return {"run": request.run}, [NewChunk(1, {"group": group.id}) for group in request.groups]

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        chunk = work.ref.chunk
        self.begun[chunk] += 1
        self.changed.set()
        try:
            await self.lets.acquire()
        except asyncio.CancelledError:
            self.stopped[chunk] += 1
            self.changed.set()
            raise
        if chunk in self.raises:
            raise self.raises[chunk]
        self.done[chunk] += 1
        if work.body is None:
            return ChunkOutcome(summary={"finished": True})
        return ChunkOutcome([{"group": work.body["group"]}], Usage(judge_calls=1))

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition on begun and stopped chunks is true."""
        async with asyncio.timeout(30):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    def release(self, times: int = 1) -> None:
        """Let this many more chunks finish."""
        for _ in range(times):
            self.lets.release()


@dataclass
class OperationsHarness:
    """An adapter under test and its operation kind. `restart` stops the workers, as if the process ended, and starts
    again over the stored state. The clock that submits and enqueues is `ahead` of the workers' clock. `options` are
    further ones of `Operations`."""

    url: str
    broker: str | None
    kind: CountingHandler = field(default_factory=CountingHandler)
    ahead: timedelta = timedelta()
    options: dict[str, Any] = field(default_factory=lambda: {"poll_interval_s": POLL_INTERVAL_S})
    operations: Operations = field(init=False)
    dispatcher: Dispatcher = field(init=False)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        """Start working."""
        stack = self._open = AsyncExitStack()
        store = SQLOperations(self.url)
        stack.push_async_callback(store.close)
        kinds = {"score": self.kind}
        runner = ChunkRunner(store, kinds, lease_s=LEASE_S, retry_delay_s=0.01, unavailable_retry_delay_s=0.01)  # type: ignore[arg-type]
        queue: ChunkQueue
        if self.broker is None:
            queue = local = LocalQueue(runner.run)
            local.start()
            stack.push_async_callback(local.close)
        else:
            queue = await stack.enter_async_context(celery_queue(self.broker, runner))
        self.dispatcher = Dispatcher(store, queue, reenqueue_after_s=0.2, now=self._now)
        feeding = asyncio.create_task(self.dispatcher.run(0.05))
        stack.push_async_callback(ended, feeding)
        self.operations = Operations(store, kinds, self.dispatcher, now=self._now, **self.options)  # type: ignore[arg-type]

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    async def stop(self) -> None:
        """Stop working."""
        await self._open.aclose()

    async def restart(self) -> None:
        """Stop, and start again."""
        await self.stop()
        await self.start()

    async def submitted(self, groups: int = 2) -> str:
        """Submit an operation; return its id."""
        return (await self.operations.submit(PROJECT, "score", request(groups))).id

    async def until(self, id_: str, *states: Literal["queued", "running", "done", "failed", "cancelled"]) -> Operation:
        """Wait until the operation is in one of these states, or in a terminal one if none is given; return it."""
        async with asyncio.timeout(30):
            async for operation in self.operations.events(PROJECT, id_):
                if operation.state in (states or TERMINAL_STATES):
                    return operation
        raise AssertionError("the operation ended before it reached that state")

    async def begun(self, *chunks: int, times: int = 1) -> None:
        """Wait until each of these chunks has begun this often."""
        await self.kind.wait_until(lambda: all(self.kind.begun[chunk] >= times for chunk in chunks))


async def ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def celery_queue(broker: str, runner: ChunkRunner) -> AsyncIterator[ChunkQueue]:
    """A queue with a Celery worker in threads of this process, which runs the work in this event loop."""
    app = celery_app(broker)
    loop = asyncio.get_running_loop()
    running: set[asyncio.Future[None]] = set()
    leaving = asyncio.Event()

    async def work(ref: ChunkRef) -> None:
        if leaving.is_set():
            return
        task = asyncio.ensure_future(runner.run(ref))
        running.add(task)
        await asyncio.gather(task, return_exceptions=True)
        running.discard(task)

    def run_chunk(project_id: str, operation_id: str, chunk: int) -> None:
        asyncio.run_coroutine_threadsafe(work(ChunkRef(project_id, operation_id, chunk)), loop).result()

    app.task(name=TASK, shared=False)(run_chunk)
    options = {"pool": "threads", "concurrency": 2, "perform_ping_check": False, "shutdown_timeout": 30}
    level = logging.root.level  # Celery's worker changes it, which would break later tests of logs
    worker = start_worker(app, **options)
    await asyncio.to_thread(worker.__enter__)
    try:
        yield CeleryQueue(app)
    finally:
        leaving.set()  # chunks that Celery still delivers are dropped, and enqueued again
        for task in list(running):
            task.cancel()
        await asyncio.to_thread(worker.__exit__, None, None, None)
        logging.root.setLevel(level)
