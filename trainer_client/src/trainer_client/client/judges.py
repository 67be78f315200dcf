"""The clients' methods that change judges: put them to sleep, wake them, and load other weights."""

from typing import Literal

from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import ANSWER_MARGIN_S, name_in_path, validated
from trainer_client.client.connection import AsyncConnection
from trainer_client.wire import DEFAULT_JUDGE, VerdictRequest
from trainer_client.wire.judges import LEASE_S, WEIGHTS_WAIT_S, JudgeLease, JudgeSleep, JudgeWeights, WeightsChange


class AsyncJudgeMethods(AsyncConnection):
    """The methods of `AsyncClient` that change judges, or say which weights they have.

    Changes need a key with the scope `judges:write`. An owner, such as a run, has one lease on a judge, and the next
    request of the same owner, to sleep or to wake, replaces it. So a request also renews a lease. All raise
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

    async def judge_weights(self, judge: str = DEFAULT_JUDGE) -> JudgeWeights:
        """Fetch which weights a judge has, and how far its verdicts on your control set have drifted."""
        return await self.send(PreparedRequest("GET", _path(judge, "weights"), JudgeWeights, expected={"judge": judge}))

    async def load_judge_weights(
        self,
        version: str,
        adapter: str | None = None,
        judge: str = DEFAULT_JUDGE,
        *,
        step: int | None = None,
        expected: str | None = None,
        control: VerdictRequest | None = None,
        wait_s: float = WEIGHTS_WAIT_S,
    ) -> JudgeWeights:
        """Have a judge judge with other weights from now on, once the requests under way are judged.

        Args:
            version: what you call the weights.
            adapter: a LoRA adapter, by its path in the service's folder of adapters; None for the weights without one,
                or for those that a policy server has now.
            judge: the judge's name.
            step: the training step that they are of.
            expected: the tag of the weights that are to be replaced; None to replace any.
            control: responses that are judged before and after, to show how far the judge drifts.
            wait_s: how long the judge waits for requests under way, in seconds.

        Returns:
            The weights, with the stored calibrations that do not hold for them and the drift on `control`.

        Raises:
            InvalidRequest: they cannot be loaded, and the judge has the weights before.
            WeightsChanged: the judge has other weights than expected.
            NotReady: requests under way have not ended, or it is unknown which weights the judge has.
        """
        given = {"version": version, "adapter": adapter, "step": step, "wait_s": wait_s, "control": control}
        judged_s = 0.0 if control is None else 2 * control.deadline_s
        return await self.send(
            PreparedRequest(
                "PUT",
                _path(judge, "weights"),
                JudgeWeights,
                validated(WeightsChange, given),
                min_timeout_s=wait_s + judged_s + ANSWER_MARGIN_S,
                headers={} if expected is None else {"If-Match": f'"{expected}"'},
                expected={"judge": judge, "version": version, "adapter": adapter},
            )
        )

    async def _hold(self, verb: Literal["sleep", "wake"], owner: str, judge: str, lease_s: float) -> JudgeSleep:
        path, lease = _path(judge, verb), validated(JudgeLease, {"owner": owner, "lease_s": lease_s})
        # the answer comes when the calls under way are done, or the model is loaded, which may take minutes
        timeout_s, expected = lease_s + ANSWER_MARGIN_S, {"judge": judge}
        return await self.send(
            PreparedRequest("POST", path, JudgeSleep, lease, min_timeout_s=timeout_s, expected=expected)
        )


def _path(judge: str, part: str) -> str:
    return f"/v1/judges/{name_in_path(judge, 'a judge')}/{part}"
