"""A real service with program-verified criteria, and an address without a server."""

import pytest

from tests.fixtures.ports import unused_port
from tests.services.processes import Service

SAYS_14 = {"id": "says-14", "description": "Says 14.", "verification": {"method": "contains", "all_of": ["14"]}}
EXACT = {"id": "exact", "description": "Is 14.", "verification": {"method": "regex", "pattern": "14", "match": "full"}}
RUBRIC = [SAYS_14, {**EXACT, "weight": 3}]
REWARDS = {"14": 1.0, "It is 14": 0.25, "15": 0.0}
"""The expected rewards of these responses under that rubric."""
RIGHT, WRONG = "\\boxed{14}", "\\boxed{15}"
ANSWER = [{"id": "answer", "kind": "answer", "description": "Is right.", "verification": {"method": "exact"}}]


@pytest.fixture(scope="session")
def url(shared_service: Service) -> str:
    """The address of a running service."""
    return shared_service.url


@pytest.fixture
def away() -> dict[str, object]:
    """Adapter arguments for an unreachable service."""
    return {"client": f"http://127.0.0.1:{unused_port()}", "deadline_s": 0.3, "grace_s": 0.0}


def missing(library: str) -> str:
    """The reason for skipping an adapter's tests."""
    return f"{library} is not installed: run make test-adapters"
