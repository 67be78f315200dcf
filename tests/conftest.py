"""What every test may use: a real PostgreSQL and a real Redis. No test depends on how fast the machine is."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin while they wait, and tests share the cores
os.environ["COLUMNS"] = "140"  # of tables; pytest-xdist says 80, which breaks names in them

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.redis", "tests.fixtures.migrated"]

# How long examples take says nothing of the code. `quick` is what make check uses; make test tries 100.
settings.register_profile("adjudge", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("adjudge"), max_examples=25)
settings.load_profile("adjudge")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where `trl` is left out, do not even import modules that are marked so as a whole: torch alone takes seconds."""
    if "not trl" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return "\npytestmark = pytest.mark.trl\n" in collection_path.read_text(encoding="utf-8") or None
