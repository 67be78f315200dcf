"""What a request's body may weigh, and how long it may take to come. Knows bytes and seconds, not what they mean."""

import asyncio

from starlette.types import Message, Receive

from judge_server.errors import TooLarge, TooSlow

SLOWEST = 64 * 1024
"""Bytes a second that a body must come with on the whole, beside the patience that its sender is granted once."""


class BoundedBody:
    """The `receive` of a request, refusing a body that is too large or that comes too slowly.

    Args:
        receive: the server's.
        most_bytes: what the body may weigh.
        patience_s: seconds that may pass without a byte, and in which the body must come beside one second for each
            `SLOWEST` bytes of it.

    Raises:
        TooLarge, TooSlow: when it is called.
    """

    def __init__(self, receive: Receive, *, most_bytes: int, patience_s: float) -> None:
        self._receive = receive
        self._most_bytes = most_bytes
        self._patience_s = patience_s
        self._began: float | None = None
        self._received = 0
        self._whole = False

    async def __call__(self) -> Message:
        """The next message; what comes behind the body, that the caller has left, is waited for without end."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds_left()):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"the body came too slowly: {self._received} bytes so far; send it within {self._patience_s:g} s, and "
                f"one second more for each {SLOWEST} bytes, or raise ADJUDGE_CLIENT_PATIENCE_S on the server"
            ) from None
        self._received += len(message.get("body", b""))
        self.refuse_above_limit(self._received)
        self._whole = not message.get("more_body", False)
        return message

    def refuse_above_limit(self, size: int) -> None:
        """Raise `TooLarge` for a body of so many bytes, if it is."""
        if size > self._most_bytes:
            raise TooLarge(
                f"the body is larger than the {self._most_bytes} bytes allowed; send fewer groups at once, "
                "or raise ADJUDGE_MAX_BODY_BYTES on the server"
            )

    def _seconds_left(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._began is None:
            self._began = now
        until = self._began + self._patience_s + self._received / SLOWEST
        return min(self._patience_s, until - now)
