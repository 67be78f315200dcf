"""Run a service in a separate process, on a free loopback port and with its own store."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
from tests.fixtures.ports import unused_port

START_S = 300.0
"""Timeout for the start of a service, including its judge: vLLM on a busy CPU needs minutes."""


@contextmanager
def running_service(engine: str, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run `adjudge serve` with an engine and ADJUDGE_… settings; yield its URL and its process, for measuring."""
    with running_process("serve", "--engine", engine, **settings) as (url, process):
        yield url, process


@contextmanager
def running_process(*arguments: str, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run an `adjudge` process that listens on a free port; when it is ready, yield its URL and the process."""
    port = unused_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "adjudge_services.cli", *arguments, "--port", str(port)]
        environment = os.environ | {"ADJUDGE_DATA_DIR": folder} | settings
        with running(command, environment, f"http://127.0.0.1:{port}/readyz") as process:
            yield f"http://127.0.0.1:{port}", process


@contextmanager
def running(command: list[str], environment: dict[str, str], ready: str) -> Iterator[psutil.Process]:
    """Run a server until the end of the block, after the URL `ready` answers 200; its children end with it."""
    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder, "log")
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            _wait_until_ready(ready, process, log_file)
            yield psutil.Process(process.pid)
        finally:
            _end(process)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{_command(process)} exited with status {process.returncode}; {_log_end(log_file)}")
        try:
            if httpx2.get(url, timeout=2.0).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"{_command(process)} was not ready in {START_S:.0f} s; {_log_end(log_file)}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(family, timeout=10)[1]:
        child.kill()


def _command(process: "subprocess.Popen[bytes]") -> str:
    return " ".join(map(str, process.args[1:])) if isinstance(process.args, list) else str(process.args)


def _log_end(log_file: Path) -> str:
    text = log_file.read_text(errors="replace").strip()[-1500:]
    return f"the end of its log: {text}" if text else "it logged nothing; run adjudge doctor"
