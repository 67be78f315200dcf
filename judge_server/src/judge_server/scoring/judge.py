"""The judge: an executor for judge calls, programs for checks, and the cache of known verdicts.

It takes plans and returns one outcome per digest. Each distinct digest is asked once, however many responses, criteria
or requests share it, and not at all if its verdict is known. Failures are outcomes too, but are never cached.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Literal

from opentelemetry.trace import Span

from judge_server.judging.calibration import StoredCalibration
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.preparation import Preparer, check_votes
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.results import (
    ANONYMOUS_CALLER,
    Caller,
    CallOutcome,
    Judged,
    JudgingProgress,
    Outcomes,
    UnresolvedWork,
    failures_by_kind,
    unresolved_work,
)
from judge_server.observability.tracing import set_span_attributes, span
from judge_server.ports import EngineIdentity, JudgeResult, VerdictCache
from judge_server.scheduling.checker import Checker, CheckOwner, is_inline_check
from judge_server.scheduling.executor import JudgeExecutor
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.time_sharing import TimeSlicer, next_slice
from judge_server.verifiers import Check
from trainer_client.wire import JudgingOptions, UsedProtocol

STORE_TIMEOUT_S = 0.1
"""How long an answer waits for its verdicts to be cached; they are written even if this takes longer."""

STORE_INTERVAL_S = 0.5
"""How long a verdict may wait to be cached while its request is still running. If the api is killed, these verdicts
are judged again."""

_VERDICTS_PER_LOOKUP = 64
"""How many verdicts are looked up or stored in one call of the cache; Redis's client takes 2 ms to store them."""

_CHECKS_PER_TURN = 64
"""How many checks run on the event loop before it yields to other tasks."""


JudgeKind = Literal["engine", "cascade", "panel"]


class Judge:
    """Judges plans with one model. Start it once, then call `judge`.

    Attributes:
        executor: what has its calls answered.
        cache: where verdicts are looked up and stored.
        checker: what runs the checks by programs.
        preparer: what makes judging configurations ready.
        clock: returns seconds.
        metrics: its metrics.
        kind: what it is made of.
        members: the judges of a cascade or panel by name; empty here.
    """

    kind: JudgeKind = "engine"
    members: Mapping[str, "Judge"] = MappingProxyType({})

    def __init__(
        self,
        executor: JudgeExecutor,
        cache: VerdictCache,
        *,
        checker: Checker | None = None,
        preparer: Preparer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.cache = cache
        self.checker = checker or Checker()
        self.preparer = preparer or Preparer()
        self.clock = clock
        self.metrics = JudgeMetrics(clock)
        self._storing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError`, which says what to do, if it cannot be loaded."""
        await self.executor.start(self.metrics)
        self.executor.write_buffer.on_pending = self._store_soon

    @property
    def identity(self) -> EngineIdentity:
        """The model that judges."""
        return self.executor.identity

    @property
    def stored_calibrations(self) -> Sequence[StoredCalibration]:
        """The stored calibrations that this judge applies, instead of those that ship with the package."""
        return self.preparer.stored

    @stored_calibrations.setter
    def stored_calibrations(self, stored: Sequence[StoredCalibration]) -> None:
        self.preparer.stored = stored

    def refused_calibrations(self) -> list[str]:
        """Return the stored calibrations that were fitted for other weights, engines or templates than it has now."""
        return self.preparer.refused(self.identity)

    def prepared(self, config: JudgingConfig) -> PreparedConfig:
        """Return a configuration made ready for this judge; raises as `Preparer.prepare`."""
        return self.preparer.prepare(self.identity, config)

    def prepared_for(self, options: JudgingOptions, protocol: UsedProtocol) -> PreparedConfig:
        """Return the prepared configuration for a request's options; raises as `check_votes` and `prepared` do."""
        config = JudgingConfig.of(options, protocol)
        check_votes(self.identity, config, options.votes)
        return self.prepared(config)

    def judge(
        self,
        plans: Sequence[ResponsePlan],
        deadline: float,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        tick_s: float | None = None,
    ) -> AsyncGenerator[Judged, None]:
        """Judge plans by `deadline` (loop time), billed to `caller`; yield what is new when plans are complete.

        With `tick_s`, also yield when that many seconds have passed without a complete plan. Closing cancels the rest.
        A call that another request has in flight is joined instead of asked again. What was judged before a
        cancellation is cached.

        Raises:
            Overloaded: the queue has no room for the calls.
            NotReady: no judge is available.
        """
        progress = JudgingProgress()
        return progress.follow(partial(self._judge, plans, deadline, caller, progress), tick_s)

    async def _judge(
        self, plans: Sequence[ResponsePlan], deadline: float, caller: Caller, progress: JudgingProgress
    ) -> None:
        slicer, digests = TimeSlicer(), set[bytes]()
        shared = {id(plan.content_free): plan.content_free for plan in plans if plan.content_free is not None}
        for plan in (*shared.values(), *plans):
            await slicer.yield_if_due()
            digests.update(plan.digests)
            if plan.decided:
                progress.add(Outcomes(dict(plan.decided)))
        with span("judging", responses=len(plans), verdicts=len(digests)) as at:
            with self.executor.write_buffer.read_through():
                await self._look_up(list(digests), deadline, progress, slicer)
                slicer.resume()
                claimed, work = set(progress.known), list[UnresolvedWork]()
                for plan in shared.values():
                    if (part := unresolved_work(plan, claimed)) is not None:
                        work.append(part)
                for plan in plans:
                    await slicer.yield_if_due()
                    progress.track(plan)
                    if (part := unresolved_work(plan, claimed)) is not None:
                        work.append(part)
                pending = self.executor.submit(work, caller, progress, deadline)
            checking: list[asyncio.Task[None]] = []
            try:
                checking = self._begin_checks(work, caller, deadline, progress)
                await pending.wait()
                await asyncio.gather(*checking)
            finally:
                for one in checking:
                    one.cancel()
                pending.cancel()
                total = progress.total()
                self.metrics.request(caller, total, len(digests))
                _note(at, total)
                await self._store(progress.known)

    async def close(self) -> None:
        """Close the checker, the engine and the cache, after every verdict has been written to the cache."""
        await self.checker.close()
        await self.executor.close()
        self._begin_to_store()
        if self._storing:
            await asyncio.wait(self._storing)
        await self.cache.close()

    async def _look_up(
        self, digests: Sequence[bytes], deadline: float, progress: JudgingProgress, slicer: TimeSlicer
    ) -> None:
        """Take the verdicts in the cache, if it answers before the deadline, and those not cached yet."""
        known: dict[bytes, CallOutcome] = {}
        buffer = self.executor.write_buffer
        began = self.clock()
        with suppress(TimeoutError), span("cache get", verdicts=len(digests)) as at:
            async with asyncio.timeout_at(deadline):
                for begin in range(0, len(digests), _VERDICTS_PER_LOOKUP):
                    await slicer.yield_if_due()
                    known.update(await self.cache.get_many(digests[begin : begin + _VERDICTS_PER_LOOKUP]))
            set_span_attributes(at, hits=len(known))
        self.metrics.cache_seconds("get", self.clock() - began)
        progress.add(Outcomes(known, cached=set(known)))
        if not buffer.has_none_of(digests):
            buffered = {digest: buffer.get(digest) for digest in digests if digest not in known}
            fresh: dict[bytes, CallOutcome] = {d: verdict for d, verdict in buffered.items() if verdict is not None}
            progress.add(Outcomes(fresh, joined=set(fresh)))

    def _begin_checks(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        deadline: float,
        progress: JudgingProgress,
    ) -> list[asyncio.Task[None]]:
        """Start the checks: quick ones one after the other in a single task, all others at the workers."""

        async def decide(some: Sequence[tuple[bytes, Check, CheckOwner]]) -> None:
            found = {digest: await self.checker.run(check, deadline, owner) for digest, check, owner in some}
            progress.add(Outcomes(found, checks=len(found)))

        async def decide_inline(some: Sequence[tuple[bytes, Check, CheckOwner]]) -> None:
            for begin in range(0, len(some), _CHECKS_PER_TURN):
                if begin:
                    await next_slice()
                await decide(some[begin : begin + _CHECKS_PER_TURN])

        def release_limits(_: object) -> None:
            self.checker.limits.release(caller.run, 1)

        checks = [
            (digest, check, CheckOwner(caller.run, str(plan.group), caller.priority, caller.share))
            for plan, _, plan_checks in work
            for digest, check in plan_checks
        ]
        small = [one for one in checks if is_inline_check(one[1])]
        large = [one for one in checks if not is_inline_check(one[1])]
        self.checker.limits.acquire(caller.run, len(large))
        begun = [asyncio.create_task(decide([one])) for one in large]
        for task in begun:
            task.add_done_callback(release_limits)
        return [*begun, asyncio.create_task(decide_inline(small))] if small else begun

    def _store_soon(self) -> None:
        """Schedule a write to the cache, so that a killed process loses no more than `STORE_INTERVAL_S` of verdicts."""
        asyncio.get_running_loop().call_later(STORE_INTERVAL_S, self._begin_to_store)

    async def _store(self, wanted: Collection[bytes]) -> None:
        """Write a request's new verdicts to the cache, and wait for that at most `STORE_TIMEOUT_S`."""
        storing = self._begin_to_store(wanted)
        if storing is not None:
            await asyncio.wait({storing}, timeout=STORE_TIMEOUT_S)

    def _begin_to_store(self, wanted: Collection[bytes] | None = None) -> asyncio.Task[None] | None:
        new = self.executor.write_buffer.take_pending(wanted)
        if not new:
            return None
        storing = asyncio.create_task(self._put(new))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        return storing

    async def _put(self, new: Mapping[bytes, JudgeResult]) -> None:
        began = self.clock()
        try:
            with span("cache put", verdicts=len(new)):
                slicer, entries = TimeSlicer(), list(new.items())
                for begin in range(0, len(entries), _VERDICTS_PER_LOOKUP):
                    await slicer.yield_if_due()
                    await self.cache.put_many(dict(entries[begin : begin + _VERDICTS_PER_LOOKUP]))
        finally:
            self.executor.write_buffer.mark_stored(new)
            self.metrics.cache_seconds("put", self.clock() - began)


def _note(at: Span, result: Outcomes) -> None:
    """Add the counts of a request's outcomes to its span."""
    if at.is_recording():
        kinds = {f"failed.{kind}": number for kind, number in failures_by_kind(result.by_digest.values()).items()}
        set_span_attributes(
            at,
            calls=result.costs.calls,
            cached=len(result.cached),
            joined=len(result.joined),
            checks=result.checks,
            **kinds,
        )
