"""The parts of the running process that the routes use."""

import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastapi import Request

from judge_server.auth import Authenticator
from judge_server.errors import NotReady, invalid_field
from judge_server.ledger import Recorder
from judge_server.ledger.monitoring.gold import GoldSampler
from judge_server.ledger.monitoring.metrics import MonitorMetrics
from judge_server.ledger.prediction import PredictionMetrics
from judge_server.observability.metrics import OperationMetrics
from judge_server.operations.service import Operations
from judge_server.ports import (
    AuditTrail,
    IdempotencyKeys,
    KeyAdministration,
    LabelStore,
    LedgerReader,
    ProjectAdministration,
    RubricSource,
    RubricTexts,
)
from judge_server.scheduling.checker import Checker
from judge_server.scheduling.executor import JudgeExecutor
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.drift import DriftLog
from judge_server.scoring.planner import RecordSink
from judge_server.scoring.scorer import Scorer
from trainer_client.wire import DEFAULT_JUDGE, RewardRequest
from trainer_client.wire.monitors import MonitorThresholds

if TYPE_CHECKING:  # numpy, which takes long to import
    from judge_server.evaluation.corrected_rates import ErrorSource

T = TypeVar("T")


@dataclass(slots=True)
class Service:
    """The parts behind the routes.

    Attributes:
        rubrics: the store of named rubrics.
        rubric_texts: reads, writes and lints rubrics as texts.
        judges: the judges whose engine is loaded, by name.
        names: the names of all judges, loaded or not.
        problem: why no judge is loaded, if no executor gives a reason.
        executors: the executors of all judges, which may say why a judge is not available.
        recorder: writes judged requests to the ledger; without one, nothing is recorded.
        ledger: reads the ledger.
        labels: the labels that people give to recorded verdicts.
        authenticator: checks API keys; without one, all routes are open.
        audit: the audit log.
        keys: lists, adds and revokes API keys.
        projects: lists and creates projects, and sets their limits.
        idempotency_keys: the store of idempotency keys; without one, a repeated request is processed again.
        operations: the long-running operations.
        checker: compiles the regular expressions of requests.
        operation_metrics: the metrics of operations.
        gold: has samples judged by gold judges.
        monitor_thresholds: the thresholds of monitors.
        monitor_metrics: the findings of monitors for Prometheus.
        prediction_metrics: the calls that runs are expected to make, for Prometheus.
        tracker_url: the address of a run in a tracker such as W&B, with {run} for its name.
        judge_measurements: reads how often judges err, as measured with their stored calibrations.
        drift: what control sets said about judges whose weights change.
        session_secret: signs the sessions of the console; all processes behind one address need the same.
    """

    rubrics: RubricSource
    rubric_texts: RubricTexts | None = None
    judges: dict[str, AnyJudge] = field(default_factory=dict)
    names: tuple[str, ...] = (DEFAULT_JUDGE,)
    problem: str = "the judge model is still loading"
    executors: tuple[JudgeExecutor, ...] = ()
    recorder: Recorder | None = None
    ledger: LedgerReader | None = None
    labels: LabelStore | None = None
    authenticator: Authenticator | None = None
    audit: AuditTrail | None = None
    keys: KeyAdministration | None = None
    projects: ProjectAdministration | None = None
    idempotency_keys: IdempotencyKeys | None = None
    operations: Operations | None = None
    checker: Checker = field(default_factory=Checker)
    operation_metrics: OperationMetrics = field(default_factory=OperationMetrics)
    gold: GoldSampler | None = None
    monitor_thresholds: MonitorThresholds = field(default_factory=MonitorThresholds)
    monitor_metrics: MonitorMetrics | None = None
    prediction_metrics: PredictionMetrics | None = None
    tracker_url: str | None = None
    judge_measurements: "Callable[[], Awaitable[Sequence[ErrorSource]]] | None" = None
    drift: DriftLog = field(default_factory=DriftLog)
    session_secret: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)

    @property
    def judge(self) -> AnyJudge | None:
        """The default judge, once it has started."""
        return self.judges.get(DEFAULT_JUDGE)

    @property
    def not_ready_reason(self) -> str:
        """Why the service cannot judge; empty if it can or the reason is unknown."""
        reason = next((executor.unavailable_reason for executor in self.executors if executor.unavailable_reason), "")
        return reason or (self.problem if self.judge is None else "")

    def ready_judge(self, name: str = DEFAULT_JUDGE, field: str = "judge") -> AnyJudge:
        """The judge with that name; `field` is the request's field that names it.

        Raises:
            InvalidRequest: no judge has that name.
            NotReady: the judge has not started.
        """
        judge = self.judges.get(name)
        if judge is not None:
            return judge
        if name not in self.names:
            message = f"there is no judge {name!r}; use one of {', '.join(self.names)}"
            raise invalid_field(field, message)
        raise NotReady(
            f"Cannot judge yet: {self.not_ready_reason or self.problem}. GET /readyz says when it can.",
            retry_after_s=2,
        )

    def scorer(self, judge: str, records: RecordSink | None) -> Scorer:
        """A scorer with the judge of that name, which passes its records to `records`; raises as `ready_judge` does."""
        return Scorer(self.ready_judge(judge), self.rubrics, records, self.ledger)

    def recorder_for(self, request: RewardRequest, recorder: RecordSink | None) -> RecordSink | None:
        """The recorder of a request, which also has the gold judge judge a sample if the request asks for that.

        Raises:
            InvalidRequest: the gold judge is unknown, or the service has no ledger to compare the judges in.
            NotReady: the gold judge has not started.
        """
        if request.gold is None:
            return recorder
        judge = self.ready_judge(request.gold.judge, "gold.judge")
        if recorder is None or self.gold is None:
            message = "needs the ledger, which is off here; set ADJUDGE_LEDGER=all, or leave out gold"
            raise invalid_field("gold", message)
        return self.gold.recorder(request, judge, recorder)

    def readable_texts(self) -> RubricTexts:
        """What reads rubric files; raises `NotReady` if this process has none."""
        return required(self.rubric_texts, "reads no rubric files")

    def readable_ledger(self) -> LedgerReader:
        """The ledger; raises `NotReady` if this process has none."""
        return required(self.ledger, "has no ledger")

    def label_store(self) -> LabelStore:
        """The store of labels; raises `NotReady` if this process has none."""
        return required(self.labels, "keeps no labels")

    def running_operations(self) -> Operations:
        """The operations; raises `NotReady` if this process has none."""
        return required(self.operations, "has no operations")

    def key_store(self) -> KeyAdministration:
        """The store of API keys; raises `NotReady` if this process has none."""
        return required(self.keys, "administers no keys")

    async def checks(self, only: Collection[str] = ()) -> dict[str, bool]:
        """Check the parts that readiness depends on: those named in `only`, or all of them.

        `replica`, which is checked only if named, says whether this replica should receive traffic.
        """
        parts: dict[str, Callable[[], Awaitable[bool]]] = {"store": self.rubrics.ready}
        for name in self.names:
            parts["judge" if name == DEFAULT_JUDGE else f"judge {name}"] = partial(self._judge_is_ready, name)
        if self.judges:
            parts["cache"] = self._caches_are_ready
        if self.recorder is not None:
            parts["ledger"] = self._ledger_is_safe
        selected = {name: (parts | {"replica": self._replica_should_serve}).get(name) for name in only or parts}
        return {name: part is not None and await part() for name, part in selected.items()}

    async def _judge_is_ready(self, name: str) -> bool:
        judge = self.judges.get(name)
        return judge is not None and await judge.executor.ready()

    async def _replica_should_serve(self) -> bool:
        return self.judge is not None and await self.judge.executor.should_receive_traffic()

    async def _ledger_is_safe(self) -> bool:
        return self.recorder is None or self.recorder.failure_reason is None

    async def _caches_are_ready(self) -> bool:
        return all([await judge.cache.ready() for judge in self.judges.values()])


def required(part: T | None, lack: str) -> T:
    """A part that not every process has; raises `NotReady` with what the process lacks, such as `has no ledger`."""
    if part is None:
        raise NotReady(
            f"This process {lack}. Send the request to one that was started by `adjudge serve` with a database."
        )
    return part


def service_of(request: Request) -> Service:
    """The service that the application was created with."""
    service: Service = request.app.state.service
    return service
