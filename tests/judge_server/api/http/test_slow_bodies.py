"""A body must arrive at a minimum pace, or the request times out."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message

from judge_server.api.http.middleware import BoundedBody
from judge_server.errors import TooLarge, TooSlow


class Sender:
    """A client that sends these pieces, each after some seconds, and then waits for the answer."""

    def __init__(self, *pieces: tuple[float, bytes], whole: bool = True) -> None:
        self.pieces = list(pieces)
        self.whole = whole

    async def __call__(self) -> Message:
        if not self.pieces:
            await asyncio.Event().wait()
        after, piece = self.pieces.pop(0)
        await asyncio.sleep(after)
        more = bool(self.pieces) or not self.whole
        return {"type": "http.request", "body": piece, "more_body": more}


async def body_of(sender: Sender, *, max_bytes: int = 1000, body_timeout_s: float = 0.2, **limits: int) -> bytes:
    """The whole body."""
    receive, got = BoundedBody(sender, max_bytes=max_bytes, body_timeout_s=body_timeout_s, **limits), b""
    while True:
        message = await receive()
        got += message["body"]
        if not message["more_body"]:
            return got


@pytest.mark.parametrize("pieces", [[(0, b"ab")], [(0, b"a"), (0, b"b")], [(0.01, b"a"), (0.01, b"b"), (0, b"")]])
async def test_a_body_that_arrives_in_time_is_read(pieces: Sequence[tuple[float, bytes]]) -> None:
    assert await body_of(Sender(*pieces), body_timeout_s=30) == b"ab"


async def test_a_client_that_sends_nothing_times_out() -> None:
    with pytest.raises(TooSlow, match=r"0 bytes so far.*ADJUDGE_CLIENT_TIMEOUT_S"):
        await body_of(Sender(whole=False))
    with pytest.raises(TooSlow, match="3 bytes so far"):
        await body_of(Sender((0, b"abc"), whole=False))


async def test_a_client_that_sends_single_bytes_slowly_times_out() -> None:
    with pytest.raises(TooSlow):
        await body_of(Sender(*[(0.02, b"a")] * 1000))


async def test_a_larger_body_gets_more_time() -> None:
    pieces = [(0.02, b"a" * 100)] * 20  # twice as long as the timeout, and fast enough
    assert len(await body_of(Sender(*pieces), max_bytes=10_000, min_bytes_per_second=1)) == 2000


async def test_waiting_for_the_answer_after_the_whole_body_does_not_time_out() -> None:
    receive = BoundedBody(Sender((0, b"a")), max_bytes=10, body_timeout_s=0.01)
    await receive()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receive(), 0.2)


async def test_the_size_limit_applies_to_all_pieces_of_a_body_together() -> None:
    with pytest.raises(TooLarge, match="10 bytes allowed"):
        await body_of(Sender((0, b"123456"), (0, b"123456")), max_bytes=10)
