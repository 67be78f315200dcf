"""Processes whose engine dies permanently exit with its error; those whose endpoint is not up yet wait for it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.ports import unused_port
from tests.fixtures.waiting import wait_until
from tests.services.processes import Service, get, listening
from trainer_client import Client

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("migrated")]

DYING_ENGINE = """
import os
from judge_server.engines.scripted import ScriptedEngine
dead = lambda: os.path.exists(os.environ["DEATH"])
ScriptedEngine.fatal_error = property(lambda engine: "the model has died" if dead() else "")
"""
COMMANDS = [pytest.param("judge", marks=pytest.mark.slow), "serve"]


@contextmanager
def endpoint(port: int, log: Path) -> Iterator[None]:
    """Run an OpenAI-compatible chat server on that port; its one model is `judge-1`."""
    words = [sys.executable, "-m", "tests.judge_server.faults.endpoint"]
    words += ["127.0.0.1", str(port), str(log), "none"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield
        finally:
            child.kill()


def ended(process: Service) -> str:
    """Wait until the process exits with an error; return its output."""
    assert process.process.wait(60) == 1
    wait_until(lambda: "error:" in "".join(process.said))
    return "".join(process.said)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_whose_engine_has_died_permanently_exits_with_the_error(command: str, tmp_path: Path) -> None:
    death = tmp_path / "death"
    mortal = ("--port", "0", "--engine", "scripted://yes")
    with (
        listening(command, *mortal, first=DYING_ENGINE, DEATH=str(death)) as process,
        Client(process.url) as client,
    ):
        process.wait_until_ready(client)
        death.touch()
        assert "error: the model has died" in ended(process)
        assert "Traceback" not in "".join(process.said)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("endpoints", [pytest.param(1, marks=pytest.mark.slow), 2], ids=["one endpoint", "a pool"])
def test_a_process_waits_for_an_endpoint_that_is_not_up_yet(command: str, endpoints: int, tmp_path: Path) -> None:
    ports = [unused_port() for _ in range(endpoints)]
    engine = " ".join(f"openai+http://127.0.0.1:{port}/v1" for port in ports)
    with (
        listening(command, "--port", "0", "--engine", engine) as process,
        Client(process.url) as client,
    ):
        wait_until(lambda: "retrying" in "".join(process.said))
        said = get(process, "/readyz").json()["detail"]
        assert "waiting for an endpoint" in said
        assert str(ports[0]) not in said  # /readyz is public
        with endpoint(ports[-1], tmp_path / "log"):
            process.wait_until_ready(client)
        assert "".join(process.said).count("retrying") == 1


@pytest.mark.parametrize("others", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["one endpoint", "a pool"])
def test_a_process_does_not_wait_for_a_model_that_is_not_served(others: int, tmp_path: Path) -> None:
    port = unused_port()
    urls = [f"openai+http://127.0.0.1:{p}/v1?model=another" for p in (port, *(unused_port() for _ in range(others)))]
    with (
        endpoint(port, tmp_path / "log"),
        listening("judge", "--port", "0", "--engine", " ".join(urls)) as process,
    ):
        assert "does not serve 'another' but judge-1; correct the engine URL's ?model=" in ended(process)
