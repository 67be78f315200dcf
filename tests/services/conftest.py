"""Every test here has its own data folder and none of the user's settings."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from typer.main import get_command

from tests.fixtures.migrated import NewSQLite
from tests.fixtures.network_namespaces import NamespaceNetwork, open_network
from tests.services.processes import Service, serving, without_settings

# A process builds its commands once; do the same here, however many commands it runs.
typer.testing._get_command = cache(get_command)


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, set in the environment; no other ADJUDGE_ variable is set."""
    without_settings(monkeypatch)
    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def migrated(data_dir: Path, new_sqlite: NewSQLite) -> None:
    """A migrated database in the data folder, which saves the first command from creating it."""
    new_sqlite(data_dir / "adjudge.db")


@pytest.fixture
def service(data_dir: Path) -> Iterator[Service]:
    """A running service whose engine answers by hash."""
    with serving("scripted://hash") as running:
        yield running


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    """A router without namespaces."""
    with open_network() as made:
        yield made
