"""A judge: an engine behind its admission queue, programs beside it, and the verdicts given before.

Plans go in, one outcome per digest comes out. Each distinct digest is asked once, however many responses or criteria
share it, and not at all if its verdict is known. Failures are outcomes too, and are never kept.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from judge_server.checks import Check, Checker
from judge_server.errors import InvalidRequest
from judge_server.judging.admission import Admission
from judge_server.judging.fingerprint import judge_fingerprint
from judge_server.judging.plan import Asked, ResponsePlan
from judge_server.judging.ways import JudgeSetup, Way
from judge_server.judging.work import Outcomes, Waiting, unknown
from judge_server.ports import Batch, CallFailed, Engine, EngineIdentity, Finding, Reply, VerdictCache
from judge_server.prompts import Form, PromptTemplates
from judge_server.prompts.library import TemplateLibrary
from trainer_client.wire import FieldError, JudgingOptions, Protocol

ENGINE_RETRY_PAUSE_S = 0.2
_VOTES = "judging.votes"
_SETUPS_KEPT = 256
_TRANSIENT = frozenset({"engine", "overloaded"})


class Judge:
    """Start it once, then ask it for the outcomes of plans."""

    def __init__(
        self,
        engine: Engine,
        cache: VerdictCache,
        fence: Callable[[str], str],
        *,
        queue_calls: int,
        checker: Checker | None = None,
        templates: TemplateLibrary | None = None,
    ) -> None:
        self.engine = engine
        self.cache = cache
        self.checker = checker or Checker()
        self._fence = fence
        self._queue_calls = queue_calls
        self.templates = templates or TemplateLibrary(None)
        self._setups: dict[Way, JudgeSetup] = {}

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError` with the way out when it cannot be loaded."""
        self.identity: EngineIdentity = await self.engine.start()
        self._admission = Admission(
            self.engine, concurrent_batches=self.identity.concurrent_batches, capacity=self._queue_calls
        )

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
        into: Outcomes | None = None,
        done: Callable[[int], None] | None = None,
    ) -> Outcomes:
        """Find or ask every verdict of the plans by `deadline` (loop time).

        What is known so far stands in `into`; `done` is told the place of each plan that has all its outcomes. What
        was judged before a cancellation is kept.

        Raises:
            Overloaded: the queue has no room for the calls that must be asked.
        """
        result = Outcomes() if into is None else into
        known = await self.cache.get_many(list({digest for plan in plans for digest in plan.digests}))
        result.of.update(known)
        result.cached = frozenset(known)
        work = unknown(plans, result.of)
        waiting = Waiting(plans, result.of, done)
        with self._admission.reserve(sum(len(asked) for _, asked, _ in work)):
            try:
                async with asyncio.TaskGroup() as tasks:
                    for plan, asked, checks in work:
                        if asked:
                            tasks.create_task(self._ask(plan, asked, deadline, result, waiting))
                        for digest, check in checks:
                            tasks.create_task(self._check(digest, check, deadline, result, waiting))
            finally:
                judged = (digest for _, asked, _ in work for one in asked for digest in one.digests)
                found = {digest: result.of.get(digest) for digest in judged if digest not in known}
                if fresh := {digest: outcome for digest, outcome in found.items() if isinstance(outcome, Finding)}:
                    await asyncio.shield(self.cache.put_many(fresh))
        return result

    async def close(self) -> None:
        """End the programs, the engine and the cache."""
        await self.checker.close()
        await self.engine.close()
        await self.cache.close()

    async def _check(self, digest: bytes, check: Check, deadline: float, result: Outcomes, waiting: Waiting) -> None:
        result.of[digest] = await self.checker.run(check, deadline)
        result.checks += 1
        waiting.known([digest])

    async def _ask(
        self, plan: ResponsePlan, asked: Sequence[Asked], deadline: float, result: Outcomes, waiting: Waiting
    ) -> None:
        unread = await self._ask_once(plan.batch, asked, deadline, result)
        gone = [one for one in asked if any(_transient(result.of[d]) for d in one.digests)]
        if gone:
            pause = max(_pause_after(result.of[d]) for one in gone for d in one.digests)
            if asyncio.get_running_loop().time() + pause < deadline:
                await asyncio.sleep(pause)
                unread += await self._ask_once(plan.batch, gone, deadline, result)
        if unread:
            await self._ask_alone(plan, unread, deadline, result)
        waiting.known([d for one in asked for d in one.digests])

    async def _ask_once(
        self, batch: Batch, asked: Sequence[Asked], deadline: float, result: Outcomes
    ) -> list[tuple[Asked, int]]:
        """Ask, and return what the judge wrote no readable verdict on: calls, and the place in each."""
        calls = tuple([one.question.call for one in asked])
        unread = []
        for one, outcome in zip(asked, await self._judged(replace(batch, calls=calls), deadline, result), strict=True):
            if isinstance(outcome, Reply):
                verdicts = one.question.read(outcome)
                if outcome.text is not None:
                    unread += [(one, place) for place, verdict in enumerate(verdicts) if _unreadable(verdict)]
            else:
                verdicts = [outcome] * len(one.digests)
            for digest, verdict in zip(one.digests, verdicts, strict=True):
                if not isinstance(result.of.get(digest), Finding):  # the first verdict stands
                    result.of[digest] = verdict
        return [(one, place) for one, place in unread if not isinstance(result.of[one.digests[place]], Finding)]

    async def _ask_alone(
        self, plan: ResponsePlan, unread: Sequence[tuple[Asked, int]], deadline: float, result: Outcomes
    ) -> None:
        """Ask once more, each criterion by itself, for verdicts that could not be read from what was written."""
        questions = [one.question.alone(place) if one.question.alone else one.question for one, place in unread]
        calls = tuple([question.call for question in questions])
        outcomes = await self._judged(Batch(plan.system_alone, plan.batch.shared, calls), deadline, result)
        for (one, place), question, outcome in zip(unread, questions, outcomes, strict=True):
            if isinstance(outcome, Reply):
                (result.of[one.digests[place]],) = question.read(outcome)

    async def _judged(self, batch: Batch, deadline: float, result: Outcomes) -> list[Reply | CallFailed]:
        judged = await self._admission.judge(batch, deadline)
        result.calls += sum(not _expired(outcome) for outcome in judged.outcomes)
        result.seconds_queued += judged.seconds_queued
        result.seconds_judging += judged.seconds_judging
        for outcome in judged.outcomes:
            if isinstance(outcome, Reply):
                result.tokens_computed += outcome.tokens_computed
                result.tokens_reused += outcome.tokens_reused
                result.tokens_written += outcome.tokens_written
        return judged.outcomes


def _transient(outcome: Finding | CallFailed) -> bool:
    return isinstance(outcome, CallFailed) and outcome.kind in _TRANSIENT


def _pause_after(outcome: Finding | CallFailed) -> float:
    """Seconds to leave the engine alone after an outcome."""
    asked = outcome.retry_after_s if isinstance(outcome, CallFailed) else None
    return max(ENGINE_RETRY_PAUSE_S, asked or 0.0)


def _unreadable(verdict: Finding | CallFailed) -> bool:
    return isinstance(verdict, CallFailed) and verdict.kind == "parse"


def _expired(outcome: Reply | CallFailed) -> bool:
    return isinstance(outcome, CallFailed) and outcome.kind == "timeout"
