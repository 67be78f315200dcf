"""A contender's process as the benchmark sees it: started, told passes, ended. Knows nothing of who it is."""

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
"""How long imports may take on a cold and busy machine."""

QUIET = {"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "ERROR_REPORTING": "0", "HF_HUB_OFFLINE": "1"}
"""Nobody is called but the server that is measured."""

LONGEST_LINE = 64 * 2**20


class PeerUnavailable(Exception):
    """A contender that cannot be measured here, and why."""


class Driver:
    """A running contender."""

    def __init__(self, process: asyncio.subprocess.Process, said: Path) -> None:
        self._process = process
        self._said = said

    async def run_pass(self, asked: Pass, timeout_s: float) -> PassResult:
        """Have a pass judged. Raises `RuntimeError` where it takes too long or the process ends."""
        return PassResult(**await self._exchange(json.dumps(asdict(asked)), timeout_s))

    async def start(self, setting: DriverConfig) -> None:
        """Wait until it is set up; raises `NotHere` where it never is."""
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
            raise RuntimeError(f"said nothing for {timeout_s:.0f} s") from None
        except ConnectionError:
            answer = b""
        if not answer:
            words = self._said.read_text(errors="replace").strip().splitlines()
            raise RuntimeError(words[-1] if words else "ended without a word")
        found: dict[str, Any] = json.loads(answer)
        return found


@asynccontextmanager
async def driver(python: str, module: str, setting: DriverConfig) -> AsyncIterator[Driver]:
    """The process of `benchmarks.peers.drivers.MODULE` under a Python, until the block is left. Raises `NotHere`."""
    if not shutil.which(python):
        raise PeerUnavailable(f"there is no {python}; run make bench-peers")
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder, "said")
        environment = os.environ | QUIET | {"INSPECT_CACHE_DIR": folder, "DEEPEVAL_HOME": folder}
        with said.open("wb") as log:  # noqa: ASYNC230 - a file to hand over
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
            running = Driver(process, said)
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
