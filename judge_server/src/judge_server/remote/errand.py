"""What one request has at judges in other processes: which judge gets which response, and who is asked instead."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import aclosing

from opentelemetry.trace import SpanKind

from judge_server.errors import NotReady, Overloaded
from judge_server.judging.joining import LATE
from judge_server.judging.plan import Asked, ResponsePlan
from judge_server.judging.work import Caller, Outcome, Outcomes, Waiting, Work
from judge_server.metrics import JudgeMetrics
from judge_server.pools import Member, MemberGone, Pool, key_of
from judge_server.ports import CallFailed, EngineIdentity, Finding
from judge_server.remote.link import JudgeAway, JudgeGone, JudgeLink, identity_digest
from judge_server.remote.messages import Asking, Line, Parcel
from judge_server.telemetry.spans import span

GRACE_S = 0.1
"""How long after the deadline an api waits for a judge to say what it has."""

PATIENCE_S = 5.0
"""How long calls are tried again and again when no judge answers any: a judge may be starting anew."""

_POLL_S = 0.1
_MOST_PLANS, _MOST_CHARACTERS = 64, 4_000_000
"""What one parcel holds at most: so no judge stands still while it reads one."""


class RemoteErrand:
    """One request's calls, at judges in other processes.

    A response's calls go to one judge, the one that its digest belongs to. Where that one goes away, what it has not
    answered is asked of the next, and what it has answered stands.
    """

    def __init__(
        self,
        pool: Pool[JudgeLink],
        identity: EngineIdentity,
        metrics: JudgeMetrics,
        work: Sequence[Work],
        caller: Caller,
        result: Outcomes,
        waiting: Waiting,
        deadline: float,
    ) -> None:
        self._pool = pool
        self._identity = identity_digest(identity)
        self._metrics = metrics
        self._parcel: Parcel = [(plan, asked) for plan, asked, _ in work if asked]
        self._caller = caller
        self._result = result
        self._waiting = waiting
        self._deadline = deadline
        self._failure = LATE
        self._full: Overloaded | None = None
        self._away: NotReady | None = None
        self._judged = False

    async def done(self) -> None:
        """Wait until every outcome is known, or the deadline.

        Raises:
            Overloaded: every judge's queue was full, and nothing was judged.
            NotReady: no judge could be given anything, however often it was tried.
        """
        late = False
        try:
            async with asyncio.timeout_at(self._deadline + GRACE_S):
                await self._have_answered(self._parcel)
        except TimeoutError:
            late = True
        left = self._missing(self._parcel)
        if left and not self._judged and not late:
            if self._full is not None:
                self._metrics.shed(sum(len(asked) for _, asked in left))
                raise self._full
            if self._away is not None:
                raise self._away
        failure = LATE if late else self._failure
        self._settle({digest: failure for _, asked in left for one in asked for digest in one.digests})

    def leave(self) -> None:
        """Nothing is left behind: whoever stops waiting in `done` has hung up on every judge."""

    async def _have_answered(
        self, parcel: Parcel, tried: Collection[str] = (), failing_since: float | None = None
    ) -> None:
        """Ask all of a parcel, each response of its judge, or of one that was not `tried` in vain just now."""
        without = await self._somebody_else(tried, failing_since)
        if without is None:
            return
        shares: defaultdict[str, Parcel] = defaultdict(list)
        members: dict[str, Member[JudgeLink]] = {}
        for plan, asked in parcel:
            member = self._pool.choose(key_of(plan.batch.shared), len(asked), without=without)
            if member is not None:
                member.load += len(asked)
                members[member.name] = member
                shares[member.name].append((plan, asked))
        async with asyncio.TaskGroup() as tasks:
            for name, share in shares.items():
                for part in _parts(share):
                    tasks.create_task(self._ask(members[name], part, without, failing_since))

    async def _somebody_else(self, tried: Collection[str], failing_since: float | None) -> Collection[str] | None:
        """Wait until there is a judge that was not tried, or may be again; returns those tried, None to give up."""
        now = asyncio.get_running_loop().time
        until = (now() if failing_since is None else failing_since) + PATIENCE_S
        while not any(member.available and member.name not in tried for member in self._pool.members):
            if self._full is not None:
                return None
            if now() >= until:
                if self._failure is LATE:
                    names = ", ".join(member.name for member in self._pool.members)
                    why = f"no judge is there ({names}); the api's log says why"
                    self._failure, self._away = CallFailed("engine", why), NotReady(why, retry_after_s=2)
                return None
            await asyncio.sleep(_POLL_S)
            tried = ()
        return tried

    async def _ask(
        self, member: Member[JudgeLink], part: Parcel, tried: Collection[str], failing_since: float | None
    ) -> None:
        now = asyncio.get_running_loop().time
        asking = Asking.of(part, self._caller, self._identity, max(0.0, self._deadline - now()))
        try:
            with span("errand", SpanKind.CLIENT, judge=member.name, responses=len(part)):
                async with member.present(), aclosing(member.of.ask(asking)) as lines:
                    async for line in lines:
                        member.answers += 1
                        self._take(line)
                        failing_since = None
            member.succeeded()
        except MemberGone:
            self._failure = CallFailed("engine", f"the judge at {member.name} went away")
        except JudgeGone as error:
            member.failed(str(error))
            if not isinstance(error, JudgeAway):
                self._failure = CallFailed("engine", str(error))
        except Overloaded as error:
            member.succeeded()
            self._full = error
            self._failure = CallFailed("overloaded", error.detail, error.retry_after_s)
        finally:
            member.load -= sum(len(asked) for _, asked in part)
        left = self._missing(part)
        if left:
            await self._have_answered(left, {*tried, member.name}, now() if failing_since is None else failing_since)

    def _take(self, line: Line) -> None:
        result = self._result
        line.account.charge_to(result)
        result.cached |= {bytes.fromhex(digest) for digest in line.cached}
        result.joined |= {bytes.fromhex(digest) for digest in line.joined}
        self._judged = True
        self._settle({d: outcome for d, outcome in line.read().items() if not isinstance(result.of.get(d), Finding)})

    def _settle(self, outcomes: dict[bytes, Outcome]) -> None:
        self._result.of.update(outcomes)
        self._waiting.known(outcomes)

    def _missing(self, parcel: Parcel) -> Parcel:
        """What of a parcel has no outcome yet."""
        known = self._result.of
        open_calls = [
            (plan, [one for one in asked if any(digest not in known for digest in one.digests)])
            for plan, asked in parcel
        ]
        return [(plan, asked) for plan, asked in open_calls if asked]


def _parts(share: Parcel) -> Iterator[list[tuple[ResponsePlan, list[Asked]]]]:
    part: Parcel = []
    characters = 0
    for plan, asked in share:
        if part and (len(part) >= _MOST_PLANS or characters + len(plan.batch.shared) > _MOST_CHARACTERS):
            yield part
            part, characters = [], 0
        part.append((plan, asked))
        characters += len(plan.batch.shared)
    if part:
        yield part
