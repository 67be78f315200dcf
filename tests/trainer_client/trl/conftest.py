"""A real service for the tests that train: criteria are verified by programs, so that its judge is exact."""

import os
from collections.abc import Iterator

import pytest

from tests.services.processes import serving
from trainer_client import Client


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running service."""
    kept = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("ADJUDGE_")]:
        del os.environ[name]
    os.environ["ADJUDGE_DATA_DIR"] = str(tmp_path_factory.mktemp("service"))
    try:
        with serving("scripted://hash") as service:
            with Client(service.url) as client:
                service.wait_until_ready(client)
            yield service.url
    finally:
        os.environ.clear()
        os.environ.update(kept)


@pytest.fixture(autouse=True)
def silent_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TRL's word on what it calls experimental."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
