"""Control of a contender's process: start it, run passes, end it."""

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.driving import DriverConfig, Pass, PassResult

START_S = 300.0
"""Timeout for the imports of a contender on a cold and busy machine."""

QUIET = {"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "ERROR_REPORTING": "0", "HF_HUB_OFFLINE": "1"}
"""Environment variables that turn off all network traffic except to the measured server."""

LONGEST_LINE = 64 * 2**20


class PeerUnavailable(Exception):
    """The contender cannot be measured on this machine; the message says why."""


class Driver:
    """The running process of a contender."""

    def __init__(self, process: asyncio.subprocess.Process, log_file: Path) -> None:
        self._process = process
        self._log_file = log_file

    async def run_pass(self, asked: Pass, timeout_s: float) -> PassResult:
        """Run a pass. Raises `RuntimeError` if it takes too long or the process ends."""
        return PassResult(**await self._exchange(json.dumps(asdict(asked)), timeout_s))

    async def start(self, setting: DriverConfig) -> None:
        """Configure the contender and wait until it is ready. Raises `PeerUnavailable` if it fails."""
        try:
            await self._exchange(json.dumps(asdict(setting)), START_S)
        except RuntimeError as error:
            raise PeerUnavailable(str(error)) from error

    async def _exchange(self, line: str, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
            answer = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise RuntimeError(f"no answer within {timeout_s:.0f} s") from None
        except ConnectionError:
            answer = b""
        if not answer:
            log = self._log_file.read_text(errors="replace").strip().splitlines()
            raise RuntimeError(log[-1] if log else "the process ended without a message")
        message: dict[str, Any] = json.loads(answer)
        return message


@asynccontextmanager
async def driver(python: str, module: str, setting: DriverConfig) -> AsyncIterator[Driver]:
    """Run `benchmarks.peers.drivers.MODULE` with a Python within the block. Raises `PeerUnavailable`."""
    if not shutil.which(python):
        raise PeerUnavailable(f"{python} does not exist; run make bench-peers")
    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder, "log")
        environment = os.environ | QUIET | {"INSPECT_CACHE_DIR": folder, "DEEPEVAL_HOME": folder}
        with log_file.open("wb") as log:  # noqa: ASYNC230 - opened for the child process
            process = await asyncio.create_subprocess_exec(
                python,
                "-m",
                f"benchmarks.peers.drivers.{module}",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment,
                limit=LONGEST_LINE,
            )
        try:
            running = Driver(process, log_file)
            await running.start(setting)
            yield running
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 5.0)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
