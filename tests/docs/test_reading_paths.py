"""The files that ARCHITECTURE.md names for a request, a step and an operation run in that order."""

import re
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from benchmarks.code_paths import Tracer, application, is_recorded, operate, score, trace_training

ARCHITECTURE = Path("ARCHITECTURE.md")
_ROW = re.compile(r"\| `(?P<file>[\w/]+)\.py` \| `(?P<function>[\w.]+)` \|")
Calls = list[tuple[str, str]]


def documented(path: str) -> Calls:
    """The (module, function) of each row of the table below the bold text `path`."""
    _, _, after = ARCHITECTURE.read_text(encoding="utf-8").partition(f"**{path}**")
    table = after.partition("\n\n")[2].partition("\n\n")[0]
    found = [(row["file"].replace("/", ".").removesuffix(".__init__"), row["function"]) for row in _ROW.finditer(table)]
    assert found, f"there is no table below {path!r}"
    return found


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    """A tracer; tracing ends with the test."""
    yield Tracer()
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "run", "most"),
    [("A scoring request", score, 14), ("An operation", operate, 12)],
    ids=["request", "operation"],
)
async def test_the_service_runs_the_documented_functions_in_order(
    path: str, run: Callable[[httpx2.AsyncClient, int], Awaitable[None]], most: int, tracer: Tracer
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with application(Path(folder)) as (http, service):
            await run(http, 1)
            await is_recorded(service)
            with tracer.tracing():
                await run(http, 2)
            ran = list(tracer.first_calls)
    check(documented(path), ran, most)


@pytest.mark.trl
def test_a_step_of_srar_runs_the_documented_functions_in_order(tracer: Tracer) -> None:
    trace_training(tracer, ("srar",))
    check(documented("A step of a training method"), list(tracer.first_calls), 10)


def check(expected: Calls, ran: Calls, most: int) -> None:
    """Check that these functions ran in this order and are in at most `most` files."""
    missing = [call for call in expected if call not in ran]
    assert not missing
    assert expected == sorted(expected, key=ran.index)
    assert len({module for module, _ in expected}) <= most
