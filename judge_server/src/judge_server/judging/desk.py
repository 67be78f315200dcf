"""The desk: whoever has the calls of a request answered, an engine in this process or judges in others.

A judge hands over what nobody has a verdict on, and gets an errand to wait for. What is behind the desk is its own
business.
"""

from collections.abc import Sequence
from typing import Protocol

from judge_server.judging.findings import WriteBehindBuffer
from judge_server.judging.work import Caller, CompletionTracker, JudgementResults, UnresolvedWork
from judge_server.metrics import JudgeMetrics
from judge_server.pools import MemberView
from judge_server.ports import Batch, EngineIdentity


class PendingJudgement(Protocol):
    """What one request has at the desk. Outcomes enter the request's as soon as they are final."""

    async def wait(self) -> None:
        """Wait until every outcome is known, or the deadline; what is not known then failed as late.

        Raises:
            Overloaded: nothing of it was judged, since there is no room.
            NotReady: nothing of it was judged, since no judge is there.
        """

    def cancel(self) -> None:
        """Wait for nothing any more, and charge what it has cost so far. Calls that nobody else wants are dropped."""


class JudgeExecutor(Protocol):
    """Has calls answered.

    Attributes:
        identity: the model that answers, once started.
        findings: what was found and is not stored yet.
        most_calls: how many calls its queue holds, and so the most that a request may ask for.
    """

    identity: EngineIdentity
    write_buffer: WriteBehindBuffer
    max_calls: int

    @property
    def unavailable_reason(self) -> str:
        """Why nobody can answer for now, in words; empty where there is nothing to say."""

    @property
    def fatal_error(self) -> str:
        """Why nobody here will ever answer again, and the process must be started anew; empty while somebody may."""

    async def start(self, metrics: JudgeMetrics) -> None:
        """Get ready; what it costs is counted in `metrics`. Raises `EngineStartError` with the way out."""

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        result: JudgementResults,
        tracker: CompletionTracker,
        deadline: float,
    ) -> PendingJudgement:
        """Begin to have the calls of the work answered by `deadline` (loop time), at the cost of `caller`.

        Raises:
            Overloaded: there is no room for them.
        """

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes; raises `EngineUnavailable` when it cannot be asked."""

    def members(self) -> list[MemberView]:
        """Those behind the desk among whom calls are shared out; none where there is but one."""

    async def ready(self) -> bool:
        """Whether it could have a call answered now."""

    async def should_receive_traffic(self) -> bool:
        """Whether requests do as well here as at any other replica: a judge that all of them share is no difference."""

    async def close(self) -> None:
        """Release everything; calls on their way fail."""
