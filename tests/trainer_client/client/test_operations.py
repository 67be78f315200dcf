"""Following an operation over broken streams: the client does not give up just because a stream is silent for long."""

import asyncio

import httpx2
import pytest

from trainer_client import AsyncClient, Client, ConnectionFailed
from trainer_client.wire.operations import Operation

QUIET_S = 1000.0
"""Far longer than the client's retry budget."""

OPERATION = {"id": "op-1", "project_id": "p", "kind": "score", "request": {}, "created_at": "2026-01-01T00:00:00Z"}

ALIVE = b": still here\n\n"


def event(revision, state):
    operation = Operation.model_validate(OPERATION | {"revision": revision, "state": state})
    return f"id: {revision}\nevent: operation\ndata: {operation.model_dump_json()}\n\n".encode()


class Streams:
    """A service with scripted streams, and a clock that only the streams advance."""

    def __init__(self, *streams):
        self.streams = list(streams)
        self.asked_after = []
        self.now = 0.0

    def clock(self):
        return self.now

    def sync(self, request):
        def body():
            for piece, seconds in self.next(request):
                self.now += seconds
                yield piece

        return httpx2.Response(200, content=body())

    async def asynchronous(self, request):
        async def body():
            for piece, seconds in self.next(request):
                self.now += seconds
                yield piece

        return httpx2.Response(200, content=body())

    def next(self, request):
        self.asked_after.append(request.headers.get("Last-Event-ID"))
        assert len(self.asked_after) < 20
        return self.streams.pop(0) if self.streams else [(ALIVE, 0.0)]

    def followed_by(self, kind):
        if kind is Client:
            client = Client("http://x", transport=httpx2.MockTransport(self.sync), sleep=self.slept, clock=self.clock)
            return lambda: [one.revision for one in client.follow("op-1")]

        async def pause(seconds):
            self.slept(seconds)

        async def follow():
            transport = httpx2.MockTransport(self.asynchronous)
            async with AsyncClient("http://x", transport=transport, sleep=pause, clock=self.clock) as client:
                return [one.revision async for one in client.follow("op-1")]

        return lambda: asyncio.run(follow())

    def slept(self, seconds):
        self.now += seconds


@pytest.fixture(params=[Client, AsyncClient], ids=["sync", "async"])
def kind(request):
    return request.param


def test_a_page_in_many_pieces_does_not_count_as_activity(kind):
    page = [(b"<!doctype html>\n\n", 0.0), (b"<p>Back soon.\n\n", 0.0), (b"</p>", 0.0)]
    with pytest.raises(ConnectionFailed):
        Streams(*[page] * 15).followed_by(kind)()


def test_a_stream_that_ends_after_a_long_quiet_time_is_requested_again(kind):
    quiet = [(ALIVE, 0.0), (event(3, "running"), 0.0), *[(ALIVE, 15.0)] * int(QUIET_S / 15)]
    streams = Streams(quiet, [(ALIVE, 0.0), (event(4, "done"), 0.0)])
    assert streams.followed_by(kind)() == [3, 4]
    assert streams.asked_after == [None, "3"]


def test_a_service_that_ends_every_stream_at_once_is_given_up(kind):
    streams = Streams([(event(3, "running"), 0.0)])
    with pytest.raises(ConnectionFailed, match="ended the events"):
        streams.followed_by(kind)()
    assert len(streams.asked_after) == 1 + 4
