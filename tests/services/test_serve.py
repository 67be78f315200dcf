"""`adjudge serve` as a process: it listens on loopback only, becomes ready, judges, and stops on request."""

import json
import runpy
import signal
import socket
from pathlib import Path

import httpx2
import pytest

from tests.services.command import adjudge, failure_of
from tests.services.processes import Service, get, serving
from trainer_client import Client

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = [{"id": "a", "description": "Is right."}]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org", ""])
def test_without_a_key_it_refuses_to_listen_off_loopback(host: str) -> None:
    result = adjudge("serve", "--host", host, "--engine", "scripted://hash", exit_code=1)
    said = " ".join(result.stderr.split())
    assert f"refusing to start on {host!r}" in said
    assert "adjudge keys create --scope score" in said
    assert "127.0.0.1" in said


@pytest.mark.parametrize("engine", ["ollama://m", "scripted://maybe", "llamacpp://m?contxt=3"])
def test_an_unknown_engine_is_refused_in_one_line(engine: str) -> None:
    assert "error" in failure_of(adjudge("serve", "--port", "0", "--engine", engine))


def test_a_port_in_use_is_reported_in_one_line_with_advice() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = adjudge("serve", "--port", port, "--engine", "scripted://hash")
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert "--port" in said


@pytest.mark.processes
def test_it_becomes_ready_judges_and_stops_cleanly_on_sigterm(service: Service) -> None:
    with Client(service.url, run="r") as client:
        service.wait_until_ready(client)
        answer = client.rewards(
            groups=[{"id": "g", "prompt": "p", "responses": ["yes", "no"]}], rubric={"criteria": RUBRIC}
        )
        assert all(response.reward is not None for response in answer.groups[0].responses)
        published = client.publish_rubric("team/a", RUBRIC)
        assert client.rubric("team/a").digest == published.digest
    assert get(service, "/docs").status_code == 200
    assert json.loads(get(service, "/healthz").text) == {"status": "ok"}
    assert service.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in "".join(service.said)


@pytest.mark.processes
def test_it_says_when_the_judge_is_ready(service: Service) -> None:
    with Client(service.url) as client:
        service.wait_until_ready(client)
    assert service.stop() in (0, -signal.SIGTERM)
    assert sum("judge ready: scripted" in line for line in service.said) == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("engine", "shown"),
    [("scripted://yes", "1.0 {'method': 0.9"), ("scripted://yes?context=1", "None {'method': '")],
)
def test_the_quickstart_prints_rewards_with_probabilities_or_with_the_reason_why_there_is_none(
    engine: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(engine) as running:
        monkeypatch.setattr("trainer_client.Client", lambda _: Client(running.url))
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "quickstart.py"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(shown)
    assert "'answer': " in second


@pytest.mark.processes
def test_a_rubric_published_before_a_kill_exists_after_the_next_start(service: Service) -> None:
    with Client(service.url) as client:
        published = client.publish_rubric("kept", RUBRIC)
    service.process.kill()
    service.process.wait()
    with serving("scripted://yes") as next_one, Client(next_one.url) as client:
        assert client.rubric("kept") == published


@pytest.mark.processes
def test_a_reranking_client_gets_responses_ranked_by_a_published_rubric(shared_service: Service) -> None:
    texts = ["no", "yes", "perhaps"]
    with Client(shared_service.url) as client:
        client.publish_rubric("team/ranked", RUBRIC)
        group = {"id": "g", "prompt": "p", "responses": texts}
        rewards = [each.reward for each in client.rewards([group], "team/ranked").groups[0].responses]
    body = {"model": "team/ranked", "query": "p", "documents": texts}
    ranked = httpx2.post(f"{shared_service.url}/v1/rerank", json=body).json()["results"]
    assert {each["index"]: each["relevance_score"] for each in ranked} == dict(enumerate(rewards))
    assert [each["relevance_score"] for each in ranked] == sorted(rewards, reverse=True)
    body = {"model": "team/ranked", "text_1": "p", "text_2": texts}
    scored = httpx2.post(f"{shared_service.url}/v1/score", json=body).json()["data"]
    assert [each["score"] for each in scored] == rewards
