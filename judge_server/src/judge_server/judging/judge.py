"""A judge: a desk that has calls answered, programs beside it, and the verdicts given before.

Plans go in, one outcome per digest comes out. Each distinct digest is asked once, however many responses, criteria or
requests share it, and not at all if its verdict is known. Failures are outcomes too, and are never kept.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from opentelemetry.trace import Span

from judge_server.checks import Check, Checker, Owner, decided_at_once
from judge_server.errors import InvalidRequest
from judge_server.judging.calibration import NEUTRAL, CalibrationSet
from judge_server.judging.desk import Desk
from judge_server.judging.fingerprint import judge_fingerprint
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.judging.ways import JudgeSetup, Way
from judge_server.judging.work import NOBODY, Caller, Outcomes, Waiting, Work, failures_by_kind, unknown
from judge_server.metrics import JudgeMetrics
from judge_server.ports import EngineIdentity, Finding, VerdictCache
from judge_server.prompts import Form, PromptTemplates
from judge_server.prompts.declaration import Declaration
from judge_server.prompts.library import TemplateLibrary, refused
from judge_server.telemetry.spans import note, span
from trainer_client.wire import FieldError, JudgingOptions, Protocol

STORE_PATIENCE_S = 0.1
"""How long an answer waits until its verdicts are written to the cache; they are written all the same."""

STORE_EVERY_S = 0.5
"""How long a verdict may be known before it is written to the cache, when the request it belongs to goes on."""

_PROTOCOL = "judging.protocol"
_VOTES = "judging.votes"
_SETUPS_KEPT = 256

_CHECKS_PER_TURN = 64
"""Checks that are decided on the event loop until others have their turn."""


class Judge:
    """Start it once, then ask it for the outcomes of plans."""

    def __init__(
        self,
        desk: Desk,
        cache: VerdictCache,
        fence: Callable[[str], str],
        *,
        checker: Checker | None = None,
        templates: TemplateLibrary | None = None,
        calibrations: CalibrationSet | None = None,
        min_choice_mass: float = MIN_CHOICE_MASS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.desk = desk
        self.cache = cache
        self.checker = checker or Checker()
        self._fence = fence
        self.templates = templates or TemplateLibrary(None)
        self._calibrations = calibrations or CalibrationSet()
        self._min_choice_mass = min_choice_mass
        self.clock = clock
        self.metrics = JudgeMetrics(clock)
        self._setups: dict[tuple[EngineIdentity, Way], JudgeSetup] = {}
        self._storing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError` with the way out when it cannot be loaded."""
        await self.desk.start(self.metrics)
        self.desk.findings.on_new = self._store_soon

    @property
    def identity(self) -> EngineIdentity:
        """The model that judges."""
        return self.desk.identity

    def setup(self, way: Way) -> JudgeSetup:
        """The templates, the calibration and the fingerprint this judge has for a way of asking.

        Raises:
            InvalidRequest: there is no such set of templates, it cannot be used or not under this protocol, or the
                judge is unfit for the protocol.
        """
        made = self._setups.get((self.identity, way))
        if made is None:
            self._refuse_unfit(way.protocol)
            found = self.templates.find(way.template)
            _refuse_other_protocols(way, found.declared)
            alone = PromptTemplates(Form(way.protocol, way.rationale), self._fence, found.templates)
            together = PromptTemplates(Form(way.protocol, way.rationale, several=True), self._fence, found.templates)
            digests = (alone.digest, together.digest, *found.declared.digested)
            calibration = NEUTRAL
            if way.plain and not found.declared.digested:
                calibration = self._calibrations.find(self.identity.weights_digest, way.protocol, alone.digest)
            fingerprint = judge_fingerprint(self.identity, digests, way, calibration, self._min_choice_mass)
            names_steps = self._calibrations.names_steps(self.identity.weights_digest)
            made = JudgeSetup(
                way, alone, together, fingerprint, calibration, names_steps, found.declared, self._min_choice_mass
            )
            if len(self._setups) >= _SETUPS_KEPT:
                self._setups.clear()
            self._setups[self.identity, way] = made
        return made

    def _refuse_unfit(self, protocol: str) -> None:
        unfit = self._calibrations.why_unfit(self.identity.weights_digest, protocol)
        if unfit is not None:
            message = (
                f"{self.identity.model} {unfit.reason}, so its {protocol} scores mean nothing; "
                f"use {unfit.instead}, or a stronger judge"
            )
            raise InvalidRequest(f"{_PROTOCOL}: {message}", errors=(FieldError(field=_PROTOCOL, message=message),))

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
        sampled = not way.plain
        if votes > 1 and self.identity.capabilities.logprobs and not sampled:
            message = (
                f"{votes} votes on a {way.protocol} verdict whose exact probability this judge reads in one call would "
                "all be the same; leave votes out, or have something sampled: rationale, think_tokens"
                + ("" if way.protocol == "likert" else ", or several criteria per call")
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
            NotReady: no judge is there to be asked.
        """
        result = Outcomes() if into is None else into
        digests = {digest for plan in plans for digest in plan.digests}
        with span("judging", responses=len(plans), verdicts=len(digests)) as at:
            with self.desk.findings.reading():
                await self._look_up(digests, deadline, result)
                work = unknown(plans, result.of)
            waiting = Waiting(plans, result.of, done)
            errand = self.desk.take(work, caller, result, waiting, deadline)
            checking: list[asyncio.Task[None]] = []
            try:
                checking = self._begin_checks(work, caller, deadline, result, waiting)
                await errand.done()
                await asyncio.gather(*checking)
            finally:
                for one in checking:
                    one.cancel()
                errand.leave()
                self.metrics.request(caller, result, len(digests))
                _note(at, result)
                await self._store()
        return result

    async def close(self) -> None:
        """End the programs, the engine and the cache; what is being stored is stored first."""
        await self.checker.close()
        await self.desk.close()
        if self._storing:
            await asyncio.wait(self._storing)
        await self.cache.close()

    async def _look_up(self, digests: Collection[bytes], deadline: float, result: Outcomes) -> None:
        """Take what the cache knows, if it says so before the deadline, and what others have just found."""
        known: Mapping[bytes, Finding] = {}
        began = self.clock()
        with suppress(TimeoutError), span("cache get", verdicts=len(digests)) as at:
            async with asyncio.timeout_at(deadline):
                known = await self.cache.get_many(list(digests))
            note(at, hits=len(known))
        self.metrics.cache_seconds("get", self.clock() - began)
        fresh_ones = self.desk.findings
        found = {digest: fresh_ones.get(digest) for digest in digests if digest not in known} if fresh_ones else {}
        fresh = {digest: finding for digest, finding in found.items() if finding is not None}
        result.of.update(known)
        result.of.update(fresh)
        result.cached, result.joined = frozenset(known), frozenset(fresh)

    def _begin_checks(
        self, work: Sequence[Work], caller: Caller, deadline: float, result: Outcomes, waiting: Waiting
    ) -> list[asyncio.Task[None]]:
        """Have programs decide what is theirs: what takes no time one after the other, all else at the workers."""

        async def decide(digest: bytes, check: Check, owner: Owner) -> None:
            result.of[digest] = await self.checker.run(check, deadline, owner)
            result.checks += 1
            waiting.known([digest])

        async def decide_at_once(some: Sequence[tuple[bytes, Check, Owner]]) -> None:
            for place, (digest, check, owner) in enumerate(some):
                if place % _CHECKS_PER_TURN == 0:
                    await asyncio.sleep(0)
                await decide(digest, check, owner)

        def leave_room(_: object) -> None:
            self.checker.room.leave(caller.run, 1)

        checks = [
            (digest, check, Owner(caller.run, str(plan.group), caller.priority, caller.share))
            for plan, _, of_plan in work
            for digest, check in of_plan
        ]
        small = [one for one in checks if decided_at_once(one[1])]
        large = [one for one in checks if not decided_at_once(one[1])]
        self.checker.room.enter(caller.run, len(large))
        begun = [asyncio.create_task(decide(*one)) for one in large]
        for task in begun:
            task.add_done_callback(leave_room)
        return [*begun, asyncio.create_task(decide_at_once(small))] if small else begun

    def _store_soon(self) -> None:
        """Have what is new stored within a while, though no request ends: a killed process loses no more than that."""
        asyncio.get_running_loop().call_later(STORE_EVERY_S, self._begin_to_store)

    async def _store(self) -> None:
        """Write what is new to the cache; an answer waits for that for a moment only."""
        storing = self._begin_to_store()
        if storing is not None:
            await asyncio.wait({storing}, timeout=STORE_PATIENCE_S)

    def _begin_to_store(self) -> asyncio.Task[None] | None:
        new = self.desk.findings.take_new()
        if not new:
            return None
        storing = asyncio.create_task(self._put(new))
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)
        return storing

    async def _put(self, new: Mapping[bytes, Finding]) -> None:
        began = self.clock()
        try:
            with span("cache put", verdicts=len(new)):
                await self.cache.put_many(new)
        finally:
            self.desk.findings.stored(new)
            self.metrics.cache_seconds("put", self.clock() - began)


def _refuse_other_protocols(way: Way, declared: Declaration) -> None:
    if declared.protocols is not None and way.protocol not in declared.protocols:
        raise refused(
            f"the set of templates {way.template!r} is for {' or '.join(declared.protocols)}, and this request asks "
            f"under {way.protocol}; choose another set, or a mode or protocol that it is for"
        )


def _note(at: Span, result: Outcomes) -> None:
    """Say in a span what became of a request's verdicts, in figures."""
    if at.is_recording():
        kinds = {f"failed.{kind}": number for kind, number in failures_by_kind(result.of.values()).items()}
        note(
            at, calls=result.calls, cached=len(result.cached), joined=len(result.joined), checks=result.checks, **kinds
        )
