"""A service on a port of its own, which a test stops, kills and starts again there."""

from contextlib import ExitStack
from pathlib import Path

from tests.fixtures.ports import unused_port
from tests.services.processes import Service, listening
from trainer_client import Client

SECRET = {"ADJUDGE_FENCE_SECRET": "the same wherever it is needed"}


class RestartableService:
    """A service whose files are in a folder; not started."""

    def __init__(self, folder: Path, engine: str, **settings: str) -> None:
        self._port = unused_port()
        self._engine = engine
        self._settings = {"ADJUDGE_DATA_DIR": str(folder), **SECRET, **settings}
        self._stack = ExitStack()
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it judges."""
        self.service: Service = self._stack.enter_context(
            listening("serve", "--port", str(self._port), "--engine", self._engine, **self._settings)
        )
        with Client(self.url) as client:
            self.service.wait_until_ready(client)

    def stop(self) -> None:
        """Stop it as a cluster does, which lets it end what it has begun."""
        self.service.stop()
        self.kill()

    def kill(self) -> None:
        """Kill it, if it runs."""
        self._stack.close()
