"""How the calls of a flight are asked: through admission, again where the engine failed, alone where it was unread.

One `Asking` is one response's calls on their way. Every verdict that can be read is kept at once, so that nothing which
was judged is lost when somebody leaves.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from judge_server.judging.admission import Admission, Ticket
from judge_server.judging.findings import FreshFindings
from judge_server.judging.joining import Flight
from judge_server.judging.plan import Asked, ResponsePlan
from judge_server.judging.questions import Question
from judge_server.judging.recovery import Recovery
from judge_server.judging.work import Caller, Outcome, Outcomes
from judge_server.metrics import JudgeMetrics
from judge_server.ports import Batch, CallFailed, Engine, Finding, Reply
from judge_server.telemetry.engine import answers

log = logging.getLogger("adjudge")

ENGINE_RETRY_PAUSE_S = 0.2
_SILENT = CallFailed("engine", "the engine ended a batch without an answer to this call")


class Round(NamedTuple):
    """A batch, and what is told each call's place and outcome."""

    batch: Batch
    take: Callable[[int, Reply | CallFailed], None]


class Asker:
    """What every flight needs to be asked."""

    def __init__(self, engine: Engine, admission: Admission, findings: FreshFindings, metrics: JudgeMetrics) -> None:
        self.engine = engine
        self.admission = admission
        self.findings = findings
        self.metrics = metrics
        self.recovery = Recovery(engine)

    def launch(self, flight: Flight, plan: ResponsePlan, caller: Caller, account: Outcomes) -> "Asking":
        """Begin to ask a flight's calls, which have room in the queue; what it costs goes to `account`."""
        return Asking(self, flight, plan, caller, account)


class Asking:
    """The calls of one flight, being asked."""

    def __init__(self, asker: Asker, flight: Flight, plan: ResponsePlan, caller: Caller, account: Outcomes) -> None:
        self._asker = asker
        self._flight = flight
        self._plan = plan
        self._caller = caller
        self._account = account
        self._ticket: Ticket | None = None
        self._charged = False
        self._begun = False
        self._round: Round | None = None
        self._arrived: list[tuple[int, Reply | CallFailed]] = []
        self._whole: list[Asked] = []
        self._room = len(flight.unsettled)
        flight.on_abandoned = self._abandoned
        flight.on_left = self._left
        if caller.priority == "bulk":
            flight.hurry = self._hurry
        flight.task = asyncio.create_task(self._run())

    def charge_to(self, account: Outcomes) -> None:
        """Add the seconds that the batch under way has taken, if this is the account that pays for it."""
        if account is self._account:
            self._charge()

    def _charge(self) -> None:
        """Add the seconds that the batch under way has taken to the account, once."""
        if self._ticket is None or self._charged:
            return
        self._charged = True
        queued, judging = self._ticket.seconds(self._asker.admission.clock())
        self._account.seconds_queued += queued
        self._account.seconds_judging += judging
        self._asker.metrics.batch(self._caller, queued, judging)

    def _hurry(self) -> None:
        """Somebody online waits for this now."""
        self._caller = self._caller._replace(priority="online")
        if self._ticket is not None:
            self._asker.admission.hurry(self._ticket)

    async def _run(self) -> None:
        flight = self._flight
        try:
            unread = [*await self._ask(flight.unsettled), *await self._ask_again()]
            if unread:
                await self._ask_alone(unread)
            flight.settle(flight.unsettled)
        except Exception as error:
            log.exception("a response's calls broke off")
            flight.fail(error)
        finally:
            self._leave_room()
            # Else cycles of references wait for the garbage collector.
            flight.on_abandoned = flight.on_left = flight.hurry = None
            self._round = None

    def _left(self, account: Outcomes) -> None:
        """Somebody waits no more. If it was who paid, who still waits pays from now on."""
        if account is self._account:
            self._charge()
            self._account = next(iter(self._flight.waiters)).result

    def _abandoned(self) -> None:
        self._read()
        if self._ticket is not None:
            self._asker.admission.withdraw(self._ticket)
        self._charge()
        self._leave_room()

    def _leave_room(self) -> None:
        self._asker.admission.room.leave(self._caller.run, self._room)
        self._room = 0

    async def _ask(self, asked: Sequence[Asked]) -> list[tuple[Asked, int]]:
        """Ask, and return what the judge wrote no readable verdict on: calls, and the place in each."""
        unread: list[tuple[Asked, int]] = []

        def round_of_those_wanted() -> Round:
            wanted = self._flight.still_wanted(asked)

            def take(place: int, outcome: Reply | CallFailed) -> None:
                one = wanted[place]
                if isinstance(outcome, CallFailed):
                    for digest in one.digests:
                        self._keep(digest, outcome)
                    return
                verdicts = one.question.read(outcome)
                missing = [n for n, digest in enumerate(one.digests) if not self._keep(digest, verdicts[n])]
                if not missing:
                    self._whole.append(one)
                elif outcome.text is not None:
                    unread.extend((one, n) for n in missing if _unreadable(verdicts[n]))

            return Round(replace(self._plan.batch, calls=tuple([one.question.call for one in wanted])), take)

        await self._judge(round_of_those_wanted)
        return unread

    async def _ask_again(self) -> list[tuple[Asked, int]]:
        """Ask once more where the engine failed, and as often as it goes away and comes back; what was unread then."""
        flight, unread = self._flight, []
        was_away: bool | None = True
        while was_away:
            gone = [one for one in flight.unsettled if any(_transient(flight.latest[d]) for d in one.digests)]
            if not gone:
                break
            pause = max(_pause_after(flight.latest[d]) for one in gone for d in one.digests)
            was_away = await self._asker.recovery.wait(pause, flight.deadline)
            if was_away is not None:
                unread += await self._ask(gone)
        return unread

    async def _ask_alone(self, unread: Sequence[tuple[Asked, int]]) -> None:
        """Ask once more, each criterion by itself, for verdicts that could not be read from what was written."""
        calls_of = list(dict.fromkeys(one for one, _ in unread))

        def round_of_those_wanted() -> Round:
            wanted = self._flight.still_wanted(calls_of)
            again = [(one.digests[n], _alone(one.question, n)) for one, n in unread if one in wanted]

            def take(place: int, outcome: Reply | CallFailed) -> None:
                digest, question = again[place]
                if isinstance(outcome, Reply):
                    self._keep(digest, *question.read(outcome))

            calls = tuple([question.call for _, question in again])
            return Round(Batch(self._plan.system_alone, self._plan.batch.shared, calls), take)

        await self._judge(round_of_those_wanted)

    async def _judge(self, make: Callable[[], Round]) -> None:
        """Have a round answered, made anew when its turn has come: nothing that nobody wants reaches the engine."""
        admission, loop = self._asker.admission, asyncio.get_running_loop()
        self._round = make()
        if not self._round.batch.calls:
            return
        self._ticket = Ticket(self._caller, self._round.batch, admission.clock(), resumed=self._begun)
        self._charged = False
        try:
            async with admission.turn(self._ticket):
                while loop.time() >= self._flight.deadline:  # noqa: ASYNC110 - what is expired is cancelled any moment
                    await asyncio.sleep(0)
                if self._flight.thinned:
                    self._round = make()
                self._begun = True
                await self._answers(self._round.batch, self._ticket)
        finally:
            self._read()
            self._charge()
            self._ticket = None

    async def _answers(self, batch: Batch, ticket: Ticket) -> None:
        """Take what the engine answers, and a failure for each call it leaves out: its faults cost no other call."""
        left, why = set(range(len(batch.calls))), _SILENT
        try:
            admission = self._asker.admission
            async for place, outcome in answers(self._asker.engine, batch):
                if not self._arrived:
                    asyncio.get_running_loop().call_soon(self._read)
                self._arrived.append((place, outcome))
                left.discard(place)
                if admission.counts_calls:
                    admission.answered(ticket, len(left))
        except Exception as error:
            log.exception("the engine broke off a batch of %d calls", len(batch.calls))
            why = CallFailed("engine", f"the engine broke off: {type(error).__name__}; its log says more")
        self._arrived += [(place, why) for place in sorted(left)]

    def _read(self) -> None:
        """Read all that has arrived in this turn of the event loop, and settle what has all its verdicts."""
        arrived, self._arrived = self._arrived, []
        for place, outcome in arrived:
            self._count(outcome)
            if self._round is not None:
                self._round.take(place, outcome)
        whole, self._whole = self._whole, []
        if whole:
            self._flight.settle(whole)

    def _count(self, outcome: Reply | CallFailed) -> None:
        account = self._account
        account.calls += 1
        if isinstance(outcome, Reply):
            account.tokens_computed += outcome.tokens_computed
            account.tokens_reused += outcome.tokens_reused
            account.tokens_written += outcome.tokens_written
            if outcome.miscounted:
                self._asker.metrics.miscounted()
        elif outcome.kind == "overloaded":
            self._asker.admission.concurrency.pushed_back()

    def _keep(self, digest: bytes, verdict: Outcome) -> bool:
        """Remember a verdict, unless there is a finding, which stands; whether there is one now."""
        latest = self._flight.latest
        if isinstance(latest.get(digest), Finding):
            return True
        latest[digest] = verdict
        if isinstance(verdict, Finding):
            self._asker.findings.add(digest, verdict)
            return True
        return False


def _alone(question: Question, place: int) -> Question:
    return question.alone(place) if question.alone else question


def _transient(outcome: Outcome) -> bool:
    return isinstance(outcome, CallFailed) and outcome.kind in ("engine", "overloaded")


def _pause_after(outcome: Outcome) -> float:
    """Seconds to leave the engine alone after an outcome."""
    asked = outcome.retry_after_s if isinstance(outcome, CallFailed) else None
    return max(ENGINE_RETRY_PAUSE_S, asked or 0.0)


def _unreadable(verdict: Outcome) -> bool:
    return isinstance(verdict, CallFailed) and verdict.kind == "parse"
