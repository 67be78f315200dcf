"""What the routes need of the running process, and how they get at it."""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from fastapi import Request

from judge_server.auth import Authenticator
from judge_server.errors import InvalidRequest, NotReady
from judge_server.ledger import Recorder
from judge_server.observability.metrics import OperationMetrics
from judge_server.ports import AuditTrail, IdempotencyKeys, LedgerReader, Operations, RubricSource
from judge_server.scheduling.executor import JudgeExecutor
from judge_server.scoring.judge import Judge
from judge_server.scoring.planner import RecordSink
from judge_server.scoring.scorer import Scorer
from judge_server.verifiers import Checker
from trainer_client.wire import DEFAULT_JUDGE, FieldError


@dataclass(slots=True)
class Service:
    """The parts behind the routes.

    `judges` has those whose engine is loaded, by name, and `names` all there will be; `desks` are those of all of them,
    and may know why one is not there yet. Without a `recorder` nothing is kept, without a `gate` all is open, and
    without `idempotency_keys` a request that is sent again is done again. The `checker` compiles the patterns of requests.
    """

    rubrics: RubricSource
    judges: dict[str, Judge] = field(default_factory=dict)
    names: tuple[str, ...] = (DEFAULT_JUDGE,)
    problem: str = "the judge model is still loading"
    executors: tuple[JudgeExecutor, ...] = ()
    recorder: Recorder | None = None
    ledger: LedgerReader | None = None
    authenticator: Authenticator | None = None
    audit: AuditTrail | None = None
    idempotency_keys: IdempotencyKeys | None = None
    operations: Operations | None = None
    checker: Checker = field(default_factory=Checker)
    operation_metrics: OperationMetrics = field(default_factory=OperationMetrics)

    @property
    def judge(self) -> Judge | None:
        """The judge of whoever names none, once it has started."""
        return self.judges.get(DEFAULT_JUDGE)

    @property
    def not_ready_reason(self) -> str:
        """Why it cannot judge, where it cannot; empty where nobody knows."""
        reason = next((executor.unavailable_reason for executor in self.executors if executor.unavailable_reason), "")
        return reason or (self.problem if self.judge is None else "")

    def ready_judge(self, name: str = DEFAULT_JUDGE) -> Judge:
        """The judge of that name.

        Raises:
            InvalidRequest: there is none of that name.
            NotReady: it has not started.
        """
        judge = self.judges.get(name)
        if judge is not None:
            return judge
        if name not in self.names:
            message = f"there is no judge {name!r}; there are {', '.join(self.names)}"
            raise InvalidRequest(f"judge: {message}", errors=(FieldError(field="judge", message=message),))
        raise NotReady(
            f"Cannot judge yet: {self.not_ready_reason or self.problem}. GET /readyz says when.", retry_after_s=2
        )

    def scorer(self, judge: str, records: RecordSink | None) -> Scorer:
        """The scorer with the judge of that name, which has `records` take over; raises as `ready_judge` does."""
        return Scorer(self.ready_judge(judge), self.rubrics, records)

    def readable_ledger(self) -> LedgerReader:
        """The ledger; raises `NotReady` where this process has none."""
        if self.ledger is None:
            raise NotReady("This process has no ledger. Ask one that was started with a database.")
        return self.ledger

    async def checks(self, only: Collection[str] = ()) -> dict[str, bool]:
        """What readiness depends on, each part by itself; of those alone that are named, where any are.

        `replica` is checked where it is named: whether another replica would do better.
        """
        parts: dict[str, Callable[[], Awaitable[bool]]] = {"store": self.rubrics.ready}
        for name in self.names:
            parts["judge" if name == DEFAULT_JUDGE else f"judge {name}"] = partial(self._judge_is_ready, name)
        if self.judges:
            parts["cache"] = self._caches_are_ready
        if self.recorder is not None:
            parts["ledger"] = self._ledger_is_safe
        asked = {name: (parts | {"replica": self._replica_should_serve}).get(name) for name in only or parts}
        return {name: part is not None and await part() for name, part in asked.items()}

    async def _judge_is_ready(self, name: str) -> bool:
        judge = self.judges.get(name)
        return judge is not None and await judge.executor.ready()

    async def _replica_should_serve(self) -> bool:
        return self.judge is not None and await self.judge.executor.should_receive_traffic()

    async def _ledger_is_safe(self) -> bool:
        return self.recorder is None or self.recorder.failure_reason is None

    async def _caches_are_ready(self) -> bool:
        return all([await judge.cache.ready() for judge in self.judges.values()])


def service_of(request: Request) -> Service:
    """The service this application was created with."""
    service: Service = request.app.state.service
    return service
