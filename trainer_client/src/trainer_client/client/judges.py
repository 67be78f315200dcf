"""The clients' methods that put judges to sleep and wake them."""

import re
from functools import partial
from typing import Literal

from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import ANSWER_MARGIN_S, to_json_bytes, validated
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import unequal
from trainer_client.errors import InvalidRequest
from trainer_client.wire import DEFAULT_JUDGE
from trainer_client.wire.judges import LEASE_S, JudgeLease, JudgeSleep

_JUDGE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class AsyncJudgeMethods(AsyncConnection):
    """The methods of `AsyncClient` about judges whose memory others use in turn with them.

    They need a key with the scope `judges:write`. An owner, such as a run, has one lease on a judge, and the next
    request of the same owner, for either method, replaces it. So a request also renews a lease. Both raise
    `AdjudgeError` as `AsyncClient.rewards` does.
    """

    async def put_judge_to_sleep(
        self, owner: str, judge: str = DEFAULT_JUDGE, *, lease_s: float = LEASE_S
    ) -> JudgeSleep:
        """Have a judge release the memory of its model, once the calls that its engine works on are done.

        Args:
            owner: who holds the lease.
            judge: the judge's name.
            lease_s: how long the lease holds, in seconds; then the judge returns to its resting state.

        Returns:
            The state of the judge: `asleep`, or `awake` if the lease of another owner keeps it awake.

        Raises:
            InvalidRequest: its engine cannot sleep; the message says how to start it.
            NotReady: it failed to fall asleep; it is tried again as long as the lease holds.
        """
        return await self._hold("sleep", owner, judge, lease_s)

    async def wake_judge(self, owner: str, judge: str = DEFAULT_JUDGE, *, lease_s: float = LEASE_S) -> JudgeSleep:
        """Have a judge load its model again; it stays awake as long as the lease holds.

        Raises:
            NotReady: it failed to wake; it is tried again as long as the lease holds.
        """
        return await self._hold("wake", owner, judge, lease_s)

    async def _hold(self, verb: Literal["sleep", "wake"], owner: str, judge: str, lease_s: float) -> JudgeSleep:
        if not _JUDGE_NAME.fullmatch(judge):
            raise InvalidRequest(f"{judge[:64]!r} cannot name a judge")
        body = to_json_bytes(validated(JudgeLease, {"owner": owner, "lease_s": lease_s}))
        mismatch = partial(unequal, {"judge": judge})
        # the answer comes when the calls under way are done, or the model is loaded, which may take minutes
        timeout_s = lease_s + ANSWER_MARGIN_S
        path = f"/v1/judges/{judge}/{verb}"
        return await self.send(
            PreparedRequest("POST", path, JudgeSleep, body, min_timeout_s=timeout_s, mismatch=mismatch)
        )
