"""A read-only SQLite file: changes fail like those of an unreachable database, and nothing is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubric_store import RubricStore, SQLLedger
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.ledger_rows import request
from trainer_client.wire import RubricContent

CONTENT = RubricContent.model_validate({"criteria": [{"id": "a", "description": "Is right."}]})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that `mount` can make read-only, because it is mounted onto itself."""
    folder = tmp_path / "database"
    folder.mkdir()
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode:
        pytest.skip("mounting a folder needs Linux and root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=True)


def remount(folder: Path, how: str) -> None:
    """Make a mounted folder read-only (`ro`) or writable (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,bind,{how}", folder], capture_output=True, check=True)


async def test_a_read_only_file_refuses_changes_until_it_is_writable(folder: Path, new_sqlite: NewSQLite) -> None:
    url = new_sqlite(folder / "rubrics.db")
    remount(folder, "ro")
    store, ledger = RubricStore(url), SQLLedger(url)
    rows = request(1, [["a"]])
    assert not await store.ready()
    with pytest.raises(ConnectionError):
        await store.publish("p", "team/a", CONTENT)
    with pytest.raises(ConnectionError):
        ledger.write(rows)
    with pytest.raises(ConnectionError):
        ledger.salvage(rows)
    remount(folder, "rw")
    assert await store.ready()
    _, created = await store.publish("p", "team/a", CONTENT)
    assert created
    ledger.write(rows)
    await store.close()
    await ledger.close()
