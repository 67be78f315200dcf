"""An api without reachable judges: it stays ready, refuses requests that need a judge, and serves the others."""

from pathlib import Path

import pytest

from tests.fixtures.ports import unused_port
from tests.services.processes import get, listening
from trainer_client import Client, NotReady

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}]}


def group(response: str) -> dict[str, object]:
    """One response to one prompt."""
    return {"id": "g", "prompt": "p", "responses": [response]}


def test_an_api_whose_judge_has_gone_stays_ready_and_refuses_only_what_needs_a_judge(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_CACHE_URL", redis_url)
    port = unused_port()
    url = ("--judge", f"http://127.0.0.1:{port}")
    with (
        listening("api", "--port", "0", *url, ADJUDGE_DATA_DIR=str(tmp_path / "api")) as api,
        Client(api.url, retries=0) as client,
    ):
        assert get(api, "/readyz?only=replica").status_code == 503
        judging = ("judge", "--port", str(port), "--engine", "scripted://yes")
        with listening(*judging, ADJUDGE_DATA_DIR=str(tmp_path / "judge")):
            api.wait_until_ready(client)
            assert get(api, "/readyz?only=replica").json() == {"checks": {"replica": True}}
            known = client.rewards([group(f"Known in {tmp_path}.")], RUBRIC).groups[0].responses[0].reward
            client.publish_rubric("team/a", RUBRIC["criteria"])
        with pytest.raises(NotReady, match="no judge is available"):
            client.rewards([group(f"New in {tmp_path}.")], RUBRIC)
        while get(api, "/readyz").status_code == 200:  # until two health checks of the judge have failed
            assert api.process.poll() is None
        assert get(api, "/readyz?only=replica").status_code == 200
        assert client.rubric("team/a").version == 1
        again = client.rewards([group(f"Known in {tmp_path}.")], RUBRIC)
        assert (again.groups[0].responses[0].reward, again.usage.cached) == (known, 1)
        with listening(*judging, ADJUDGE_DATA_DIR=str(tmp_path / "judge")):
            api.wait_until_ready(client)
            assert client.rewards([group(f"New in {tmp_path}.")], RUBRIC).groups[0].responses[0].reward == 1.0
