"""What a request hands over to be recorded: what it planned and what came of it, by reference, so that it is cheap."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from judge_server.grouping import PlannedGroup
from judge_server.judging.judge import Judge
from judge_server.judging.ways import PreparedConfig
from judge_server.judging.work import JudgementResults
from trainer_client.wire import RewardRequest, VerdictRequest


@dataclass(slots=True)
class JudgedRequest:
    """A judged request. `rewards` holds each response's reward and status in order, nothing where none were made.

    `seconds` is from its arrival to its answer. Nobody changes any of it any more. `record_id` is the 16 bytes that it is
    recorded under, where a request that is sent again must be the same one: then the first that is written stands.
    """

    project_id: str
    run: str | None
    step: int | None
    request_id: str
    mode: str | None
    prepared: PreparedConfig | None
    model: str
    votes: int
    groups: Sequence[PlannedGroup]
    outcomes: JudgementResults
    rewards: Sequence[tuple[float | None, str]]
    seconds: float
    at: datetime
    record_id: bytes | None = None
    uses: int = field(init=False)
    """How many verdicts it used, every vote counted."""

    def __post_init__(self) -> None:
        plans = [response.plan for group in self.groups for response in group.responses]
        self.uses = sum([len(slot.digests) for plan in plans for slot in plan.slots])

    @classmethod
    def of(
        cls,
        judge: Judge,
        request: RewardRequest | VerdictRequest,
        prepared: PreparedConfig | None,
        groups: Sequence[PlannedGroup],
        outcomes: JudgementResults,
        *,
        project_id: str,
        request_id: str,
        deadline: float,
        rewards: Sequence[tuple[float | None, str]] = (),
        record_id: bytes | None = None,
    ) -> "JudgedRequest":
        """A request that has just been judged; `deadline` is its own, in the loop's time."""
        return cls(
            project_id=project_id,
            run=request.run,
            step=request.step,
            request_id=request_id,
            mode=request.reward.mode if isinstance(request, RewardRequest) else None,
            prepared=prepared,
            model=judge.identity.model,
            votes=request.judging.votes,
            groups=groups,
            outcomes=outcomes,
            rewards=rewards,
            seconds=asyncio.get_running_loop().time() - (deadline - request.deadline_s),
            at=datetime.now(UTC),
            record_id=record_id,
        )


class RecordSink(Protocol):
    """Takes over what is to be recorded."""

    def record(self, judged: JudgedRequest) -> None:
        """Take a judged request over; never blocks."""
