"""What a request still has to ask the judge, who is billed for it, and what the results are.

What a request leaves to be asked, for whom, and what has become of it.

Findings from the moment they are known until the cache shows them to everybody who reads it.

Without this, a request that read the cache just before another one's verdicts were written there would ask for them
again. Nothing here reads or writes a cache.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from judge_server.auth.identity import current_identity
from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.ports import CallFailure, JudgeResult
from judge_server.queueing import NUL, project_of_run
from judge_server.verifiers import Check
from trainer_client.wire import ComparisonRequest, Priority, RewardRequest, VerdictRequest
from trainer_client.wire.tenants import DEFAULT_PROJECT

CallOutcome = JudgeResult | CallFailure


class Caller(NamedTuple):
    """Whom calls are charged to, and how soon they are wanted. Requests that name no run share the run named ''.

    Attributes:
        run: the run's name; before it, for projects other than the default one, the project's and a NUL.
        priority: the class that the calls wait in.
        share: the weight of the project beside others.
    """

    run: str = ""
    priority: Priority = "online"
    share: float = 1.0

    @classmethod
    def of(cls, request: RewardRequest | VerdictRequest | ComparisonRequest) -> "Caller":
        """The caller of a request, for whom this task works."""
        identity, run = current_identity(), (request.run or "").replace(NUL, "\N{REPLACEMENT CHARACTER}")
        if identity.project_id != DEFAULT_PROJECT:
            run = f"{identity.project_id}{NUL}{run}"
        return cls(run, request.priority, identity.limits.weight)

    @property
    def project_id(self) -> str:
        """The project."""
        return project_of_run(self.run)


ANONYMOUS_CALLER = Caller()
"""A caller who gives no name."""


@dataclass(slots=True)
class JudgementResults:
    """What became of every digest asked for, which of them were known before, and what asking cost.

    `cached` came from the cache, `joined` from another request's calls; what asking cost is of this request's own.
    """

    by_digest: dict[bytes, CallOutcome] = field(default_factory=dict)
    cached: frozenset[bytes] = frozenset()
    joined: set[bytes] = field(default_factory=set)
    calls: int = 0
    checks: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    seconds_queued: float = 0.0
    seconds_judging: float = 0.0


class CompletionTracker:
    """Tells `done` of each plan, once, when every digest of its slots has an outcome."""

    def __init__(
        self,
        plans: Sequence[ResponsePlan],
        known: dict[bytes, CallOutcome],
        done: Callable[[int], None] | None,
    ) -> None:
        self._done = done
        self._plans_of: dict[bytes, list[int]] = {}
        self._missing: list[int] = []
        if done is None:
            return
        for index, plan in enumerate(plans):
            missing = {d for slot in plan.slots for d in slot.digests} - known.keys()
            self._missing.append(len(missing))
            for digest in missing:
                self._plans_of.setdefault(digest, []).append(index)
            if not missing:
                done(index)

    def complete(self, digests: Iterable[bytes]) -> None:
        """These digests have their final outcome."""
        if self._done is None:
            return
        for digest in digests:
            for index in self._plans_of.pop(digest, ()):
                self._missing[index] -= 1
                if not self._missing[index]:
                    self._done(index)


UnresolvedWork = tuple[ResponsePlan, list[PlannedCall], list[tuple[bytes, Check]]]


def find_unresolved(plans: Sequence[ResponsePlan], known: dict[bytes, CallOutcome]) -> list[UnresolvedWork]:
    """What of each plan nobody has an outcome for, each digest once; a call that has one verdict unknown is asked."""
    claimed = set(known)
    work: list[UnresolvedWork] = []
    for plan in plans:
        planned_calls = []
        for one in plan.planned_calls:
            if not claimed.issuperset(one.digests):
                claimed.update(one.digests)
                planned_calls.append(one)
        checks = [(digest, check) for digest, check in plan.checks if digest not in claimed]
        claimed.update(digest for digest, _ in checks)
        if planned_calls or checks:
            work.append((plan, planned_calls, checks))
    return work


def failures_by_kind(outcomes: Iterable[CallOutcome]) -> Counter[str]:
    """How many calls failed, by kind."""
    return Counter(o.kind for o in outcomes if isinstance(o, CallFailure))


class WriteBehindBuffer:
    """Keeps each finding until it is stored and every read of the cache that began before that has ended."""

    on_pending: Callable[[], None] | None = None
    """Told when there is something new to store after there was nothing."""

    def __init__(self) -> None:
        self._of: dict[bytes, JudgeResult] = {}
        self._new: dict[bytes, JudgeResult] = {}
        self._readers: set[int] = set()
        self._written: deque[tuple[int, Mapping[bytes, JudgeResult]]] = deque()
        self._time = 0

    def __len__(self) -> int:
        return len(self._of)

    def add(self, digest: bytes, result: JudgeResult) -> None:
        """A finding is known; the first one of a digest stands."""
        if digest not in self._of:
            if not self._new and self.on_pending is not None:
                self.on_pending()
            self._of[digest] = self._new[digest] = result

    def get(self, digest: bytes) -> JudgeResult | None:
        """The finding, if it is kept here."""
        return self._of.get(digest)

    @contextmanager
    def read_through(self) -> Iterator[None]:
        """The cache is read in this block, and what it did not show is looked for here before the block ends."""
        self._time += 1
        mine = self._time
        self._readers.add(mine)
        try:
            yield
        finally:
            self._readers.discard(mine)
            self._drop()

    def take_pending(self) -> Mapping[bytes, JudgeResult]:
        """What nobody has begun to store yet; whoever takes it stores it, and says so."""
        new, self._new = self._new, {}
        return new

    def mark_stored(self, results: Mapping[bytes, JudgeResult]) -> None:
        """These were stored, or could not be."""
        self._time += 1
        self._written.append((self._time, results))
        self._drop()

    def _drop(self) -> None:
        oldest = min(self._readers, default=self._time + 1)
        while self._written and self._written[0][0] < oldest:
            for digest in self._written.popleft()[1]:
                self._of.pop(digest, None)
