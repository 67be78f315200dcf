"""Wait for a judge: before training begins, while it is away, and until it sleeps or wakes on shared GPUs."""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trainer_client import AsyncClient, Client
from trainer_client.errors import AdjudgeError, ConnectionFailed, NotReady, ServerError, TimedOut
from trainer_client.rows.clients import blocking_client

logger = logging.getLogger(__name__)


def preflight(template: str | Client | AsyncClient, wait_s: float) -> None:
    """Check that a service can judge, and wait while it is loading.

    A client with a transport of its own is not asked, because that transport may belong to an event loop.

    Args:
        template: the service's address, or a client of it.
        wait_s: how long to wait for a service that answers but is not ready, in seconds.

    Raises:
        ConnectionFailed, TimedOut: nothing answers at the address.
        AdjudgeError: the service was not ready in time, or something else answers there.
    """
    client = blocking_client(template)
    if client is None:
        return
    with client:
        reason, waited = client.not_ready_reason(), 0.0
        if isinstance(reason, ConnectionFailed | TimedOut):
            raise type(reason)(
                f"{reason}. Start the service first, or pass preflight=False to train without asking it now"
            ) from reason
        began = time.monotonic()
        while reason is not None:
            if waited == 0.0:
                logger.warning("waiting up to %g s for the judge at %s: %s", wait_s, client.base_url, reason)
            if waited >= wait_s:
                raise reason
            client.settings.sleep(_poll_interval_s(wait_s))
            waited = max(waited + _poll_interval_s(wait_s), time.monotonic() - began)
            reason = client.not_ready_reason()
        if waited:
            logger.warning("the judge at %s is ready after %.0f s", client.base_url, waited)


_POLL_S, _ROUND_S, _LOG_EVERY_S = 2.0, 30.0, 60.0
"""How often a judge that is away is asked; how long a rank waits before it meets the others; how often it is logged."""


def _poll_interval_s(limit_s: float) -> float:
    return min(_POLL_S, limit_s / 10)


class JudgeWait:
    """Waits for a judge that is away, in rounds in which all ranks take part.

    A rank that has all its rewards would otherwise wait in a collective operation, which has a time limit of its own.
    All ranks decide alike, because they decide from what all of them gathered.

    Args:
        limit_s: how long to wait for one outage, in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._given_up = False

    def continues(self, away: Sequence[str | None], waited_s: Sequence[float]) -> bool:
        """Decide whether all ranks wait for another round. An outage that was waited for in vain is not again.

        Args:
            away: for each rank why its judge is away, or None if it is not.
            waited_s: how long each rank has waited in this call, in seconds.
        """
        if not any(away):
            self._given_up = False
        elif max(waited_s) >= self.limit_s:
            self._given_up = True
        return any(away) and not self._given_up

    async def round(self, client: AsyncClient, reason: str, waited_s: float) -> tuple[bool, float]:
        """Wait until the service is ready, at most for a round.

        Args:
            client: a client of the service.
            reason: why it is away.
            waited_s: how long this rank has waited in this call.

        Returns:
            Whether to send the request again, and how long this rank has waited then.
        """
        if waited_s == 0.0:
            logger.warning("waiting up to %g s for the judge at %s: %s", self.limit_s, client.base_url, reason)
        interval, loop = _poll_interval_s(self.limit_s), asyncio.get_running_loop()
        began, spent = loop.time(), 0.0
        problem: AdjudgeError | None = None
        while spent < min(_ROUND_S, self.limit_s - waited_s):
            await client.settings.sleep(interval)
            spent = max(spent + interval, loop.time() - began)
            try:
                problem = await client.not_ready_reason()
            except AdjudgeError as error:  # a proxy may answer in place of a service that is away
                problem = error
            if problem is None:
                logger.warning("the judge at %s is ready after %.0f s", client.base_url, waited_s + spent)
                break
        total = waited_s + spent
        if problem is not None and total // _LOG_EVERY_S > waited_s // _LOG_EVERY_S:
            logger.warning("still waiting for the judge at %s after %.0f s: %s", client.base_url, total, problem)
        # a service may report a part as not ready that rewards do not need, such as the ledger
        return problem is None or isinstance(problem, NotReady), total


END_LEASE_S = 1.0
"""A lease to sleep that is let go is replaced by one of this length, because none can be withdrawn."""


class SharedMemory:
    """Has the judge awake while this trainer's rewards are judged, and asleep while the trainer needs the memory.

    All ranks do the same: the leases of one owner replace each other, and those of several add up.

    Args:
        judge: the name of the judge.
        lease_s: how long each lease holds, in seconds.
        limit_s: how long to wait for a judge that others keep awake, in seconds.
    """

    def __init__(self, judge: str, lease_s: float, limit_s: float) -> None:
        self.judge, self.lease_s, self.limit_s = judge, lease_s, limit_s
        self._owner = f"trainer {secrets.token_hex(4)}"

    async def wake(self, client: AsyncClient) -> None:
        """Wake the judge. If it is away or cannot wake now, requests wait for it, or fail like those to any such judge.

        A lease from before the run had a name is let go. Raises `AdjudgeError` if the key or the service permits no
        leases.
        """
        earlier, self._owner = self._owner, client.run or self._owner
        try:
            if earlier != self._owner:
                await client.put_judge_to_sleep(earlier, self.judge, lease_s=END_LEASE_S)
            await client.wake_judge(self._owner, self.judge, lease_s=self.lease_s)
        except (ConnectionFailed, TimedOut, NotReady, ServerError) as error:
            logger.warning("the judge cannot be woken: %s", error)

    async def problem_with_sleep(self, client: AsyncClient) -> AdjudgeError | None:
        """Put the judge to sleep, wait until it is asleep, and return why it is not, if it is not in time."""
        spent, interval = 0.0, _poll_interval_s(self.limit_s)
        while True:
            try:
                found = await client.put_judge_to_sleep(client.run or self._owner, self.judge, lease_s=self.lease_s)
            except AdjudgeError as error:
                return error
            if found.state == "asleep":
                return None
            if spent >= self.limit_s:
                return NotReady(
                    f"the judge {self.judge!r} is not asleep after {spent:.0f} s, but {found.state}; kept awake by: "
                    f"{', '.join(found.kept_awake_by) or 'nobody'}"
                )
            if spent == 0.0:
                logger.warning("waiting for the judge to fall asleep; kept awake by %s", found.kept_awake_by)
            await client.settings.sleep(interval)
            spent += interval

    @contextmanager
    def awake(self, client: Client) -> Iterator[None]:
        """Keep the judge awake inside the block, and let it sleep after it. Raises `AdjudgeError`."""
        owner = client.run or self._owner
        client.wake_judge(owner, self.judge, lease_s=self.lease_s)
        try:
            yield
        finally:
            client.put_judge_to_sleep(owner, self.judge, lease_s=self.lease_s)

    def renew(self, template: AsyncClient, lease_s: float | None = None) -> None:
        """Hold the lease to sleep for longer; with `lease_s`, for so long from now. Raises `AdjudgeError`.

        A client with a transport of its own is not used, because that transport may belong to an event loop.
        """
        client = blocking_client(template)
        if client is not None:
            with client:
                client.put_judge_to_sleep(client.run or self._owner, self.judge, lease_s=lease_s or self.lease_s)
