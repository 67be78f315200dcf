"""The desk of an api that has no engine: judges in other processes answer, each response's calls at one of them."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.judging.admission import DEFAULT_QUEUE_RULES
from judge_server.judging.findings import WriteBehindBuffer
from judge_server.judging.work import Caller, CompletionTracker, JudgementResults, UnresolvedWork
from judge_server.metrics import JudgeMetrics
from judge_server.pools import MemberView, Pool, key_of
from judge_server.ports import Batch, EngineIdentity
from judge_server.remote.errand import RemotePendingJudgement
from judge_server.remote.link import JudgeClient, JudgeUnavailable, ProtocolMismatch, identity_digest
from judge_server.remote.messages import PROTOCOL_VERSION

log = logging.getLogger("adjudge")


class RemoteExecutor:
    """Judges of one model, at these links. One of another model or protocol is left out, and the log says so.

    Judges may come later than the api, and be replaced by those of its protocol. When all of them have changed their
    model, the api goes over to the new one.
    """

    identity: EngineIdentity
    fatal_error = ""

    def __init__(
        self,
        links: Collection[JudgeClient],
        *,
        interval_s: float = 2.0,
        health_timeout_s: float = 2.0,
        max_calls: int = DEFAULT_QUEUE_RULES.calls,
    ) -> None:
        self.write_buffer = WriteBehindBuffer()
        self.max_calls = max_calls
        self._pool = Pool(
            {link.url: link for link in links},
            self._check_health,
            interval_s=interval_s,
            health_timeout_s=health_timeout_s,
        )
        self._identified = asyncio.Event()
        self._errors: dict[str, EngineStartError | JudgeUnavailable] = {}

    @property
    def unavailable_reason(self) -> str:
        """That every judge speaks another protocol, while that is so."""
        strange = [error for error in self._errors.values() if isinstance(error, ProtocolMismatch)]
        if len(strange) < len(self._pool.members):
            return ""
        theirs = ", ".join(sorted({str(error.protocol) for error in strange}))
        return f"every judge speaks protocol {theirs} and this api {PROTOCOL_VERSION}; it waits for judges of its own version"

    def members(self) -> list[MemberView]:
        """The judges, available or not."""
        return [member.view for member in self._pool.members]

    async def start(self, metrics: JudgeMetrics) -> None:
        """Wait until the first judge is there. Raises `EngineStartError` where all refuse this api's token."""
        self._metrics = metrics
        self._pool.start()
        while not self._identified.is_set():
            refused = [error for error in self._errors.values() if isinstance(error, EngineStartError)]
            if len(refused) == len(self._pool.members):
                raise refused[0]
            await asyncio.sleep(0.05)

    def submit(
        self,
        work: Sequence[UnresolvedWork],
        caller: Caller,
        result: JudgementResults,
        tracker: CompletionTracker,
        deadline: float,
    ) -> RemotePendingJudgement:
        """Nothing is sent yet: that begins when the request waits."""
        return RemotePendingJudgement(self._pool, self.identity, self._metrics, work, caller, result, tracker, deadline)

    async def count_tokens(self, batch: Batch) -> int:
        """As the judge counts that the batch belongs to."""
        member = self._pool.choose(key_of(batch.shared))
        if member is None:
            raise EngineUnavailable("no judge is there")
        try:
            return await member.target.count_tokens(batch)
        except JudgeUnavailable as error:
            member.failed(str(error))
            raise EngineUnavailable(str(error)) from error

    async def ready(self) -> bool:
        """Whether some judge is there."""
        return any(member.available for member in self._pool.members)

    async def should_receive_traffic(self) -> bool:
        """Whether a judge was found, and not all that there are now are for apis of another version."""
        return self._identified.is_set() and not self.unavailable_reason

    async def close(self) -> None:
        """Hang up on every judge."""
        await self._pool.close()
        await asyncio.gather(*(member.target.close() for member in self._pool.members))

    async def _check_health(self, link: JudgeClient) -> bool:
        try:
            found = await link.handshake()
        except (EngineStartError, JudgeUnavailable) as error:
            self._errors[link.url] = error
            raise
        self._errors.pop(link.url, None)
        if found.identity is None or not found.ready:
            return False
        if not self._identified.is_set():
            self.identity = found.identity
            self._identified.set()
        elif identity_digest(found.identity) != identity_digest(self.identity):
            if any(member.target is not link and not member.gone.is_set() for member in self._pool.members):
                raise JudgeUnavailable(
                    f"it judges with {found.identity.model}, and the others with {self.identity.model}"
                )
            log.warning("all judges have changed: judging with %s from now on", found.identity.model)
            self.identity = found.identity
        return True
