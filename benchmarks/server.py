"""Run servers in processes of their own: `adjudge` on a free loopback port with its own store, or others."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil
from tests.fixtures.ports import unused_port

START_S = 300.0
"""Timeout for the start of a server, including its judge: vLLM on a busy CPU needs minutes."""

STOP_S = 60.0
"""Seconds from SIGTERM within which a process must end."""

_LAST_WORDS = 3000


class ServerProcess:
    """A server in a process that can be killed, paused and restarted. Its standard input is open while it runs.

    Args:
        name: its name in messages.
        command: how it is started.
        environment: its environment variables.
        log: the file to which its output is appended.
        ready: a URL that answers 200 when the server is ready, or a text that its output then has.

    Attributes:
        kills: the times at which it was killed, in seconds since 1970.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path, ready: str
    ) -> None:
        self.name = name
        self.log = log
        self.kills: list[float] = []
        self._command, self._environment, self._ready = command, environment, ready
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0

    @property
    def pid(self) -> int | None:
        """The process id, None if it is not running."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        """Start the process without waiting until it is ready."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    def wait_until_ready(self) -> None:
        """Wait until the server is ready. Raises `RuntimeError` if it has ended or is not ready in time."""
        until = time.monotonic() + START_S
        while not self._is_ready():
            if self.pid is None:
                status = self._running().returncode
                raise RuntimeError(f"{self.name} exited with status {status}; {self._last_words()}")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} was not ready in {START_S:g} s; {self._last_words()}")
            time.sleep(0.1)

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._running().send_signal(number)

    def kill(self) -> None:
        """Kill the process and record the time."""
        self.kills.append(time.time())
        self._running().kill()
        self._reap()

    def stop(self) -> None:
        """Send SIGTERM, as a supervisor does, and wait until the process has ended."""
        self._running().terminate()
        try:
            self._reap(STOP_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.name} did not stop in {STOP_S:g} s; {self._last_words()}") from None

    def close(self, within_s: float = 0.0) -> None:
        """End the process and its children, if it runs; kill those that have not ended within some seconds."""
        if self._process is None:
            return
        pid = self.pid
        family = [] if pid is None else psutil.Process(pid).children(recursive=True)
        if within_s:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._reap(within_s)
        self._process.kill()
        self._reap()
        for child in psutil.wait_procs(family, timeout=within_s)[1]:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def _reap(self, within_s: float | None = None) -> None:
        process = self._running()
        if process.stdin is not None:
            process.stdin.close()
        process.wait(within_s)

    def _is_ready(self) -> bool:
        if "://" not in self._ready:
            with self.log.open("rb") as log:
                log.seek(self._read_from)
                return self._ready.encode() in log.read()
        try:
            return httpx2.get(self._ready, timeout=2.0).status_code == 200
        except httpx2.TransportError:
            return False

    def _last_words(self) -> str:
        text = self.log.read_text(errors="replace").strip()[-_LAST_WORDS:] if self.log.exists() else ""
        return f"the end of its log: {text}" if text else "it logged nothing; run adjudge doctor"


class AdjudgeProcess(ServerProcess):
    """An `adjudge` process that gets a free port and a data folder of its own; of ADJUDGE_…, it sees only `settings`.

    With `ready_message`, the process has no port. `descriptors` limits its open files and connections.
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
        self.port = unused_port()
        limit = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"]
        port = ["--port", str(self.port)] if ready_message is None else []
        command = [*limit, sys.executable, "-m", "adjudge_services.cli", *arguments, *port]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ADJUDGE_")}
        environment = {**inherited, "ADJUDGE_DATA_DIR": str(folder / name), **settings}
        super().__init__(name, command, environment, folder / f"{name}.log", ready_message or f"{self.url}/readyz")

    @property
    def url(self) -> str:
        """The process's own address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running_service(engine: str, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run `adjudge serve` with an engine and ADJUDGE_… settings; yield its URL and its process, for measuring."""
    with running_process("serve", "--engine", engine, **settings) as (url, process):
        yield url, process


@contextmanager
def running_process(*arguments: str, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run an `adjudge` process that listens on a free port; when it is ready, yield its URL and the process.

    ADJUDGE_… variables of this process apply to it too, but for the folder of its data.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = {name: value for name, value in os.environ.items() if name != "ADJUDGE_DATA_DIR"}
        server = AdjudgeProcess(arguments[0], Path(folder), arguments, given | settings)
        with _until_closed(server) as process:
            yield server.url, process


@contextmanager
def running_module(module: str, *arguments: object) -> Iterator[tuple[str, psutil.Process]]:
    """Run `python -m MODULE PORT ARGUMENTS…`, a server with `/health`; yield its URL and process when it is ready."""
    port = unused_port()
    root = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", module, str(port), *map(str, arguments)]
    with running(command, dict(os.environ), f"{root}/health") as process:
        yield root, process


@contextmanager
def running(command: list[str], environment: dict[str, str], ready: str) -> Iterator[psutil.Process]:
    """Run a server until the end of the block, after the URL `ready` answers 200; its children end with it."""
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(" ".join(command[1:]), command, environment, Path(folder, "log"), ready)
        with _until_closed(server) as process:
            yield process


@contextmanager
def _until_closed(server: ServerProcess) -> Iterator[psutil.Process]:
    server.start()
    try:
        server.wait_until_ready()
        assert server.pid is not None
        yield psutil.Process(server.pid)
    finally:
        server.close(within_s=30.0)
