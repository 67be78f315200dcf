"""A real service for the tests that train: criteria are verified by programs, so that its judge is exact."""

import pytest

from tests.services.processes import Service


@pytest.fixture(scope="session")
def url(shared_service: Service) -> str:
    """The address of a running service."""
    return shared_service.url


@pytest.fixture(autouse=True)
def silent_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TRL's word on what it calls experimental."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
