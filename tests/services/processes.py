"""`adjudge serve`, `api` and `judge` as separate processes on a free loopback port, stopped at the end."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from tests.services.preforked import Process, start
from trainer_client import Client

_RUNNING = re.compile(r"Adjudge (?:judge )?with .* on (http://127\.0\.0\.1:\d+)")


@dataclass
class Service:
    """A running service: its address, its process and its output."""

    process: Process
    said: list[str] = field(default_factory=list)
    url: str = ""
    listening: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        """Read the output of the process until it ends; find the address in it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if match := _RUNNING.search(line):
                self.url = match[1]
                self.listening.set()
        self.listening.set()

    def wait_until_ready(self, client: Client) -> None:
        """Wait until the service is ready."""
        pause = threading.Event()
        for _ in range(12_000):
            if client.ready():
                return
            assert self.process.poll() is None, "".join(self.said)
            pause.wait(0.01)
        raise AssertionError("".join(self.said))

    def stop(self) -> int:
        """Send SIGTERM, as a supervisor does; return the exit status."""
        self.process.terminate()
        return self.process.wait(30)


@contextmanager
def serving(engine: str, *options: str) -> Iterator[Service]:
    """Run a service that listens; its judge may still be loading."""
    with listening("serve", "--port", "0", "--engine", engine, *options) as service:
        yield service


@contextmanager
def scoring(engine: str = "scripted://hash", run: str = "r") -> Iterator[tuple[Service, Client]]:
    """Run a service, and yield it once it is ready, with a client whose requests are recorded under a run."""
    with serving(engine) as service, Client(service.url, run=run) as client:
        service.wait_until_ready(client)
        yield service, client


@contextmanager
def listening(*arguments: str, first: str = "", **settings: str) -> Iterator[Service]:
    """Run an `adjudge` process that listens, with these settings; it runs the code `first` before the command."""
    process = start(arguments, os.environ | settings, first)
    service = Service(process)
    listener = threading.Thread(target=service.listen)
    listener.start()
    try:
        assert service.listening.wait(60)
        assert service.url, "".join(service.said)
        yield service
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        listener.join()


def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the user's settings from the environment."""
    for name in list(os.environ):
        if name.startswith("ADJUDGE_") and not name.startswith("ADJUDGE_TEST_"):
            monkeypatch.delenv(name)


@contextmanager
def ready_service(engine: str, folder: Path, **settings: str) -> Iterator[Service]:
    """Run a service with this data folder, these settings and none of the user's; yield it once it is ready."""
    given = {"ADJUDGE_DATA_DIR": str(folder), **settings}
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as patched:
            without_settings(patched)
            service = running.enter_context(listening("serve", "--port", "0", "--engine", engine, **given))
        with Client(service.url) as client:
            service.wait_until_ready(client)
        yield service


def get(service: Service, path: str) -> httpx2.Response:
    """Send a GET request."""
    return httpx2.get(service.url + path, timeout=30.0)
