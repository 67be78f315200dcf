"""What a request's body may weigh, and how long it may take to come. Knows bytes and seconds, not what they mean."""

import asyncio

from starlette.types import Message, Receive

from judge_server.errors import TooLarge, TooSlow

MIN_BYTES_PER_SECOND = 64 * 1024
"""Bytes a second that a body must come with on the whole, beside the patience that its sender is granted once."""


class BoundedBody:
    """The `receive` of a request, refusing a body that is too large or that comes too slowly.

    Args:
        receive: the server's.
        most_bytes: what the body may weigh.
        patience_s: seconds that may pass without a byte, and in which the body must come beside one second for each
            `MIN_BYTES_PER_SECOND` bytes of it.

    Raises:
        TooLarge, TooSlow: when it is called.
    """

    def __init__(self, receive: Receive, *, max_bytes: int, body_timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._body_timeout_s = body_timeout_s
        self._started_at: float | None = None
        self._received = 0
        self._complete = False

    async def __call__(self) -> Message:
        """The next message; what comes behind the body, that the caller has left, is waited for without end."""
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds_left()):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"the body came too slowly: {self._received} bytes so far; send it within {self._body_timeout_s:g} s, and "
                f"one second more for each {MIN_BYTES_PER_SECOND} bytes, or raise ADJUDGE_CLIENT_TIMEOUT_S on the server"
            ) from None
        self._received += len(message.get("body", b""))
        self.refuse_above_limit(self._received)
        self._complete = not message.get("more_body", False)
        return message

    def refuse_above_limit(self, size: int) -> None:
        """Raise `TooLarge` for a body of so many bytes, if it is."""
        if size > self._max_bytes:
            raise TooLarge(
                f"the body is larger than the {self._max_bytes} bytes allowed; send fewer groups at once, "
                "or raise ADJUDGE_MAX_BODY_BYTES on the server"
            )

    def _seconds_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._started_at is None:
            self._started_at = now
        until = self._started_at + self._body_timeout_s + self._received / MIN_BYTES_PER_SECOND
        return min(self._body_timeout_s, until - now)
