"""Real services for the tests of verl's and OpenRLHF's reward functions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.processes import ready_service

FORTY_TWO = {"id": "answer", "description": "Says 42.", "verification": {"method": "contains", "all_of": ["42"]}}
SHORT = {"id": "short", "description": "Is one word.", "verification": {"method": "regex", "pattern": r"^\w+$"}}
JUDGED = {"id": "judged", "description": "Is kind."}
TOO_LONG = "too long for this judge " * 2000


@contextmanager
def running(engine: str, data: Path) -> Iterator[str]:
    """The address of a service that ignores the user's settings."""
    with ready_service(engine, data) as service:
        yield service.url
