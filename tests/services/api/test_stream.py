"""Streaming over a real connection: groups arrive as they finish, and a client that disconnects cancels the rest."""

import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.services.processes import serving
from trainer_client import Client

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is short."}]}
GROUPS = [{"id": f"g{n}", "prompt": "Is 7 prime?", "responses": [f"Answer {n}.", f"Another {n}."]} for n in range(20)]
CALLS = 80


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a service whose judge answers one response at a time, each call in 20 ms."""
    with (
        serving("scripted://hash?delay_s=0.02&concurrency=1") as service,
        Client(service.url, run="test") as client,
    ):
        service.wait_until_ready(client)
        yield client


@pytest.mark.processes
def test_a_complete_stream_equals_the_whole_answer(client: Client) -> None:
    with client.stream_rewards(GROUPS[:3], RUBRIC) as stream:
        streamed = {group.id: group for group in stream}
    whole = client.rewards(GROUPS[:3], RUBRIC)
    assert stream.summary.usage.judge_calls == 12
    assert whole.usage.cached == 12
    for group in whole.groups:
        assert [r.reward for r in streamed[group.id].responses] == [r.reward for r in group.responses]


@pytest.mark.processes
def test_a_trainer_that_disconnects_cancels_what_is_not_judged_yet(client: Client) -> None:
    with client.stream_rewards(GROUPS[3:], RUBRIC) as stream:
        first = next(iter(stream))
    assert first.id.startswith("g")
    judged = [group for group in GROUPS if group["id"] == first.id]
    until = time.monotonic() + 60
    while client.rewards(judged, RUBRIC).usage.cached < 4:  # verdicts reach the cache a moment after their answer
        assert time.monotonic() < until
        time.sleep(0.05)
    rest = client.rewards(GROUPS[3:], RUBRIC)
    assert rest.usage.cached >= 4
    assert rest.usage.judge_calls > 0
    assert rest.usage.judge_calls + rest.usage.cached == 2 * 2 * len(GROUPS[3:])


@pytest.mark.processes
def test_judging_stops_when_the_client_times_out(client: Client) -> None:
    groups = [group | {"prompt": "Is 9 prime?"} for group in GROUPS]
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{client.base_url}/v1/rewards", json={"rubric": RUBRIC, "groups": groups}, timeout=0.3)
    again = client.rewards(groups, RUBRIC)
    assert again.usage.cached < CALLS
