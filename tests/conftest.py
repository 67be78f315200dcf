"""What every test may use: a real PostgreSQL and a real Redis. No test depends on how fast the machine is."""

import gc
import os
import re
from collections.abc import Generator
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads spin while they wait, and tests share the cores
os.environ["COLUMNS"] = "140"  # of tables; pytest-xdist says 80, which breaks names in them

# To make a client is to read the certificates of all authorities, 20 ms of work: once is enough for this process.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.redis",
    "tests.fixtures.migrated",
    "tests.fixtures.shared_service",
]

# How long examples take says nothing of the code.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.register_profile("adjudge", settings.get_profile("thorough"), max_examples=50)
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=20)
settings.load_profile("adjudge")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules whose mark is left out as a whole: torch and TRL alone take seconds."""
    if collection_path.suffix != ".py":
        return None
    left_out = [marker for marker in ("trl", "slow") if f"not {marker}" in config.option.markexpr]
    marks = re.search(r"^pytestmark = (.*)$", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    return (marks is not None and any(f"pytest.mark.{marker}" in marks[1] for marker in left_out)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay to the end: the collector of garbage need not look through them, neither now nor later.

    It looks through what tests make less often, too, which saves a tenth of their time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
