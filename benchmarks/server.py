"""A service in a process of its own, on a free loopback port, with a store of its own, stopped at the end."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import psutil


@contextmanager
def running_service(engine: str, **settings: str) -> Iterator[tuple[str, psutil.Process]]:
    """`adjudge serve` with this engine and these ADJUDGE_… settings: its address, and its process to measure."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "adjudge_services.cli", "serve", "--port", str(port), "--engine", engine]
        environment = os.environ | {"ADJUDGE_DATA_DIR": folder} | settings
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with {process.returncode}; run adjudge doctor")
        try:
            if httpx2.get(f"{url}/readyz", timeout=2.0).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the service did not become ready in two minutes")
