"""The desk of an engine in this process: calls are joined with those on their way, queue, and reach the engine."""

import time
from collections.abc import Callable, Sequence

from judge_server.engines.pool import EnginePool
from judge_server.errors import Overloaded
from judge_server.judging.admission import USUAL_RULES, Admission, QueueRules
from judge_server.judging.asking import Asker, Asking
from judge_server.judging.findings import FreshFindings
from judge_server.judging.joining import Flight, Flights, Waiter
from judge_server.judging.plan import Asked, ResponsePlan
from judge_server.judging.work import Caller, Outcomes, Waiting, Work
from judge_server.metrics import JudgeMetrics
from judge_server.pools import MemberView
from judge_server.ports import Batch, Engine, EngineIdentity


class EngineErrand:
    """What one request waits for, and the askings that it set off, and pays for as long as it waits."""

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.made: list[Asking] = []

    async def done(self) -> None:
        """Wait until every outcome is known, or the deadline."""
        await self.waiter.all_known()

    def leave(self) -> None:
        """Wait for nothing any more; the last one to leave a call drops it."""
        self.waiter.leave()
        for asking in self.made:
            asking.charge_to(self.waiter.result)


class EngineDesk:
    """One engine, and the one queue in front of it. `clock` gives seconds."""

    identity: EngineIdentity
    admission: Admission
    problem = ""

    def __init__(
        self, engine: Engine, *, rules: QueueRules = USUAL_RULES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.findings = FreshFindings()
        self.flights = Flights()
        self.most_calls = rules.calls
        self._rules = rules
        self._clock = clock
        self._asker: Asker | None = None

    @property
    def dead(self) -> str:
        """Why the engine will never answer again."""
        return self.engine.dead

    async def start(self, metrics: JudgeMetrics) -> None:
        """Load the engine."""
        self.identity = await self.engine.start()
        self.admission = Admission(
            self._capacity,
            self._rules,
            calls=self.engine.concurrent_calls,
            first_alone=not self.identity.capabilities.prefix_in_flight,
            clock=self._clock,
        )
        self._metrics = metrics
        self._asker = Asker(self.engine, self.admission, self.findings, metrics)
        metrics.watch(self.admission)

    def take(
        self, work: Sequence[Work], caller: Caller, result: Outcomes, waiting: Waiting, deadline: float
    ) -> EngineErrand:
        """Have the request wait for what is on its way already, and set off flights of its own for the rest."""
        errand = EngineErrand(Waiter(result, waiting, deadline))
        own: list[tuple[ResponsePlan, list[Asked]]] = []
        joins: list[tuple[Flight, list[bytes]]] = []
        for plan, asked, _ in work:
            mine = []
            for one in asked:
                missing = [digest for digest in one.digests if digest not in result.of]
                flight = self.flights.find(missing[0])
                if flight is None:
                    mine.append(one)
                else:
                    joins.append((flight, missing))
            if mine:
                own.append((plan, mine))
        calls = sum(len(asked) for _, asked in own)
        try:
            self.admission.room.enter(caller.run, calls)
        except Overloaded:
            self._metrics.shed(calls)
            raise
        for flight, missing in joins:
            flight.join(errand.waiter, missing)
            if caller.priority == "online" and flight.hurry is not None:
                flight.hurry()
        result.joined |= {digest for _, missing in joins for digest in missing}
        errand.made = [self._begin(plan, asked, caller, errand.waiter) for plan, asked in own]
        return errand

    async def count_tokens(self, batch: Batch) -> int:
        """As the engine counts."""
        return await self.engine.count_tokens(batch)

    def members(self) -> list[MemberView]:
        """The endpoints of a pool."""
        return self.engine.members() if isinstance(self.engine, EnginePool) else []

    async def ready(self) -> bool:
        """Whether the engine could answer now."""
        return await self.engine.ready()

    async def fit(self) -> bool:
        """Whether the engine could answer now: another replica has another engine."""
        return await self.engine.ready()

    async def close(self) -> None:
        """Release the model."""
        if self._asker is not None:
            self._asker.recovery.close()
        await self.engine.close()

    def _capacity(self) -> int:
        """How many batches the engine takes at a time now: a pool's members come and go."""
        return self.engine.capacity if isinstance(self.engine, EnginePool) else self.identity.concurrent_batches

    def _begin(self, plan: ResponsePlan, asked: Sequence[Asked], caller: Caller, waiter: Waiter) -> Asking:
        flight, of = self.flights.begin(asked), waiter.result.of
        digests = [digest for one in asked for digest in one.digests]
        flight.latest.update([(digest, of[digest]) for digest in digests if digest in of])
        flight.join(waiter, [digest for digest in digests if digest not in of])
        assert self._asker is not None, "the desk has not started"
        return self._asker.launch(flight, plan, caller, waiter.result)
