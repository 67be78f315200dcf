"""Run the code of a documentation page as a reader does: its blocks in order, in one shell and one Python session."""

import contextlib
import io
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.docs.code_blocks import Block
from tests.docs.pages import ROOT
from tests.services.preforked import write_command
from tests.services.processes import ready_service, without_settings

JUDGE = "scripted://words"
SHOWN_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8000\b")
_LONGEST_BLOCK_S = 400
_SERVES = re.compile(r"^\s*(?:\w+=\S+ )*adjudge (?:serve|api)\b", re.MULTILINE)


class PageError(AssertionError):
    """A block of a page does not do what the page says."""


@contextmanager
def prepared(folder: Path, blocks: list[Block]) -> Iterator[dict[str, str]]:
    """Prepare a folder for a page, and yield the environment in which its blocks run.

    The folder has a copy of `examples/`. A service listens at `ADJUDGE_URL`, unless the page starts one itself.
    """
    shutil.copytree(ROOT / "examples", folder / "examples")
    home, programs = folder / ".home", folder / ".bin"
    home.mkdir()
    programs.mkdir()
    write_command(programs)
    with pytest.MonkeyPatch.context() as patched:
        without_settings(patched)
        own = {"ADJUDGE_DATA_DIR": str(home / "adjudge"), "ADJUDGE_ENGINE_URL": JUDGE}
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, **own, "PATH": path, "HOME": str(home), "COLUMNS": "100", "TERM": "dumb"}
    if any(_SERVES.search(block.code) for block in blocks if block.is_run):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        yield environment | {"ADJUDGE_PORT": str(port), "ADJUDGE_URL": f"http://127.0.0.1:{port}"}
        return
    with ready_service(JUDGE, Path(own["ADJUDGE_DATA_DIR"])) as service:
        yield environment | {"ADJUDGE_URL": service.url}


def run_page(name: str, blocks: list[Block], folder: Path, environment: Mapping[str, str]) -> None:
    """Run the blocks of a page in a folder. Raises `PageError` where one fails or prints something else than shown."""
    with contextlib.ExitStack() as stack:
        session = Session(folder, environment)
        stack.callback(session.close)
        for block in blocks:
            if not block.is_run:
                continue
            where = f"{name}, line {block.line}"
            session.wait_until_recorded()
            code = session.with_address(block.code)
            if file := block.says.get("file"):
                (folder / file).write_text(code, encoding="utf-8")
                continue
            try:
                status, out, err = session.python(code, where) if block.language == "python" else session.bash(code)
            except TimeoutError:
                raise PageError(f"{where}: it did not end within {_LONGEST_BLOCK_S} s") from None
            if status != int(block.says.get("exit status", "0")):
                raise PageError(f"{where}: it ended with status {status}\n{block.code}\n{out}{err}")
            if block.expected is not None and not any(
                is_shown(session.as_shown(text), block.expected) for text in (out, err, out + err)
            ):
                shown = session.as_shown(out) + (f"\non standard error:\n{err}" if err else "")
                raise PageError(f"{where}: it prints this:\n{shown}\nand the page shows this:\n{block.expected}")


def is_shown(output: str, expected: str) -> bool:
    """Whether output is as shown, where `...` stands for anything, and alone in a line for any lines or none."""
    lines = [re.escape(line.rstrip()).replace(r"\.\.\.", ".*?") + "\n" for line in expected.strip("\n").splitlines()]
    pattern = "".join(r"(?:.*\n)?" if line == ".*?\n" else line for line in lines)
    text = "".join(line.rstrip() + "\n" for line in output.strip("\n").splitlines())
    return re.fullmatch(pattern, text, re.DOTALL) is not None


class Session:
    """A shell and a Python session in one folder; Python has the folder and the exported variables of the shell."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._scratch = folder
        self._address = environment.get("ADJUDGE_URL", "http://127.0.0.1:1").removeprefix("http://")
        reading, self._writing = os.pipe()
        self._reading = os.fdopen(reading, "rb", buffering=0)
        self._shells: list[subprocess.Popen[str]] = []

    def _shell(self) -> subprocess.Popen[str]:
        """The running shell, or a new one after a block that was to fail has ended it."""
        if not self._shells or self._shells[-1].poll() is not None:
            shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                env=self._environment,
                pass_fds=[self._writing],
                start_new_session=True,
                text=True,
            )
            self._shells.append(shell)
        return self._shells[-1]

    def with_address(self, code: str) -> str:
        """Put the address of the page's service in the place of the one that pages show."""
        return SHOWN_ADDRESS.sub(self._address, code)

    def as_shown(self, output: str) -> str:
        """Put the address that pages show in the place of the one of the page's service."""
        return output.replace(self._address, "127.0.0.1:8000").replace(f"{self._scratch}/", "")

    def wait_until_recorded(self) -> None:
        """Wait until the service has written its ledger, which takes it less time than a reader between two blocks.

        Each key of the environment is asked with, since it sees only what its own project waits for.
        """
        keys = {value for value in self._environment.values() if value.startswith("adj_")} or {"none"}
        pause = threading.Event()
        with contextlib.suppress(httpx2.HTTPError):
            for key in keys:
                for _ in range(1_000):
                    answer = httpx2.get(f"http://{self._address}/v1/ledger", headers={"Authorization": f"Bearer {key}"})
                    if answer.status_code != 200 or not answer.json()["waiting"]:
                        break
                    pause.wait(0.02)

    def bash(self, code: str) -> tuple[int, str, str]:
        """Run code in the shell; return its status, which is that of the first command that fails, and its output."""
        script, out, err = (self._scratch / name for name in (".block.sh", ".out", ".err"))
        script.write_text(f"set -eo pipefail\n{code}\nset +e\n", encoding="utf-8")
        fd = self._writing
        report = f"pwd >&{fd}; env -0 >&{fd}; printf '\\0' >&{fd}"
        shell = self._shell()
        assert shell.stdin is not None
        # `set -e` ends the shell at the first command that fails, and the trap reports that
        shell.stdin.write(f"trap \"echo \\$? >&{fd}; {report}\" EXIT\n. '{script}' >'{out}' 2>'{err}' </dev/null\n")
        shell.stdin.write(f"trap - EXIT\necho alive >&{fd}; {report}\n")
        shell.stdin.flush()
        status, folder, variables = self._report().split(b"\n", 2)
        if status != b"alive":
            shell.wait()
        pairs = (one.decode().partition("=") for one in variables.split(b"\0") if one)
        self._environment = {key: value for key, _, value in pairs}
        self._folder = Path(folder.decode())
        said, warned = (file.read_text(encoding="utf-8", errors="replace") for file in (out, err))
        return 0 if status == b"alive" else int(status), said, warned

    def _report(self) -> bytes:
        said = b""
        while not said.endswith(b"\0\0"):
            if not select.select([self._reading], [], [], _LONGEST_BLOCK_S)[0]:
                raise TimeoutError
            part = self._reading.read(2**16)
            said += part
        return said

    def python(self, code: str, where: str) -> tuple[int, str, str]:
        """Run code in the Python session; return its status and output."""
        out, err = io.StringIO(), io.StringIO()
        status = 0
        with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patched.chdir(self._folder)
            patched.syspath_prepend(self._folder)
            for name in set(os.environ) - set(self._environment):
                patched.delenv(name)
            for name, value in self._environment.items():
                patched.setenv(name, value)
            try:
                exec(compile(code, where, "exec"), self._names)
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except Exception:  # noqa: BLE001
                traceback.print_exc(file=err)
                status = 1
        return status, out.getvalue(), err.getvalue()

    def close(self) -> None:
        """End the shell and everything that it started, and forget modules of the folder."""
        for shell in self._shells:
            _end_group(shell)
        os.close(self._writing)
        self._reading.close()
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(self._scratch)):
                del sys.modules[name]


def _end_group(shell: subprocess.Popen[str]) -> None:
    """End a shell and what it started, which it may have left running."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(10)
    if shell.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            shell.stdin.close()
