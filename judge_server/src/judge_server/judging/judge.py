"""A judge: an engine behind its admission queue, programs beside it, and the verdicts given before.

Plans go in, one outcome per digest comes out. Each distinct digest is asked once, however many responses, criteria or
requests share it, and not at all if its verdict is known. Failures are outcomes too, and are never kept.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from judge_server.checks import Check, Checker
from judge_server.errors import InvalidRequest, Overloaded
from judge_server.judging.admission import USUAL_RULES, Admission, QueueRules
from judge_server.judging.asking import Asker, Asking
from judge_server.judging.findings import FreshFindings
from judge_server.judging.fingerprint import judge_fingerprint
from judge_server.judging.joining import Flight, Flights, Waiter
from judge_server.judging.plan import Asked, ResponsePlan
from judge_server.judging.ways import JudgeSetup, Way
from judge_server.judging.work import NOBODY, Caller, Outcomes, Waiting, Work, unknown
from judge_server.metrics import JudgeMetrics
from judge_server.ports import Engine, EngineIdentity, Finding, VerdictCache
from judge_server.prompts import Form, PromptTemplates
from judge_server.prompts.library import TemplateLibrary
from trainer_client.wire import FieldError, JudgingOptions, Protocol

STORE_PATIENCE_S = 0.1
"""How long an answer waits until its verdicts are written to the cache; they are written all the same."""

_VOTES = "judging.votes"
_SETUPS_KEPT = 256


class Judge:
    """Start it once, then ask it for the outcomes of plans."""

    def __init__(
        self,
        engine: Engine,
        cache: VerdictCache,
        fence: Callable[[str], str],
        *,
        rules: QueueRules = USUAL_RULES,
        checker: Checker | None = None,
        templates: TemplateLibrary | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.cache = cache
        self.checker = checker or Checker()
        self._fence = fence
        self._rules = rules
        self.templates = templates or TemplateLibrary(None)
        self.clock = clock
        self.metrics = JudgeMetrics(clock)
        self._setups: dict[Way, JudgeSetup] = {}
        self._fresh = FreshFindings()
        self._flights = Flights()
        self._storing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError` with the way out when it cannot be loaded."""
        self.identity: EngineIdentity = await self.engine.start()
        self._admission = Admission(self.identity.concurrent_batches, self._rules, clock=self.clock)
        self._asker = Asker(self.engine, self._admission, self._fresh, self.metrics)
        self.metrics.watch(self._admission)

    def setup(self, way: Way) -> JudgeSetup:
        """The templates and the fingerprint this judge has for a way of asking.

        Raises:
            InvalidRequest: there is no such set of templates, or it cannot be used.
        """
        made = self._setups.get(way)
        if made is None:
            replaced = self.templates.find(way.template)
            alone = PromptTemplates(Form(way.protocol, way.rationale), self._fence, replaced)
            together = PromptTemplates(Form(way.protocol, way.rationale, several=True), self._fence, replaced)
            digests = (alone.digest, together.digest)
            made = JudgeSetup(way, alone, together, judge_fingerprint(self.identity, digests, way))
            if len(self._setups) >= _SETUPS_KEPT:
                self._setups.clear()
            self._setups[way] = made
        return made

    def setup_for(self, options: JudgingOptions, protocol: Protocol) -> JudgeSetup:
        """What this judge has ready for a request's options; raises as `check_votes` and `setup` do."""
        way = Way.of(options, protocol)
        self.check_votes(way, options.votes)
        return self.setup(way)

    def check_votes(self, way: Way, votes: int) -> None:
        """Refuse votes where there is nothing to sample.

        Raises:
            InvalidRequest: the engine reads the exact probability of a plain verdict, so all votes would be one.
        """
        sampled = way.rationale or way.think_tokens or way.per_call != 1 or way.protocol == "likert"
        if votes > 1 and self.identity.capabilities.logprobs and not sampled:
            message = (
                f"{votes} votes on a {way.protocol} verdict whose exact probability this judge reads in one call would "
                "all be the same; leave votes out, or have something sampled: rationale, think_tokens, or several "
                "criteria per call"
            )
            raise InvalidRequest(f"{_VOTES}: {message}", errors=(FieldError(field=_VOTES, message=message),))

    async def outcomes(
        self,
        plans: Sequence[ResponsePlan],
        deadline: float,
        *,
        caller: Caller = NOBODY,
        into: Outcomes | None = None,
        done: Callable[[int], None] | None = None,
    ) -> Outcomes:
        """Find or ask every verdict of the plans by `deadline` (loop time), at the cost of `caller`.

        What is known so far stands in `into`; `done` is told the place of each plan that has all its outcomes. What
        was judged before a cancellation is kept. A call that another request has on its way is waited for instead.

        Raises:
            Overloaded: the queue has no room for the calls that must be asked.
        """
        result = Outcomes() if into is None else into
        digests = {digest for plan in plans for digest in plan.digests}
        with self._fresh.reading():
            await self._look_up(digests, deadline, result)
            work = unknown(plans, result.of)
        waiting = Waiting(plans, result.of, done)
        waiter = Waiter(result, waiting, deadline)
        made = self._set_off(work, caller, waiter)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _, _, checks in work:
                    for digest, check in checks:
                        tasks.create_task(self._check(digest, check, deadline, result, waiting))
                await waiter.all_known()
        finally:
            waiter.leave()
            for asking in made:
                asking.charge()
            self.metrics.request(caller, result, len(digests))
            await self._store()
        return result

    async def close(self) -> None:
        """End the programs, the engine and the cache; what is being stored is stored first."""
        await self.checker.close()
        await self.engine.close()
        if self._storing:
            await asyncio.wait(self._storing)
        await self.cache.close()

    async def _look_up(self, digests: Collection[bytes], deadline: float, result: Outcomes) -> None:
        """Take what the cache knows, if it says so before the deadline, and what others have just found."""
        known: Mapping[bytes, Finding] = {}
        began = self.clock()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                known = await self.cache.get_many(list(digests))
        self.metrics.cache_seconds("get", self.clock() - began)
        found = {digest: self._fresh.get(digest) for digest in digests if digest not in known} if self._fresh else {}
        fresh = {digest: finding for digest, finding in found.items() if finding is not None}
        result.of.update(known)
        result.of.update(fresh)
        result.cached, result.joined = frozenset(known), frozenset(fresh)

    def _set_off(self, work: Sequence[Work], caller: Caller, waiter: Waiter) -> list[Asking]:
        """Have the waiter wait for all that is to be asked: what is on its way already, and flights of its own."""
        own: list[tuple[ResponsePlan, list[Asked]]] = []
        joins: list[tuple[Flight, list[bytes]]] = []
        for plan, asked, _ in work:
            mine = []
            for one in asked:
                missing = [digest for digest in one.digests if digest not in waiter.result.of]
                flight = self._flights.find(missing[0])
                if flight is None:
                    mine.append(one)
                else:
                    joins.append((flight, missing))
            if mine:
                own.append((plan, mine))
        calls = sum(len(asked) for _, asked in own)
        try:
            self._admission.room.enter(caller.run, calls)
        except Overloaded:
            self.metrics.shed(calls)
            raise
        for flight, missing in joins:
            flight.join(waiter, missing)
            if caller.priority == "online" and flight.hurry is not None:
                flight.hurry()
        waiter.result.joined |= {digest for _, missing in joins for digest in missing}
        return [self._begin(plan, asked, caller, waiter) for plan, asked in own]

    def _begin(self, plan: ResponsePlan, asked: Sequence[Asked], caller: Caller, waiter: Waiter) -> Asking:
        flight, of = self._flights.begin(asked), waiter.result.of
        digests = [digest for one in asked for digest in one.digests]
        flight.latest.update([(digest, of[digest]) for digest in digests if digest in of])
        flight.join(waiter, [digest for digest in digests if digest not in of])
        return self._asker.launch(flight, plan, caller, waiter.result)

    async def _check(self, digest: bytes, check: Check, deadline: float, result: Outcomes, waiting: Waiting) -> None:
        result.of[digest] = await self.checker.run(check, deadline)
        result.checks += 1
        waiting.known([digest])

    async def _store(self) -> None:
        """Write what is new to the cache; an answer waits for that for a moment only."""
        new = self._fresh.take_new()
        if not new:
            return
        storing = asyncio.create_task(self._put(new))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        await asyncio.wait({storing}, timeout=STORE_PATIENCE_S)

    async def _put(self, new: Mapping[bytes, Finding]) -> None:
        began = self.clock()
        try:
            await self.cache.put_many(new)
        finally:
            self._fresh.stored(new)
            self.metrics.cache_seconds("put", self.clock() - began)
