"""Judging a request: outcomes by digest and what they cost, who is billed, and which work is left.

`JudgingProgress` stands between those who find outcomes out, such as calls at the engine, and the judge's caller.

`WriteBehindBuffer` holds each verdict from the moment it is known until the cache shows it to every reader. Without
it, a request that read the cache just before another one's verdicts were written would ask for them again.

`VerdictRules` say how a request takes verdicts: whether it needs probabilities, and which of them are uncertain. They
are applied when a verdict is read, not when it is judged, so that one cached verdict serves requests with different
rules.
"""

import asyncio
import operator
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from judge_server.errors import Overloaded
from judge_server.judging.plan import PlannedCall, ResponsePlan, combine
from judge_server.judging.questions import PreparedConfig
from judge_server.ports import CallFailure, JudgeResult, current_identity
from judge_server.verifiers import Check
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire import ComparisonRequest, Priority, RewardRequest, UncertainBand, VerdictMethod, VerdictRequest

CallOutcome = JudgeResult | CallFailure

NUL = "\0"


def project_of_run(run: str) -> str:
    """The project in a caller's run key, which is `run` or `project`, NUL, `run`."""
    project_id, nul, _ = run.partition(NUL)
    return project_id if nul else DEFAULT_PROJECT


def label_of_run(run: str) -> str:
    """A caller's run key in readable form: `run`, or `project/run`."""
    return run.replace(NUL, "/")


class Caller(NamedTuple):
    """Who is billed for calls, and how urgent they are. Requests that name no run share the run named ''.

    Attributes:
        run: the run's name, prefixed with the project's and a NUL for all projects but the default one.
        priority: the queue class of the calls.
        share: the weight of the project relative to others.
        batch: the run's training step, whose calls are needed together; empty without a run or a step.
    """

    run: str = ""
    priority: Priority = "online"
    share: float = 1.0
    batch: str = ""

    @classmethod
    def of(cls, request: RewardRequest | VerdictRequest | ComparisonRequest) -> "Caller":
        """Return the caller of a request, with the identity of the current task."""
        identity, run = current_identity(), (request.run or "").replace(NUL, "\N{REPLACEMENT CHARACTER}")
        batch = str(request.step) if run and request.step is not None else ""
        if identity.project_id != DEFAULT_PROJECT:
            run = f"{identity.project_id}{NUL}{run}"
        return cls(run, request.priority, identity.limits.weight, batch)

    @property
    def project_id(self) -> str:
        """The id of the run's project."""
        return project_of_run(self.run)


ANONYMOUS_CALLER = Caller()
"""The caller of work without a request."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What judge calls cost; add several with `+`.

    Attributes:
        calls: the calls, retries included.
        tokens_computed, tokens_reused: prompt tokens that were computed, and those whose computation was reused.
        tokens_written: the tokens that the judge wrote.
        seconds_queued, seconds_judging: how long batches waited for the engine, and how long they took there.
    """

    calls: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0

    def __add__(self, other: "Costs") -> "Costs":
        if other is NO_COSTS:
            return self
        return Costs(*map(operator.add, _numbers(self), _numbers(other)))


_numbers = operator.attrgetter(*[one.name for one in fields(Costs)])

NO_COSTS = Costs()


@dataclass(frozen=True, slots=True)
class MemberCosts:
    """The distinct verdicts of one judge of a cascade or panel, how many of them failed, and what its calls cost."""

    verdicts: int = 0
    failed: int = 0
    costs: Costs = NO_COSTS

    def __add__(self, other: "MemberCosts") -> "MemberCosts":
        return MemberCosts(self.verdicts + other.verdicts, self.failed + other.failed, self.costs + other.costs)


NO_MEMBER_COSTS = MemberCosts()


@dataclass(slots=True)
class Outcomes:
    """Outcomes by digest, where they came from, and what they cost.

    `cached` digests came from the cache, `joined` ones from another request's calls; `combined` ones are verdicts made
    of other outcomes here, such as those of turns. The costs are those of this request's own calls. A cascade or panel
    adds the part of each member by name, the number of verdicts that at least two members gave (`compared`), and on how
    many of them they disagreed.
    """

    by_digest: dict[bytes, CallOutcome] = field(default_factory=dict)
    cached: set[bytes] = field(default_factory=set)
    joined: set[bytes] = field(default_factory=set)
    combined: set[bytes] = field(default_factory=set)
    checks: int = 0
    costs: Costs = NO_COSTS
    members: dict[str, MemberCosts] = field(default_factory=dict)
    compared: int = 0
    disagreed: int = 0

    def add(self, other: "Outcomes") -> None:
        """Add what else has become known."""
        self.by_digest.update(other.by_digest)
        self.cached.update(other.cached)
        self.joined.update(other.joined)
        self.combined.update(other.combined)
        self.checks += other.checks
        self.costs += other.costs
        self.compared += other.compared
        self.disagreed += other.disagreed
        for name, costs in other.members.items():
            self.members[name] = self.members.get(name, NO_MEMBER_COSTS) + costs


class Judged(NamedTuple):
    """What has become known since the last one: the indices of the plans that are complete now, and new outcomes.

    A complete plan has all of its outcomes, in this value or an earlier one. Others are final too, unless they failed.
    """

    complete: tuple[int, ...]
    outcomes: Outcomes


async def collect(judging: AsyncGenerator[Judged, None]) -> Outcomes:
    """Return all that is judged at once; raises as the judge does."""
    outcomes = Outcomes()
    async with aclosing(judging):
        async for judged in judging:
            outcomes.add(judged.outcomes)
    return outcomes


class JudgingProgress:
    """What is known of the verdicts of one request, between those who find them out and the one who waits for them.

    Attributes:
        known: the outcomes so far, by digest.
    """

    def __init__(self) -> None:
        self.known: dict[bytes, CallOutcome] = {}
        self._told, self._new = Outcomes(), Outcomes()
        self._plans: list[ResponsePlan] = []
        self._plans_of: dict[bytes, list[int]] = {}
        self._missing: list[int] = []
        self._complete: list[int] = []
        self._changed = asyncio.Event()

    def track(self, plan: ResponsePlan) -> None:
        """Report the next plan as complete once all that it awaits is known."""
        index, missing = len(self._plans), plan.awaited - self.known.keys()
        self._plans.append(plan)
        self._missing.append(len(missing))
        for digest in missing:
            self._plans_of.setdefault(digest, []).append(index)
        if not missing:
            self._mark_complete(index)

    def add(self, outcomes: Outcomes) -> None:
        """Add final outcomes and what is known of them."""
        self.known.update(outcomes.by_digest)
        self._new.add(outcomes)
        for digest in outcomes.by_digest:
            for index in self._plans_of.pop(digest, ()):
                self._missing[index] -= 1
                if not self._missing[index]:
                    self._mark_complete(index)

    def charge(self, costs: Costs) -> None:
        """Add what calls for this request have cost."""
        self._new.costs += costs

    def total(self) -> Outcomes:
        """Return everything so far."""
        total = Outcomes()
        total.add(self._told)
        total.add(self._new)
        return total

    async def follow(
        self, judge: Callable[[], Coroutine[Any, Any, None]], tick_s: float | None = None
    ) -> AsyncGenerator[Judged, None]:
        """Run `judge`, which adds to this progress, and yield what is new whenever plans are complete, and at the end.

        With `tick_s`, also yield when that many seconds have passed without a complete plan. Closing cancels `judge`.
        What it raises is raised once what was judged before is yielded, except for `Overloaded`.
        """
        judging = asyncio.create_task(judge())
        judging.add_done_callback(lambda _: self._changed.set())
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(tick_s):
                        await self._changed.wait()
                self._changed.clear()
                if judging.done():
                    break
                yield self._take()
            if not isinstance(judging.exception(), Overloaded):
                yield self._take()
            await judging
        finally:
            judging.cancel()
            await asyncio.gather(judging, return_exceptions=True)

    def _take(self) -> Judged:
        judged = Judged(tuple(self._complete), self._new)
        self._told.add(self._new)
        self._complete, self._new = [], Outcomes()
        return judged

    def _mark_complete(self, index: int) -> None:
        made = combine(self._plans[index], self.known)
        if made:
            self.known.update(made)
            self._new.add(Outcomes(made, combined=set(made)))
        self._complete.append(index)
        self._changed.set()


UnresolvedWork = tuple[ResponsePlan, list[PlannedCall], list[tuple[bytes, Check]]]


def unresolved_work(plan: ResponsePlan, claimed: set[bytes]) -> UnresolvedWork | None:
    """Return the calls and checks of a plan with a digest that is not claimed yet, and claim them; None without any.

    A call is made if any of its verdicts is not claimed. `claimed` begins with the digests whose outcome is known, and
    is shared by the plans of a request, so that each digest is asked for once.
    """
    planned_calls = []
    for one in plan.planned_calls:
        if not claimed.issuperset(one.digests):
            claimed.update(one.digests)
            planned_calls.append(one)
    checks = [(digest, check) for digest, check in plan.checks if digest not in claimed]
    claimed.update([digest for digest, _ in checks])
    return (plan, planned_calls, checks) if planned_calls or checks else None


def failures_by_kind(outcomes: Iterable[CallOutcome]) -> Counter[str]:
    """Count the failed outcomes by kind."""
    return Counter(o.kind for o in outcomes if isinstance(o, CallFailure))


class WriteBehindBuffer:
    """Keeps each verdict until it is stored and every cache read that began before that has ended."""

    on_pending: Callable[[], None] | None = None
    """Called when there is something to store after there was nothing."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, JudgeResult] = {}
        self._new: dict[bytes, JudgeResult] = {}
        self._readers: set[int] = set()
        self._written: deque[tuple[int, Mapping[bytes, JudgeResult]]] = deque()
        self._time = 0

    def __len__(self) -> int:
        return len(self._by_digest)

    def add(self, digest: bytes, result: JudgeResult) -> None:
        """Add a verdict; the first one under a digest stands."""
        if digest not in self._by_digest:
            if not self._new and self.on_pending is not None:
                self.on_pending()
            self._by_digest[digest] = self._new[digest] = result

    def get(self, digest: bytes) -> JudgeResult | None:
        """Return the verdict, if it is in the buffer."""
        return self._by_digest.get(digest)

    def has_none_of(self, digests: Iterable[bytes]) -> bool:
        """Whether none of the verdicts is in the buffer."""
        return self._by_digest.keys().isdisjoint(digests)

    @contextmanager
    def read_through(self) -> Iterator[None]:
        """Keep stored verdicts while the block reads the cache and then looks here for what the cache did not show."""
        self._time += 1
        reader = self._time
        self._readers.add(reader)
        try:
            yield
        finally:
            self._readers.discard(reader)
            self._drop()

    def take_pending(self, wanted: Collection[bytes] | None = None) -> Mapping[bytes, JudgeResult]:
        """Return the verdicts to store; the caller stores them and then calls `mark_stored`.

        With `wanted`, others may stay, so that the caller does not wait until those are stored too.
        """
        if wanted is None or len(wanted) >= len(self._new):
            new, self._new = self._new, {}
            return new
        return {digest: self._new.pop(digest) for digest in wanted if digest in self._new}

    def mark_stored(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Mark verdicts as stored, or as failed to store."""
        self._time += 1
        self._written.append((self._time, results))
        self._drop()

    def _drop(self) -> None:
        oldest = min(self._readers, default=self._time + 1)
        while self._written and self._written[0][0] < oldest:
            for digest in self._written.popleft()[1]:
                self._by_digest.pop(digest, None)


NO_PROBABILITY = "the judge gave no probability with this verdict, and the request needs one"


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """How a request takes verdicts of the judge; a program's verdict is certain and stays as it is.

    Attributes:
        soft: whether the probability enters the reward.
        band: a verdict is uncertain if low <= probability < high; None if no verdict is.
    """

    soft: bool = False
    band: UncertainBand | None = None

    @classmethod
    def of(cls, request: RewardRequest | VerdictRequest, prepared: PreparedConfig | None) -> "VerdictRules":
        """Return the rules of a request: its own band, or else that of the judge's calibration."""
        soft = isinstance(request, RewardRequest) and request.reward.use == "probability"
        band = request.uncertain_band
        if band is None and prepared is not None:
            band = prepared.calibration.uncertain_band
        return cls(soft, band)

    def apply(self, outcome: JudgeResult | CallFailure, method: VerdictMethod) -> JudgeResult | CallFailure:
        """Return the outcome; a failure if the judge gave no probability and the request needs one."""
        if isinstance(outcome, CallFailure) or method != "judge" or outcome.probability is not None:
            return outcome
        needed = self.soft or self.band is not None
        return CallFailure("engine", NO_PROBABILITY) if needed else outcome

    def is_uncertain(self, outcome: JudgeResult | CallFailure, method: VerdictMethod) -> bool:
        """Whether the judge gave a verdict whose probability lies in the band."""
        if self.band is None or method != "judge" or isinstance(outcome, CallFailure) or outcome.probability is None:
            return False
        low, high = self.band
        return low <= outcome.probability < high


DEFAULT_RULES = VerdictRules()

ALWAYS_UNCERTAIN = VerdictRules(band=(0.0, 2.0))
"""The rules under which a verdict that was recorded as uncertain is read back."""
