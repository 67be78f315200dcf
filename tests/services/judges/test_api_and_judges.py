"""`adjudge api` in front of `adjudge judge` processes: real processes, which are killed, stopped and restarted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.fixtures.ports import unused_port
from tests.services.command import adjudge, failure_of
from tests.services.processes import Service, get, listening
from trainer_client import Client
from trainer_client.wire import RewardAnswer

pytestmark = pytest.mark.faults

RUBRIC = {"criteria": [{"id": f"c{n}", "description": f"Part {n} holds."} for n in range(12)]}
RESPONSES = [f"Response {n}." for n in range(48)]
SLOW = "scripted://hash?delay_s=0.02&concurrency=4"


def judge(port: int, folder: Path, engine: str = SLOW, **settings: str) -> AbstractContextManager[Service]:
    """Run a judge process on that port."""
    return listening("judge", "--port", str(port), "--engine", engine, ADJUDGE_DATA_DIR=str(folder), **settings)


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two ports for judges."""
    return unused_port(), unused_port()


@pytest.fixture
def api(ports: tuple[int, int], tmp_path: Path) -> Iterator[Service]:
    """An api in front of judges on these ports."""
    urls = [part for port in ports for part in ("--judge", f"http://127.0.0.1:{port}")]
    with listening("api", "--port", "0", *urls, ADJUDGE_DATA_DIR=str(tmp_path / "api")) as service:
        yield service


def scored(client: Client, responses: list[str]) -> RewardAnswer:
    """Score these responses."""
    return client.rewards(groups=[{"id": "g", "prompt": "p", "responses": responses}], rubric=RUBRIC, deadline_s=60)


def expected(tmp_path: Path) -> list[float | None]:
    """Return the rewards that a service with its own judge gives."""
    own = ("serve", "--port", "0", "--engine", "scripted://hash")
    with listening(*own, ADJUDGE_DATA_DIR=str(tmp_path / "own")) as service, Client(service.url) as client:
        service.wait_until_ready(client)
        return [response.reward for response in scored(client, RESPONSES).groups[0].responses]


class ScoringThread(threading.Thread):
    """Scores the responses in the background."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.client = Client(url)
        self.answer: RewardAnswer | None = None

    def run(self) -> None:
        with self.client:
            self.answer = scored(self.client, RESPONSES)

    def rewards(self) -> list[float | None]:
        """Wait for the rewards."""
        self.join(90)
        assert self.answer is not None
        return [response.reward for response in self.answer.groups[0].responses]


@pytest.mark.parametrize(
    "blow",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
    ids=lambda blow: blow.name,
)
def test_a_judge_that_is_killed_or_hangs_in_the_middle_loses_no_reward(
    blow: signal.Signals, api: Service, ports: tuple[int, int], tmp_path: Path
) -> None:
    secret = {"ADJUDGE_SIGNING_SECRET": "the same wherever it is needed"}
    with judge(ports[0], tmp_path / "a", **secret) as first, judge(ports[1], tmp_path / "b", **secret) as second:
        for one in (first, second, api):
            with Client(one.url) as client:
                one.wait_until_ready(client)
        while get(api, "/metrics").text.count('adjudge_pool_member_up{judge="",member=') < 2 or (
            "} 0.0" in "".join(line for line in get(api, "/metrics").text.splitlines() if "_member_up{" in line)
        ):
            assert api.process.poll() is None
        scoring = ScoringThread(api.url)
        scoring.start()
        while b"adjudge_calls_at_engine 0" in get(first, "/metrics").content:
            assert scoring.is_alive()
        first.process.send_signal(blow)
        rewards = scoring.rewards()
        assert None not in rewards
        assert b'adjudge_judgements_total{failure="",outcome="judged"}' in get(second, "/metrics").content
        first.process.kill()


@pytest.mark.slow
def test_rewards_equal_those_of_a_service_with_its_own_judge(
    monkeypatch: pytest.MonkeyPatch, ports: tuple[int, int], tmp_path: Path
) -> None:
    monkeypatch.setenv("ADJUDGE_SIGNING_SECRET", "the same wherever it is needed")
    urls = [part for port in ports for part in ("--judge", f"http://127.0.0.1:{port}")]
    with ExitStack() as stack:
        for port, name in zip(ports, "ab", strict=True):
            stack.enter_context(judge(port, tmp_path / name, "scripted://hash"))
        service = stack.enter_context(listening("api", "--port", "0", *urls, ADJUDGE_DATA_DIR=str(tmp_path / "api")))
        client = stack.enter_context(Client(service.url))
        service.wait_until_ready(client)
        answer = scored(client, RESPONSES)
        assert [response.reward for response in answer.groups[0].responses] == expected(tmp_path)
        assert answer.usage.judge_calls == len(RESPONSES) * 12


@pytest.mark.slow
def test_a_judge_started_after_its_api_is_found(api: Service, ports: tuple[int, int], tmp_path: Path) -> None:
    with Client(api.url) as client:
        assert not client.ready()
        with judge(ports[1], tmp_path / "b", "scripted://yes"):
            api.wait_until_ready(client)
            assert {r.reward for r in scored(client, RESPONSES[:2]).groups[0].responses} == {1.0}


def test_requests_go_to_the_judge_that_they_name(ports: tuple[int, int], tmp_path: Path) -> None:
    judges = f'{{"default": "http://127.0.0.1:{ports[0]}", "kind": "http://127.0.0.1:{ports[1]}"}}'
    with (
        judge(ports[0], tmp_path / "a", "scripted://no"),
        judge(ports[1], tmp_path / "b", "scripted://yes"),
        listening("api", "--port", "0", ADJUDGE_DATA_DIR=str(tmp_path / "api"), ADJUDGE_JUDGES=judges) as service,
        Client(service.url) as client,
    ):
        service.wait_until_ready(client)
        group = {"id": "g", "prompt": "p", "responses": ["x"]}
        by_default = client.rewards(groups=[group], rubric=RUBRIC)
        by_name = client.rewards(groups=[group], rubric=RUBRIC, judge="kind")
        assert by_default.groups[0].responses[0].reward == 0.0
        assert by_name.groups[0].responses[0].reward == 1.0
        page = get(service, "/metrics").text
        counted = [line for line in page.splitlines() if line.startswith("adjudge_judgements_total{")]
        by_kind = [float(line.split()[-1]) for line in counted if 'judge="kind"' in line]
        assert sum(by_kind) == sum(float(line.split()[-1]) for line in counted) - sum(by_kind) == 12.0
        assert page.count("# HELP adjudge_judgements_total") == 1
        assert f'adjudge_pool_member_up{{judge="kind",member="http://127.0.0.1:{ports[1]}"}} 1.0' in page


@pytest.mark.parametrize("token", [None, ""])
def test_a_judge_without_a_token_refuses_to_listen_off_loopback(token: str | None) -> None:
    environment = {"ADJUDGE_JUDGE_TOKEN": token}
    assert "ADJUDGE_JUDGE_TOKEN" in failure_of(
        adjudge("judge", "--host", "0.0.0.0", "--engine", "scripted://hash", env=environment)
    )


@pytest.mark.parametrize(
    ("judges", "said"),
    [
        ("", "does not name the default judge"),
        ("localhost:8001", "begin it with http://"),
        ("{", "not a JSON object"),
        ('{"a": "http://x"}', "does not name"),
    ],
)
def test_an_api_without_judges_in_its_settings_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, judges: str, said: str
) -> None:
    monkeypatch.setenv("ADJUDGE_JUDGES", judges)
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path))
    assert said in failure_of(adjudge("api", "--port", "0"))
