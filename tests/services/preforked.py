"""`adjudge` processes forked from one that has imported the service: the import takes 1.8 s of processor time.

Tests call `start`. Run as a program, this module is the process that the others are forked from; it reads requests from
a socket, and ends, with those that still run, when its standard input is closed.
"""

import atexit
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TextIO

PRELOADED = (
    "adjudge_services.cli.main", "adjudge_services.wiring", "adjudge_services.judge_process", "adjudge_services.worker",
    "judge_server.engines.scripted", "judge_server.remote", "uvicorn",
)  # fmt: skip
LONGEST_REQUEST = 2**20


class ForkedProcess:
    """`adjudge` with these arguments and environment; used like a `subprocess.Popen` whose stderr is a pipe of text.

    It runs the code `first` before the command, after the imports. With `stderr=None` it inherits the caller's stderr.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        first: str = "",
        stderr: int | None = subprocess.PIPE,
    ) -> None:
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.getcwd(),
            "first": first,
        }
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
        self._connection.connect(str(_start_parent()))
        self.stderr: TextIO | None = None
        if stderr is None:
            socket.send_fds(self._connection, [json.dumps(request).encode()], [2])
        else:
            reading, writing = os.pipe()
            socket.send_fds(self._connection, [json.dumps(request).encode()], [writing])
            os.close(writing)
            self.stderr = os.fdopen(reading, encoding="utf-8")
        self.pid = int(self._connection.recv(100))
        self._status: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended, negative if a signal ended it."""
        if self._status is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._status = int(self._connection.recv(100))
            self._connection.close()
        return self._status

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to stop."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[str] | ForkedProcess


def write_command(folder: Path) -> None:
    """Write a command `adjudge` into a folder, for shells: it forks, and has the caller's streams and folder."""
    real = '-c "from adjudge_services.cli.main import app; app()"'
    shim = Path(__file__).with_name("preforked_command.py")
    started = f"-I -S '{shim}' '{_start_parent()}'" if hasattr(os, "pidfd_open") else real
    command = folder / "adjudge"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' {started} \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)


def start(
    arguments: Sequence[str], environment: Mapping[str, str], first: str = "", stderr: int | None = subprocess.PIPE
) -> Process:
    """Start `adjudge`; where pidfds are missing, as on macOS, as a new process that imports everything."""
    if hasattr(os, "pidfd_open"):
        return ForkedProcess(arguments, environment, first, stderr)
    code = f"{first}\nfrom adjudge_services.cli.main import app\napp()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=stderr, text=True
    )


@cache
def _start_parent() -> Path:
    """Start the process that the others are forked from, once; return the path of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="adjudge-preforked-")
    path = Path(folder.name) / "socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(100)
    command = [sys.executable, "-m", __name__, str(listener.fileno())]
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], cwd=root)
    listener.close()

    def stop() -> None:
        assert parent.stdin is not None
        parent.stdin.close()
        parent.wait()
        folder.cleanup()

    atexit.register(stop)
    return path


def _fork_on_request(listener: socket.socket) -> str:
    """Fork a process for each request and report its exit status; in the child, return the code to run first."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == sys.stdin.fileno():
                    for pid, _ in running.values():  # such as a server whose shell was killed
                        os.kill(pid, signal.SIGTERM)
                    os._exit(0)
                if key.fileobj is not listener:
                    pid, connection = running.pop(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with suppress(OSError), connection:
                        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                    continue
                connection = listener.accept()[0]
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LONGEST_REQUEST)
                message, streams, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    for descriptor, (_, other) in running.items():
                        os.close(descriptor)
                        other.close()
                    return _prepare(json.loads(message), streams)
                for stream in streams:
                    os.close(stream)
                connection.send(str(pid).encode())
                descriptor = os.pidfd_open(pid)
                running[descriptor] = pid, connection
                selector.register(descriptor, selectors.EVENT_READ)


def _prepare(request: dict[str, Any], streams: Sequence[int]) -> str:
    """Set up the forked process as if it had been started directly; return the code to run first.

    `streams` are its three standard streams, or only its standard error.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    standard = (nothing, nothing, *streams) if len(streams) == 1 else tuple(streams)
    for target, source in enumerate(standard):
        os.dup2(source, target)
    for stream in (nothing, *streams):
        os.close(stream)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["adjudge", *request["arguments"]]
    _widen(request["environment"].get("COLUMNS"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first: str = request["first"]
    return first


def _widen(columns: str | None) -> None:
    """Give the consoles the width of the environment, which they read when they were imported."""
    from adjudge_services.cli import output

    for console in (output.out, output.err):
        if columns is not None:
            console.width = int(columns)


def main() -> None:
    """Import the service with its pages, fork on request, and run `adjudge` in each child."""
    for name in PRELOADED:
        importlib.import_module(name)
    from adjudge_services.cli.main import app
    from judge_server.api.console import load_templates

    load_templates()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        first = _fork_on_request(listener)
    exec(first, {})  # the test's own code
    app(prog_name="adjudge")


if __name__ == "__main__":
    main()
