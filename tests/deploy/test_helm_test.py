"""What `helm test` runs, run against a service: it passes where a reward comes back, and fails where none does."""

import os
import subprocess
import sys

import pytest

from tests.deploy.chart import FOLDER, containers, environment
from tests.deploy.tools import needs_tools
from tests.services.processes import serving
from trainer_client import Client

SCRIPT = FOLDER / "files/score.py"


def scored(url: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "ADJUDGE_URL": url, "ADJUDGE_API_KEY": ""}
    return subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=False)


def test_it_says_which_reward_came_back(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path))
    with serving("scripted://yes") as service:
        with Client(service.url) as client:
            service.wait_until_ready(client)
        passed = scored(service.url)
    assert passed.stdout == "status scored, reward 1.0\n"
    assert passed.returncode == 0


def test_it_fails_where_nobody_answers() -> None:
    assert scored("http://127.0.0.1:9").returncode != 0


@needs_tools
def test_the_pod_runs_this_very_script_with_what_it_reads() -> None:
    pod = dict(containers("production"))["Pod/adjudge-test-score/score"]
    assert pod["args"][0].strip() == SCRIPT.read_text(encoding="utf-8").strip()
    assert environment(pod).keys() == {"ADJUDGE_URL", "ADJUDGE_API_KEY"}
