"""The scripts and probes of the chart, run against a real service: `helm test` passes if a reward is returned."""

import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from tests.deploy.chart import FOLDER, containers, environment
from tests.deploy.tools import needs_tools
from tests.services.processes import serving
from trainer_client import Client

SCRIPT = FOLDER / "files/score.py"


def scored(url: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "ADJUDGE_URL": url, "ADJUDGE_API_KEY": ""}
    return subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a ready service."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        with serving("scripted://yes") as service:
            with Client(service.url) as client:
                service.wait_until_ready(client)
            yield service.url


def test_it_prints_the_returned_reward(url: str) -> None:
    passed = scored(url)
    assert passed.stdout == "status scored, reward 1.0\n"
    assert passed.returncode == 0


def test_it_fails_if_the_service_is_unreachable() -> None:
    assert scored("http://127.0.0.1:9").returncode != 0


@needs_tools
def test_the_pod_runs_this_script_with_the_variables_that_it_reads() -> None:
    pod = dict(containers("production"))["Pod/adjudge-test-score/test"]
    assert pod["args"][0].strip() == SCRIPT.read_text(encoding="utf-8").strip()
    assert environment(pod).keys() == {"ADJUDGE_URL", "ADJUDGE_API_KEY"}


@needs_tools
def test_a_service_answers_every_probe_of_the_api(url: str) -> None:
    api = dict(containers("production"))["Deployment/adjudge-api/api"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        with urlopen(url + api[probe]["httpGet"]["path"], timeout=10) as answer:
            assert answer.status == 200
