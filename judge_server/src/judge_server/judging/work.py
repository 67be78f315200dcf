"""What a request leaves to be asked, for whom, and what has become of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from judge_server.access.identity import current_identity
from judge_server.checks import Check
from judge_server.judging.fair_queue import NUL, project_of_run
from judge_server.judging.plan import PlannedCall, ResponsePlan
from judge_server.ports import CallFailure, JudgeResult
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
    joined: frozenset[bytes] = frozenset()
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
