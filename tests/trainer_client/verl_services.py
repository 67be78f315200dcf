"""Real services for the tests of verl's and OpenRLHF's reward functions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.processes import serving
from trainer_client import Client

FORTY_TWO = {"id": "answer", "description": "Says 42.", "verification": {"method": "contains", "all_of": ["42"]}}
SHORT = {"id": "short", "description": "Is one word.", "verification": {"method": "regex", "pattern": r"^\w+$"}}
JUDGED = {"id": "judged", "description": "Is kind."}
TOO_LONG = "too long for this judge " * 2000


@contextmanager
def running(engine: str, data: Path) -> Iterator[str]:
    """The address of a service that ignores the user's settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ADJUDGE_")]:
            patch.delenv(name)
        patch.setenv("ADJUDGE_DATA_DIR", str(data))
        with serving(engine) as service:
            with Client(service.url) as client:
                service.wait_until_ready(client)
            yield service.url
