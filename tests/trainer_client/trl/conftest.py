"""A real service for the tests that train; programs verify the criteria, so that judging is exact."""

import pytest

from tests.services.processes import Service


@pytest.fixture(scope="session")
def url(shared_service: Service) -> str:
    """The address of a running service."""
    return shared_service.url


@pytest.fixture(autouse=True)
def silent_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence TRL's warning about experimental features."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
