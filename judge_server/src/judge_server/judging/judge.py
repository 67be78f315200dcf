"""A judge: an engine behind its admission queue, with the verdicts it has given before.

Plans go in, one outcome per call digest comes out. Each distinct digest is asked once, however many responses or
criteria share it, and not at all if its verdict is known. Failures are outcomes too, and are never kept.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from judge_server.judging.admission import Admission
from judge_server.judging.fingerprint import judge_fingerprint
from judge_server.judging.plan import JudgeSetup, ResponsePlan
from judge_server.judging.protocols import read_reply
from judge_server.ports import CallFailed, Engine, EngineIdentity, Finding, Reply, VerdictCache
from judge_server.prompts import PromptTemplates
from trainer_client.wire import PROTOCOLS_FOR, Protocol

ENGINE_RETRY_PAUSE_S = 0.2


@dataclass(slots=True)
class Outcomes:
    """What became of every digest asked for, which of them were known before, and what asking cost."""

    of: dict[bytes, Finding | CallFailed] = field(default_factory=dict)
    cached: frozenset[bytes] = frozenset()
    calls: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0


class Judge:
    """Start it once, then ask it for the outcomes of plans."""

    def __init__(self, engine: Engine, cache: VerdictCache, fence: Callable[[str], str], *, queue_calls: int) -> None:
        self.engine = engine
        self.cache = cache
        self._fence = fence
        self._queue_calls = queue_calls
        self._setups: dict[Protocol, JudgeSetup] = {}

    async def start(self) -> None:
        """Load the engine. Raises `EngineStartError` with the way out when it cannot be loaded."""
        self.identity: EngineIdentity = await self.engine.start()
        self._admission = Admission(
            self.engine, concurrent_batches=self.identity.concurrent_batches, capacity=self._queue_calls
        )
        for protocol in {p for protocols in PROTOCOLS_FOR.values() for p in protocols}:
            templates = PromptTemplates(protocol, self._fence)
            fingerprint = judge_fingerprint(self.identity, templates.digest, protocol)
            self._setups[protocol] = JudgeSetup(protocol, templates, fingerprint)

    def setup(self, protocol: Protocol) -> JudgeSetup:
        """The templates and the fingerprint this judge has for a protocol."""
        return self._setups[protocol]

    async def outcomes(self, plans: Sequence[ResponsePlan], deadline: float) -> Outcomes:
        """Find or ask the verdict of every call of the plans by `deadline` (loop time).

        Raises:
            Overloaded: the queue has no room for the calls that must be asked.
        """
        result = Outcomes()
        known = await self.cache.get_many(list({digest for plan in plans for digest in plan.digests}))
        result.of.update(known)
        result.cached = frozenset(known)
        unknown = _unknown(plans, result.of)
        with self._admission.reserve(sum(len(plan.digests) for plan in unknown)):
            await asyncio.gather(*(self._ask(plan, deadline, result) for plan in unknown))
        fresh = {d: o for d, o in result.of.items() if isinstance(o, Finding) and d not in known}
        if fresh:
            await self.cache.put_many(fresh)
        return result

    async def _ask(self, plan: ResponsePlan, deadline: float, result: Outcomes) -> None:
        await self._ask_once(plan, deadline, result)
        gone = [index for index, digest in enumerate(plan.digests) if _engine_failed(result.of[digest])]
        if gone and asyncio.get_running_loop().time() + ENGINE_RETRY_PAUSE_S < deadline:
            await asyncio.sleep(ENGINE_RETRY_PAUSE_S)
            await self._ask_once(_only(plan, gone), deadline, result)

    async def _ask_once(self, plan: ResponsePlan, deadline: float, result: Outcomes) -> None:
        judged = await self._admission.judge(plan.batch, deadline)
        result.calls += sum(not _expired(outcome) for outcome in judged.outcomes)
        result.seconds_queued += judged.seconds_queued
        result.seconds_judging += judged.seconds_judging
        for call, digest, outcome in zip(plan.batch.calls, plan.digests, judged.outcomes, strict=True):
            if isinstance(outcome, Reply):
                result.tokens_computed += outcome.tokens_computed
                result.tokens_reused += outcome.tokens_reused
                result.of[digest] = read_reply(call, outcome)
            else:
                result.of[digest] = outcome


def _engine_failed(outcome: Finding | CallFailed) -> bool:
    return isinstance(outcome, CallFailed) and outcome.kind == "engine"


def _expired(outcome: Reply | CallFailed) -> bool:
    return isinstance(outcome, CallFailed) and outcome.kind == "timeout"


def _unknown(plans: Sequence[ResponsePlan], known: dict[bytes, Finding | CallFailed]) -> list[ResponsePlan]:
    """The plans cut down to the calls nobody has an outcome for, each digest once; empty plans left out."""
    claimed = set(known)
    remaining = []
    for plan in plans:
        indices = []
        for index, digest in enumerate(plan.digests):
            if digest not in claimed:
                claimed.add(digest)
                indices.append(index)
        if len(indices) == len(plan.digests):
            remaining.append(plan)
        elif indices:
            remaining.append(_only(plan, indices))
    return remaining


def _only(plan: ResponsePlan, indices: Sequence[int]) -> ResponsePlan:
    calls = tuple([plan.batch.calls[i] for i in indices])
    digests = tuple([plan.digests[i] for i in indices])
    return replace(plan, batch=replace(plan.batch, calls=calls), digests=digests)


def failures_by_kind(outcomes: Iterable[Finding | CallFailed]) -> Counter[str]:
    """How many calls failed, by kind."""
    return Counter(o.kind for o in outcomes if isinstance(o, CallFailed))
