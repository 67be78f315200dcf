"""What the routes need of the running process, and how they get at it."""

from dataclasses import dataclass

from fastapi import Request

from judge_server.errors import NotReady
from judge_server.judging.judge import Judge
from judge_server.ports import LedgerReader, RubricSource
from judge_server.recording import Recorder
from judge_server.scoring import Scorer


@dataclass(slots=True)
class Service:
    """The parts behind the routes. `judge` is set once its engine is loaded; without a `recorder` nothing is kept."""

    rubrics: RubricSource
    judge: Judge | None = None
    problem: str = "the judge model is still loading"
    recorder: Recorder | None = None
    ledger: LedgerReader | None = None

    def ready_judge(self) -> Judge:
        """The judge; raises `NotReady` before it has started."""
        if self.judge is None:
            raise NotReady(f"Cannot judge yet: {self.problem}. GET /readyz says when.", retry_after_s=2)
        return self.judge

    def scorer(self) -> Scorer:
        """The scorer; raises `NotReady` before the judge has started."""
        return Scorer(self.ready_judge(), self.rubrics, self.recorder)

    def readable_ledger(self) -> LedgerReader:
        """The ledger; raises `NotReady` where this process has none."""
        if self.ledger is None:
            raise NotReady("This process has no ledger. Ask one that was started with a database.")
        return self.ledger

    async def checks(self) -> dict[str, bool]:
        """What readiness depends on, each part by itself."""
        checks = {"store": await self.rubrics.ready(), "judge": False}
        if self.judge is not None:
            checks |= {"judge": await self.judge.engine.ready(), "cache": await self.judge.cache.ready()}
        return checks


def service_of(request: Request) -> Service:
    """The service this application was created with."""
    service: Service = request.app.state.service
    return service
