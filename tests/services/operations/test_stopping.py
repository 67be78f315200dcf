"""An api that is stopping: event streams end, pending requests are answered, and its store is closed."""

import itertools
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.fixtures.ports import unused_port
from tests.services.operations.cluster import CRITERIA, groups, score
from tests.services.processes import Service, get, listening
from trainer_client import Client, ConnectionFailed
from trainer_client.wire.operations import Operation

pytestmark = pytest.mark.processes

SAYS_WHEN_CLOSED = """
import sys
from rubric_store import RubricStore
close = RubricStore.close
async def closed(store):
    await close(store)
    print("the rubric store is closed", file=sys.stderr, flush=True)
RubricStore.close = closed
"""


@contextmanager
def api(port: int, engine: str, **settings: str) -> Iterator[Service]:
    """Run a service on this port that reports when it has closed its store."""
    options = ("serve", "--port", str(port), "--engine", engine)
    with listening(*options, first=SAYS_WHEN_CLOSED, **settings) as running:
        with Client(running.url) as client:
            running.wait_until_ready(client)
        yield running


@pytest.mark.parametrize("blow", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_event_stream_does_not_delay_stopping_and_resumes_at_the_next_process(
    migrated: None, blow: signal.Signals
) -> None:
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    seen: list[Operation] = []
    running = threading.Event()

    def follow(id_: str) -> None:
        with Client(url, retries=20) as client:
            for operation in client.follow(id_):
                seen.append(operation)
                if operation.state == "running":
                    running.set()

    with ThreadPoolExecutor() as threads:
        with api(port, "scripted://hash?delay_s=0.2&concurrency=1") as first, Client(url) as client:
            id_ = client.submit(score(12)).id
            following = threads.submit(follow, id_)
            assert running.wait(30)
            four = [group | {"responses": group["responses"][:1]} for group in groups(4)]
            answer = client.stream_rewards(four, {"criteria": CRITERIA})
            begun = next(answer)
            first.process.send_signal(blow)
            scored = [begun, *answer]
            assert sorted(group.id for group in scored) == [group["id"] for group in four]
            assert first.process.wait(30) in (0, 130, -blow)
        assert "the rubric store is closed\n" in first.said
        assert not following.done()
        with api(port, "scripted://hash"):
            following.result(60)
    assert seen[-1].state == "done"
    assert all(one.revision < other.revision for one, other in itertools.pairwise(seen))


def test_requests_beyond_the_drain_time_are_cut_off_and_the_store_is_closed(migrated: None) -> None:
    with (
        ThreadPoolExecutor() as threads,
        api(unused_port(), "scripted://hash?delay_s=1000", ADJUDGE_DRAIN_S="1") as only,
    ):

        def ask() -> None:
            with Client(only.url, retries=0) as client:
                client.rewards(groups(1), {"criteria": CRITERIA}, deadline_s=1000.0)

        asked = threads.submit(ask)
        while not re.search(r"^adjudge_calls_at_engine\S* [1-9]", get(only, "/metrics").text, re.MULTILINE):
            assert not asked.done()
        only.process.send_signal(signal.SIGTERM)
        assert only.process.wait(30) in (0, -signal.SIGTERM)
        assert isinstance(asked.exception(30), ConnectionFailed)
    assert "the rubric store is closed\n" in only.said
