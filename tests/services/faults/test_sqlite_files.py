"""Files beside a SQLite database that cannot be written, or are damaged while a process uses them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from rubric_store import RubricStore
from tests.fixtures.ports import unused_port
from tests.fixtures.waiting import wait_until
from tests.services.preforked import start
from tests.services.processes import Service, get, serving
from trainer_client import Client

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("migrated")]

RUBRIC = [{"id": "a", "description": "Is right."}]


@pytest.fixture
def immutable(data_dir: Path) -> Iterator[Path]:
    """A `-shm` file that nobody may change."""
    file = data_dir / "adjudge.db-shm"
    file.touch()
    if subprocess.run(["chattr", "+i", file], capture_output=True, check=False).returncode:
        pytest.skip("making a file immutable needs Linux, root and a file system that supports it")
    yield file
    subprocess.run(["chattr", "-i", file], capture_output=True, check=True)


def refusal(*command: str) -> str:
    """What a process says that refuses to start."""
    queue = {"ADJUDGE_QUEUE_URL": f"redis://127.0.0.1:{unused_port()}/0"}
    process = start(command, os.environ | queue)
    try:
        assert process.wait(30) == 1
    finally:
        process.kill()
    assert process.stderr is not None
    return " ".join(process.stderr.read().split())


@pytest.mark.parametrize("command", [("serve", "--port", "0", "--engine", "scripted://hash"), ("worker",)])
@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_a_process_does_not_start_if_it_cannot_write_a_file_beside_the_database(
    data_dir: Path, command: tuple[str, ...], ending: str
) -> None:
    (data_dir / f"adjudge.db{ending}").mkdir()
    said = refusal(*command)
    assert f"this process cannot write {data_dir}/adjudge.db{ending}." in said
    assert "lsattr" in said


async def test_an_immutable_file_is_refused_at_the_start_and_makes_the_store_unready(
    immutable: Path, data_dir: Path
) -> None:
    assert f"this process cannot write {immutable}." in refusal("serve", "--port", "0", "--engine", "scripted://hash")
    store = RubricStore(f"sqlite+aiosqlite:///{data_dir / 'adjudge.db'}")
    assert await store.find("default", "kept") is None
    assert not await store.ready()
    await store.close()


def test_a_process_whose_shared_memory_was_cut_says_where_it_crashed_and_no_rubric_is_lost(
    service: Service, data_dir: Path
) -> None:
    with Client(service.url, retries=0) as client:
        published = client.publish_rubric("kept", RUBRIC)
    os.truncate(data_dir / "adjudge.db-shm", 0)
    with pytest.raises(httpx2.TransportError):
        get(service, "/v1/rubrics")
    assert service.process.wait(30) == -signal.SIGBUS
    with serving("scripted://hash") as next_one, Client(next_one.url) as client:
        assert client.rubric("kept") == published
    wait_until(lambda: any("Bus error" in line for line in service.said))
    wait_until(lambda: any("sqlite" in line for line in service.said))
