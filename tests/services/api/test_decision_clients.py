"""Clients of decision models, installed from the registry, can read the answers of `POST /v1/systemone`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services import decision_clients
from tests.services.processes import serving
from trainer_client import Client

pytestmark = [pytest.mark.install, pytest.mark.slow]

SCRIPT = Path(decision_clients.__file__)

PACKAGES = {
    "one": ("typesafe-sdk==0.7.5", "verifiers==0.4.0", "deepeval==4.3.1"),
    "two": ("autorubric[typesafe]==1.6.1",),
}
"""Two environments, because the clients' requirements conflict. LiteLLM comes with autorubric."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a service."""
    with serving("scripted://hash") as service, Client(service.url) as client:
        service.wait_until_ready(client)
        yield service.url


@pytest.fixture(scope="module", params=PACKAGES)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with some of the clients."""
    environment = tmp_path_factory.mktemp("clients") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[request.param]]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.skip(f"{', '.join(PACKAGES[request.param])} cannot be installed here: {done.stderr[-300:]}")
    return python


def test_each_client_reads_probabilities_from_the_answers(python: Path, url: str) -> None:
    packages = subprocess.run([str(python), "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    clients = ("autorubric", "litellm") if "autorubric" in packages else ("typesafe", "verifiers", "deepeval")
    expected = {"typesafe": 6, "verifiers": 1, "deepeval": 1, "autorubric": 6, "litellm": 1}
    for name in clients:
        command = [str(python), str(SCRIPT), name, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=python.parent)
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
        probabilities = json.loads(done.stdout.splitlines()[-1])
        assert len(probabilities) == expected[name], name
        assert all(0 <= probability <= 1 for probability in probabilities), name
        assert len(set(probabilities)) > 1 or len(probabilities) == 1
