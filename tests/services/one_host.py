"""A service on a fixed port, which a test can stop, kill and restart."""

from contextlib import ExitStack
from pathlib import Path

from tests.fixtures.ports import unused_port
from tests.services.processes import Service, listening
from trainer_client import Client

SECRET = {"ADJUDGE_SIGNING_SECRET": "the same wherever it is needed"}


class RestartableService:
    """A service with its files in a folder; not started yet."""

    def __init__(self, folder: Path, engine: str, **settings: str) -> None:
        self._port = unused_port()
        self._engine = engine
        self._settings = {"ADJUDGE_DATA_DIR": str(folder), **SECRET, **settings}
        self._stack = ExitStack()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.service: Service = self._stack.enter_context(
            listening("serve", "--port", str(self._port), "--engine", self._engine, **self._settings)
        )
        with Client(self.url) as client:
            self.service.wait_until_ready(client)

    def stop(self) -> None:
        """Stop it gracefully, as a cluster does."""
        self.service.stop()
        self.kill()

    def kill(self) -> None:
        """Kill it if it is running."""
        self._stack.close()
