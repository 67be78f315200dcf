"""What the routes need of the running process, and how they get at it."""

from dataclasses import dataclass, field

from fastapi import Request

from judge_server.access import Gate
from judge_server.errors import InvalidRequest, NotReady
from judge_server.judging.judge import Judge
from judge_server.ports import AuditTrail, LedgerReader, Operations, RubricSource
from judge_server.recording import Recorder
from judge_server.scoring import Scorer
from trainer_client.wire import DEFAULT_JUDGE, FieldError


@dataclass(slots=True)
class Service:
    """The parts behind the routes.

    `judges` has those whose engine is loaded, by name, and `names` all there will be; without a `recorder` nothing is
    kept, without a `gate` all is open.
    """

    rubrics: RubricSource
    judges: dict[str, Judge] = field(default_factory=dict)
    names: tuple[str, ...] = (DEFAULT_JUDGE,)
    problem: str = "the judge model is still loading"
    recorder: Recorder | None = None
    ledger: LedgerReader | None = None
    gate: Gate | None = None
    audit: AuditTrail | None = None
    operations: Operations | None = None

    @property
    def judge(self) -> Judge | None:
        """The judge of whoever names none, once it has started."""
        return self.judges.get(DEFAULT_JUDGE)

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
        raise NotReady(f"Cannot judge yet: {self.problem}. GET /readyz says when.", retry_after_s=2)

    def scorer(self, judge: str = DEFAULT_JUDGE) -> Scorer:
        """The scorer with the judge of that name; raises as `ready_judge` does."""
        return Scorer(self.ready_judge(judge), self.rubrics, self.recorder)

    def readable_ledger(self) -> LedgerReader:
        """The ledger; raises `NotReady` where this process has none."""
        if self.ledger is None:
            raise NotReady("This process has no ledger. Ask one that was started with a database.")
        return self.ledger

    async def checks(self) -> dict[str, bool]:
        """What readiness depends on, each part by itself."""
        checks = {"store": await self.rubrics.ready()}
        for name in self.names:
            judge = self.judges.get(name)
            label = "judge" if name == DEFAULT_JUDGE else f"judge {name}"
            checks[label] = judge is not None and await judge.desk.ready()
            if judge is not None:
                checks["cache"] = checks.get("cache", True) and await judge.cache.ready()
        return checks


def service_of(request: Request) -> Service:
    """The service this application was created with."""
    service: Service = request.app.state.service
    return service
