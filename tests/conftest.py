"""Setup for all tests: a real PostgreSQL and a real Redis, and Hypothesis profiles that ignore the machine's speed."""

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
os.environ["COLUMNS"] = "140"  # table width; pytest-xdist sets 80, which breaks names in tables

# Creating a client reads all CA certificates, which takes 20 ms: do it once per process.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)

pytest_plugins = [
    "tests.fixtures.postgres",
    "tests.fixtures.redis",
    "tests.fixtures.migrated",
    "tests.fixtures.plots",
    "tests.fixtures.shared_service",
]

# How long examples take says nothing about the code.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.register_profile("adjudge", settings.get_profile("thorough"), max_examples=50)
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=20)
settings.load_profile("adjudge")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules whose mark is deselected: torch and TRL alone take seconds."""
    if collection_path.suffix != ".py":
        return None
    left_out = [marker for marker in ("trl", "slow") if f"not {marker}" in config.option.markexpr]
    marks = re.search(r"^pytestmark = (.*)$", collection_path.read_text(encoding="utf-8"), re.MULTILINE)
    return (marks is not None and any(f"pytest.mark.{marker}" in marks[1] for marker in left_out)) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep collected modules and tests out of garbage collection: they live until the end of the session.

    A higher threshold also makes the collector run less often, which saves a tenth of the tests' time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()
