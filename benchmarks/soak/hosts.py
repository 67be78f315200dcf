"""A host: one `adjudge` process with its own data folder and port, which can be killed, paused and restarted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2
from tests.fixtures.ports import unused_port

_START_S = 120.0
_STOP_S = 60.0
_LAST_WORDS = 3000


class AdjudgeProcess:
    """An `adjudge` process.

    Without `ready_message`, the process listens on a port and is ready when `/readyz` answers 200. With it, the process
    has no port and is ready when the message appears in its log. `descriptors` limits its open files and connections.
    `kills` lists the times, in seconds since 1970, at which it was killed.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        settings: Mapping[str, str],
        *,
        ready_message: str | None = None,
        descriptors: int | None = None,
    ) -> None:
        self.name = name
        self.port = unused_port()
        self.kills: list[float] = []
        self._listens = ready_message is None
        self._ready_message = ready_message
        self._log = folder / f"{name}.log"
        port = ["--port", str(self.port)] if self._listens else []
        limit = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"]
        self._command = [*limit, sys.executable, "-m", "adjudge_services.cli", *arguments, *port]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ADJUDGE_")}
        self._environment = inherited | {"ADJUDGE_DATA_DIR": str(folder / name)} | settings
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    @property
    def url(self) -> str:
        """The process's own address, bypassing all links."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the process without waiting until it is ready."""
        self._read_from = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        """Wait until the process is ready."""
        until = time.monotonic() + _START_S
        while not self._ready():
            if self.pid is None:
                raise RuntimeError(f"{self.name} exited unexpectedly; the end of its log: {self.last_words()}")
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{self.name} was not ready in {_START_S:g} s; the end of its log: {self.last_words()}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process and record the time."""
        assert self._process is not None
        self.kills.append(time.time())
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Send SIGTERM, as a supervisor does, and wait until the process has ended."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(
                f"{self.name} did not stop in {_STOP_S:g} s; the end of its log: {self.last_words()}"
            ) from None

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """Kill the process if it is running, paused or not."""
        if self.pid is not None and self._process is not None:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """Return the end of the process's log."""
        return self._log.read_text(errors="replace")[-_LAST_WORDS:] if self._log.exists() else "nothing"

    def _ready(self) -> bool:
        if self._ready_message is not None:
            with self._log.open("rb") as log:
                log.seek(self._read_from)
                return self._ready_message.encode() in log.read()
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=2.0).status_code == 200
        except httpx2.TransportError:
            return False
