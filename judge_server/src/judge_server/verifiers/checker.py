"""Run checks: cheap ones on the event loop, others in worker processes that are killed when they take too long.

Every check first gets a short try. One that does not finish in it moves to the queue of long checks, which never occupy
all workers; see `judge_server.verifiers.scheduler`.
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import assert_never

from judge_server.ports import CallFailure, JudgeResult
from judge_server.queueing import QueueLimits
from judge_server.verifiers.check import Check
from judge_server.verifiers.scheduler import CheckOwner, CheckScheduler
from judge_server.verifiers.worker import WALL_CLOCK_FACTOR, compile_within, decide, decide_within, init_worker
from judge_server.worker_pool import WorkerExited, WorkerPool
from trainer_client.byte_cache import ByteCache
from trainer_client.wire.criteria import (
    ContainsVerification,
    ExactVerification,
    JsonSchemaVerification,
    MathVerification,
    NumericVerification,
    RegexVerification,
    ToolCallVerification,
    TurnsVerification,
)

INLINE_CHARACTERS = 2**14
"""The most characters that a plain comparison may process on the event loop: less than a millisecond of work."""

INLINE_NUMBER_CHARACTERS = 1000
"""The most characters of a text that is read as a number on the event loop."""

FIRST_TRY_S = 0.5
"""CPU seconds of a check's first try. A check that needs more moves to the long queue."""

MAX_QUEUED_CHECKS = 50_000
"""How many checks may wait or run before requests are refused; see `QueueLimits` for the share of a run."""

COMPILE_S = 0.5
"""CPU seconds to compile all regular expressions of a request."""

MAX_PATTERN_CHARACTERS = 1_000_000
"""The most characters of all distinct regular expressions of a request."""

_REMEMBERED_BYTES = 4 * 2**20


class Checker:
    """Decides checks. Worker processes start with the first check that needs one.

    Attributes:
        limits: the limits on checks waiting or running. Callers with many checks acquire from it first.
    """

    def __init__(self, *, workers: int = 3, seconds: float = 5.0, memory_mb: int = 1024) -> None:
        """Use `workers` processes of at most `memory_mb` each, and at most `seconds` of CPU time for each check."""
        self._seconds = seconds
        self._memory_mb = memory_mb
        self._scheduler = CheckScheduler(workers)
        self._shared_pool = WorkerPool(self._scheduler.shared, init_worker, (memory_mb,))
        self._reserved_pool = WorkerPool(self._scheduler.reserved, init_worker, (memory_mb,))
        self._slow_checks: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self._compiled: ByteCache[bytes, bool] = ByteCache(_REMEMBERED_BYTES)
        self.limits = QueueLimits(MAX_QUEUED_CHECKS, None, time.monotonic)

    async def run(self, check: Check, deadline: float, owner: CheckOwner = CheckOwner()) -> JudgeResult | CallFailure:  # noqa: B008
        """Decide a check before `deadline` (loop time). Raises nothing.

        The time limit counts a worker's CPU time, so neither the wait for a worker nor a busy machine uses it up.
        Failures: `parse`, what it compares with cannot be read; `timeout`, its time limit or the deadline has passed;
        `engine`, its worker died.
        Cancelling the task ends the work.
        """
        if is_inline_check(check):
            return decide(check)
        method, digest = check.program.method, check.digest
        try:
            async with asyncio.timeout_at(deadline):
                if not self._slow_checks.get(digest):
                    outcome = await self._try(check, owner, FIRST_TRY_S)
                    self._scheduler.history.record(owner.run, slow=outcome is None)
                    if outcome is not None:
                        return outcome
                    self._slow_checks.put(digest, True)
                outcome = await self._try(check, owner, None)
                return outcome or self._pool_failure(method)
        except TimeoutError:
            return CallFailure(
                "timeout", f"the {method} check was not done by the deadline; raise the request's deadline_s"
            )

    async def first_unusable(
        self,
        patterns: Sequence[str],
        deadline: float,
        owner: CheckOwner = CheckOwner(),  # noqa: B008
    ) -> tuple[int, str] | None:
        """Compile regular expressions in a worker.

        Returns:
            The index of the first that cannot be used, and why; None if all can.

        Raises:
            TimeoutError: no worker was free before `deadline` (loop time).
        """
        places: dict[str, int] = {}
        for place, pattern in enumerate(patterns):
            if not self._compiled.get(sha256(pattern.encode("utf-8", "surrogatepass")).digest()):
                places.setdefault(pattern, place)
        if not places:
            return None
        if sum(map(len, places)) > MAX_PATTERN_CHARACTERS:
            return 0, f"the regular expressions have more than {MAX_PATTERN_CHARACTERS:,} characters together"
        args = tuple(places), self._seconds, COMPILE_S
        try:
            async with asyncio.timeout_at(deadline), self._scheduler.acquire(owner, long=False) as reserved:
                outcome = await self._pool(reserved=reserved).execute(
                    compile_within, args, WALL_CLOCK_FACTOR * self._seconds
                )
        except WorkerExited:
            self._scheduler.history.record(owner.run, slow=True)
            return 0, "the regular expressions take too long to compile; write simpler ones"
        if outcome is None:
            return 0, self._pool_failure("regex").detail
        (unusable,) = outcome
        if unusable is None:
            for pattern in places:
                self._compiled.put(sha256(pattern.encode("utf-8", "surrogatepass")).digest(), True)
            return None
        place, why = unusable
        return places[list(places)[place]], why

    async def _try(
        self, check: Check, owner: CheckOwner, first_try_s: float | None
    ) -> JudgeResult | CallFailure | None:
        """Have a worker decide; None if that takes longer than the first try."""
        seconds = self._seconds if first_try_s is None else min(self._seconds, 2 * first_try_s)
        if isinstance(check.program, ToolCallVerification) or check.program.of == "final_answer":
            check = replace(check, text="", steps=())  # not read, and possibly long
        args = (check, seconds, self._memory_mb, first_try_s)
        method = check.program.method
        async with self._scheduler.acquire(owner, long=first_try_s is None) as reserved:
            try:
                outcome = await self._pool(reserved=reserved).execute(decide_within, args, WALL_CLOCK_FACTOR * seconds)
            except WorkerExited as exited:
                timed_out = exited.timed_out or exited.exit_code in (-signal.SIGPROF, -signal.SIGALRM)
                return None if timed_out and first_try_s is not None else self._exit_failure(method, timed_out)
        if outcome is None:
            return self._pool_failure(method)
        (decided,) = outcome
        return decided  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End every worker; running checks fail."""
        await asyncio.gather(self._shared_pool.close(), self._reserved_pool.close())

    def _pool(self, *, reserved: bool) -> WorkerPool:
        """The pool of a place. Reserved places have their own, since the end of a worker holds up its pool."""
        return self._reserved_pool if reserved else self._shared_pool

    def _exit_failure(self, method: str, timed_out: bool) -> CallFailure:
        if timed_out:
            return CallFailure("timeout", f"the {method} check exceeded its limit of {self._seconds:g} CPU seconds")
        detail = f"the process of the {method} check died, perhaps from its memory limit of {self._memory_mb} MB"
        return CallFailure("engine", detail)

    def _pool_failure(self, method: str) -> CallFailure:
        if self._shared_pool.closed:
            return CallFailure("engine", f"the {method} check was not done: the service is stopping")
        return CallFailure(
            "engine",
            f"the {method} check was not done: its processes ended before they could begin; see the service's log, and "
            f"check whether {self._memory_mb} MB of memory are enough for one process",
        )


def is_inline_check(check: Check) -> bool:
    """Whether a check is cheap enough for the event loop."""
    if check.subject is None:
        return True
    length = len(check.subject)
    match check.program:
        case ExactVerification():
            return length + len(str(check.expected)) <= INLINE_CHARACTERS
        case ContainsVerification(all_of=all_of, any_of=any_of):
            needles = (*all_of, *any_of)
            return length * len(needles) + sum(map(len, needles)) <= INLINE_CHARACTERS
        case NumericVerification():
            return length + len(str(check.expected)) <= INLINE_NUMBER_CHARACTERS
        case TurnsVerification() | ToolCallVerification(arguments=None):
            return True
        case MathVerification() | RegexVerification() | JsonSchemaVerification() | ToolCallVerification():
            return False
        case unknown:
            assert_never(unknown)
