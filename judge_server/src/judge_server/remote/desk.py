"""The desk of an api that has no engine: judges in other processes answer, each response's calls at one of them."""

import asyncio
import logging
from collections.abc import Collection, Sequence

from judge_server.errors import EngineGone, EngineStartError
from judge_server.judging.admission import USUAL_RULES
from judge_server.judging.findings import FreshFindings
from judge_server.judging.work import Caller, Outcomes, Waiting, Work
from judge_server.metrics import JudgeMetrics
from judge_server.pools import MemberView, Pool, key_of
from judge_server.ports import Batch, EngineIdentity
from judge_server.remote.errand import RemoteErrand
from judge_server.remote.link import JudgeGone, JudgeLink, OtherProtocol, identity_digest
from judge_server.remote.messages import PROTOCOL

log = logging.getLogger("adjudge")


class RemoteDesk:
    """Judges of one model, at these links. One of another model or protocol is left out, and the log says so.

    Judges may come later than the api, and be replaced by those of its protocol. When all of them have changed their
    model, the api goes over to the new one.
    """

    identity: EngineIdentity
    dead = ""

    def __init__(
        self,
        links: Collection[JudgeLink],
        *,
        every_s: float = 2.0,
        patience_s: float = 2.0,
        most_calls: int = USUAL_RULES.calls,
    ) -> None:
        self.findings = FreshFindings()
        self.most_calls = most_calls
        self._pool = Pool({link.url: link for link in links}, self._healthy, every_s=every_s, patience_s=patience_s)
        self._known = asyncio.Event()
        self._amiss: dict[str, EngineStartError | JudgeGone] = {}

    @property
    def problem(self) -> str:
        """That every judge speaks another protocol, while that is so."""
        strange = [error for error in self._amiss.values() if isinstance(error, OtherProtocol)]
        if len(strange) < len(self._pool.members):
            return ""
        theirs = ", ".join(sorted({str(error.protocol) for error in strange}))
        return f"every judge speaks protocol {theirs} and this api {PROTOCOL}; it waits for judges of its own version"

    def members(self) -> list[MemberView]:
        """The judges, available or not."""
        return [member.view for member in self._pool.members]

    async def start(self, metrics: JudgeMetrics) -> None:
        """Wait until the first judge is there. Raises `EngineStartError` where all refuse this api's token."""
        self._metrics = metrics
        self._pool.start()
        while not self._known.is_set():
            refused = [error for error in self._amiss.values() if isinstance(error, EngineStartError)]
            if len(refused) == len(self._pool.members):
                raise refused[0]
            await asyncio.sleep(0.05)

    def take(
        self, work: Sequence[Work], caller: Caller, result: Outcomes, waiting: Waiting, deadline: float
    ) -> RemoteErrand:
        """Nothing is sent yet: that begins when the request waits."""
        return RemoteErrand(self._pool, self.identity, self._metrics, work, caller, result, waiting, deadline)

    async def count_tokens(self, batch: Batch) -> int:
        """As the judge counts that the batch belongs to."""
        member = self._pool.choose(key_of(batch.shared))
        if member is None:
            raise EngineGone("no judge is there")
        try:
            return await member.of.count_tokens(batch)
        except JudgeGone as error:
            member.failed(str(error))
            raise EngineGone(str(error)) from error

    async def ready(self) -> bool:
        """Whether some judge is there."""
        return any(member.available for member in self._pool.members)

    async def fit(self) -> bool:
        """Whether a judge was found, and not all that there are now are for apis of another version."""
        return self._known.is_set() and not self.problem

    async def close(self) -> None:
        """Hang up on every judge."""
        await self._pool.close()
        await asyncio.gather(*(member.of.close() for member in self._pool.members))

    async def _healthy(self, link: JudgeLink) -> bool:
        try:
            found = await link.introduction()
        except (EngineStartError, JudgeGone) as error:
            self._amiss[link.url] = error
            raise
        self._amiss.pop(link.url, None)
        if found.identity is None or not found.ready:
            return False
        if not self._known.is_set():
            self.identity = found.identity
            self._known.set()
        elif identity_digest(found.identity) != identity_digest(self.identity):
            if any(member.of is not link and not member.gone.is_set() for member in self._pool.members):
                raise JudgeGone(f"it judges with {found.identity.model}, and the others with {self.identity.model}")
            log.warning("all judges have changed: judging with %s from now on", found.identity.model)
            self.identity = found.identity
        return True
