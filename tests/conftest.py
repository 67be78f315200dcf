"""What every test may use: a real PostgreSQL and a real Redis. No test depends on how fast the machine is."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin while they wait, and tests share the cores

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.redis"]

settings.register_profile("adjudge", deadline=None)
settings.load_profile("adjudge")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of a server stay in one, so that it is started once."""
    for item in items:
        for server in ("postgres", "redis"):
            if item.get_closest_marker(server):
                item.add_marker(pytest.mark.xdist_group(server))
