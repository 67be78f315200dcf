"""A judge: a desk that has calls answered, programs beside it, and the verdicts given before.

Plans go in, one outcome per digest comes out. Each distinct digest is asked once, however many responses, criteria or
requests share it, and not at all if its verdict is known. Failures are outcomes too, and are never kept.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from opentelemetry.trace import Span

from judge_server.errors import InvalidRequest
from judge_server.judging.calibration import NEUTRAL, CalibrationSet
from judge_server.judging.fingerprint import judge_fingerprint
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.judging.results import (
    ANONYMOUS_CALLER,
    Caller,
    CompletionTracker,
    JudgementResults,
    UnresolvedWork,
    failures_by_kind,
    find_unresolved,
)
from judge_server.observability.tracing import set_span_attributes, span
from judge_server.ports import EngineIdentity, JudgeResult, VerdictCache
from judge_server.prompts import PromptForm, PromptTemplates
from judge_server.prompts.library import Declaration, TemplateLibrary, template_error
from judge_server.scheduling.executor import JudgeExecutor
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.verifiers import Check, Checker, CheckOwner, is_inline_check
from trainer_client.wire import FieldError, JudgingOptions, JudgingProtocol

STORE_TIMEOUT_S = 0.1
"""How long an answer waits until its verdicts are written to the cache; they are written all the same."""

STORE_INTERVAL_S = 0.5
"""How long a verdict may be known before it is written to the cache, when the request it belongs to goes on."""

_PROTOCOL = "judging.protocol"
_VOTES = "judging.votes"
_MAX_PREPARED_CONFIGS = 256

_CHECKS_PER_TURN = 64
"""Checks that are decided on the event loop until others have their turn."""


class Judge:
    """Start it once, then ask it for the outcomes of plans."""

    def __init__(
        self,
        executor: JudgeExecutor,
        cache: VerdictCache,
        fence: Callable[[str], str],
        *,
        checker: Checker | None = None,
        templates: TemplateLibrary | None = None,
        calibrations: CalibrationSet | None = None,
        min_choice_mass: float = MIN_CHOICE_MASS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.cache = cache
        self.checker = checker or Checker()
        self._fence = fence
        self.templates = templates or TemplateLibrary(None)
        self._calibrations = calibrations or CalibrationSet()
        self._min_choice_mass = min_choice_mass
        self.clock = clock
        self.metrics = JudgeMetrics(clock)
        self._prepared_configs: dict[tuple[EngineIdentity, JudgingConfig], PreparedConfig] = {}
        self._storing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError` with the way out when it cannot be loaded."""
        await self.executor.start(self.metrics)
        self.executor.write_buffer.on_pending = self._store_soon

    @property
    def identity(self) -> EngineIdentity:
        """The model that judges."""
        return self.executor.identity

    def prepared(self, config: JudgingConfig) -> PreparedConfig:
        """The templates, the calibration and the fingerprint this judge has for a way of asking.

        Raises:
            InvalidRequest: there is no such set of templates, it cannot be used or not under this protocol, or the
                judge is unfit for the protocol.
        """
        made = self._prepared_configs.get((self.identity, config))
        if made is None:
            self._refuse_unfit(config.protocol)
            found = self.templates.find(config.template)
            _refuse_other_protocols(config, found.declaration)
            single_templates = PromptTemplates(
                PromptForm(config.protocol, config.rationale), self._fence, found.templates
            )
            multi_templates = PromptTemplates(
                PromptForm(config.protocol, config.rationale, several=True), self._fence, found.templates
            )
            digests = (single_templates.digest, multi_templates.digest, *found.declaration.digest_parts)
            calibration = NEUTRAL
            if config.plain and not found.declaration.digest_parts:
                calibration = self._calibrations.find(
                    self.identity.weights_digest, config.protocol, single_templates.digest
                )
            fingerprint = judge_fingerprint(self.identity, digests, config, calibration, self._min_choice_mass)
            names_steps = self._calibrations.names_steps(self.identity.weights_digest)
            made = PreparedConfig(
                config,
                single_templates,
                multi_templates,
                fingerprint,
                calibration,
                names_steps,
                found.declaration,
                self._min_choice_mass,
            )
            if len(self._prepared_configs) >= _MAX_PREPARED_CONFIGS:
                self._prepared_configs.clear()
            self._prepared_configs[self.identity, config] = made
        return made

    def _refuse_unfit(self, protocol: str) -> None:
        unfit = self._calibrations.why_unfit(self.identity.weights_digest, protocol)
        if unfit is not None:
            message = (
                f"{self.identity.model} {unfit.reason}, so its {protocol} scores mean nothing; "
                f"use {unfit.instead}, or a stronger judge"
            )
            raise InvalidRequest(f"{_PROTOCOL}: {message}", errors=(FieldError(field=_PROTOCOL, message=message),))

    def prepared_for(self, options: JudgingOptions, protocol: JudgingProtocol) -> PreparedConfig:
        """What this judge has ready for a request's options; raises as `check_votes` and `setup` do."""
        config = JudgingConfig.of(options, protocol)
        self.check_votes(config, options.votes)
        return self.prepared(config)

    def check_votes(self, config: JudgingConfig, votes: int) -> None:
        """Refuse votes where there is nothing to sample.

        Raises:
            InvalidRequest: the engine reads the exact probability of a plain verdict, so all votes would be one.
        """
        sampled = not config.plain
        if votes > 1 and self.identity.capabilities.logprobs and not sampled:
            message = (
                f"{votes} votes on a {config.protocol} verdict whose exact probability this judge reads in one call would "
                "all be the same; leave votes out, or have something sampled: rationale, think_tokens"
                + ("" if config.protocol == "likert" else ", or several criteria per call")
            )
            raise InvalidRequest(f"{_VOTES}: {message}", errors=(FieldError(field=_VOTES, message=message),))

    async def outcomes(
        self,
        plans: Sequence[ResponsePlan],
        deadline: float,
        *,
        caller: Caller = ANONYMOUS_CALLER,
        into: JudgementResults | None = None,
        done: Callable[[int], None] | None = None,
    ) -> JudgementResults:
        """Find or ask every verdict of the plans by `deadline` (loop time), at the cost of `caller`.

        What is known so far stands in `into`; `done` is told the place of each plan that has all its outcomes. What
        was judged before a cancellation is kept. A call that another request has on its way is waited for instead.

        Raises:
            Overloaded: the queue has no room for the calls that must be asked.
            NotReady: no judge is there to be asked.
        """
        result = JudgementResults() if into is None else into
        digests = {digest for plan in plans for digest in plan.digests}
        with span("judging", responses=len(plans), verdicts=len(digests)) as at:
            with self.executor.write_buffer.read_through():
                await self._look_up(digests, deadline, result)
                work = find_unresolved(plans, result.by_digest)
            tracker = CompletionTracker(plans, result.by_digest, done)
            pending = self.executor.submit(work, caller, result, tracker, deadline)
            checking: list[asyncio.Task[None]] = []
            try:
                checking = self._begin_checks(work, caller, deadline, result, tracker)
                await pending.wait()
                await asyncio.gather(*checking)
            finally:
                for one in checking:
                    one.cancel()
                pending.cancel()
                self.metrics.request(caller, result, len(digests))
                _note(at, result)
                await self._store()
        return result

    async def close(self) -> None:
        """End the programs, the engine and the cache; what is being stored is stored first."""
        await self.checker.close()
        await self.executor.close()
        if self._storing:
            await asyncio.wait(self._storing)
        await self.cache.close()

    async def _look_up(self, digests: Collection[bytes], deadline: float, result: JudgementResults) -> None:
        """Take what the cache knows, if it says so before the deadline, and what others have just found."""
        known: Mapping[bytes, JudgeResult] = {}
        began = self.clock()
        with suppress(TimeoutError), span("cache get", verdicts=len(digests)) as at:
            async with asyncio.timeout_at(deadline):
                known = await self.cache.get_many(list(digests))
            set_span_attributes(at, hits=len(known))
        self.metrics.cache_seconds("get", self.clock() - began)
        fresh_ones = self.executor.write_buffer
        found = {digest: fresh_ones.get(digest) for digest in digests if digest not in known} if fresh_ones else {}
        fresh = {digest: finding for digest, finding in found.items() if finding is not None}
        result.by_digest.update(known)
        result.by_digest.update(fresh)
        result.cached, result.joined = frozenset(known), set(fresh)

    def _begin_checks(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        deadline: float,
        result: JudgementResults,
        tracker: CompletionTracker,
    ) -> list[asyncio.Task[None]]:
        """Have programs decide what is theirs: what takes no time one after the other, all else at the workers."""

        async def decide(digest: bytes, check: Check, owner: CheckOwner) -> None:
            result.by_digest[digest] = await self.checker.run(check, deadline, owner)
            result.checks += 1
            tracker.complete([digest])

        async def decide_at_once(some: Sequence[tuple[bytes, Check, CheckOwner]]) -> None:
            for place, (digest, check, owner) in enumerate(some):
                if place % _CHECKS_PER_TURN == 0:
                    await asyncio.sleep(0)
                await decide(digest, check, owner)

        def release_limits(_: object) -> None:
            self.checker.limits.release(caller.run, 1)

        checks = [
            (digest, check, CheckOwner(caller.run, str(plan.group), caller.priority, caller.share))
            for plan, _, of_plan in work
            for digest, check in of_plan
        ]
        small = [one for one in checks if is_inline_check(one[1])]
        large = [one for one in checks if not is_inline_check(one[1])]
        self.checker.limits.acquire(caller.run, len(large))
        begun = [asyncio.create_task(decide(*one)) for one in large]
        for task in begun:
            task.add_done_callback(release_limits)
        return [*begun, asyncio.create_task(decide_at_once(small))] if small else begun

    def _store_soon(self) -> None:
        """Have what is new stored within a while, though no request ends: a killed process loses no more than that."""
        asyncio.get_running_loop().call_later(STORE_INTERVAL_S, self._begin_to_store)

    async def _store(self) -> None:
        """Write what is new to the cache; an answer waits for that for a moment only."""
        storing = self._begin_to_store()
        if storing is not None:
            await asyncio.wait({storing}, timeout=STORE_TIMEOUT_S)

    def _begin_to_store(self) -> asyncio.Task[None] | None:
        new = self.executor.write_buffer.take_pending()
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
                await self.cache.put_many(new)
        finally:
            self.executor.write_buffer.mark_stored(new)
            self.metrics.cache_seconds("put", self.clock() - began)


def _refuse_other_protocols(config: JudgingConfig, declaration: Declaration) -> None:
    if declaration.protocols is not None and config.protocol not in declaration.protocols:
        raise template_error(
            f"the set of templates {config.template!r} is for {' or '.join(declaration.protocols)}, and this request asks "
            f"under {config.protocol}; choose another set, or a mode or protocol that it is for"
        )


def _note(at: Span, result: JudgementResults) -> None:
    """Say in a span what became of a request's verdicts, in figures."""
    if at.is_recording():
        kinds = {f"failed.{kind}": number for kind, number in failures_by_kind(result.by_digest.values()).items()}
        set_span_attributes(
            at, calls=result.calls, cached=len(result.cached), joined=len(result.joined), checks=result.checks, **kinds
        )
