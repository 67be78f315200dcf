"""Every timeout, limit and pool that something else relies on: constants with their docstrings, and parameters."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.reference.markdown import entries, sentence, table

_ROOT = Path(__file__).parents[3]
_PACKAGES = ("trainer_client", "judge_server", "rubric_store", "services")
_SECONDS = re.compile(r"[A-Z][A-Z_]*_S")

OTHERS = {
    "judge_server.scheduling.time_sharing.BACKGROUND_SHARE",
    "judge_server.verifiers.worker.WALL_CLOCK_FACTOR",
    "judge_server.api.judge_process.MAX_BODY_BYTES",
    "judge_server.operations.handlers.judging.CHUNK_RESPONSES",
    "judge_server.operations.service.MAX_QUEUED_CHUNKS",
    "judge_server.operations.runner.MAX_CONSECUTIVE_FAILURES",
    "rubric_store.operations.rows.MAX_ATTEMPTS",
}
"""Constants that are no seconds."""

PARAMETERS = {
    "trainer_client.AsyncClient": ("timeout_s", "retries", "retry_budget_s"),
    "judge_server.scheduling.checker.Checker": ("seconds", "workers"),
    "judge_server.scheduling.pools.PoolRules": (
        "interval_s", "health_timeout_s", "misses", "failures", "pause_s", "longest_pause_s", "spill",
    ),
}  # fmt: skip
"""By class, the parameters whose defaults others rely on."""

SECTIONS = {
    "The client": ("trainer_client",),
    "The API": ("judge_server.api", "judge_server.auth", "adjudge_services.http_server"),
    "Judging": (
        "judge_server.scheduling",
        "judge_server.scoring",
        "judge_server.verifiers",
        "judge_server.evaluation",
    ),
    "Engines and pools": (
        "judge_server.engines",
        "judge_server.remote",
        "adjudge_services.judges",
    ),
    "Stores and the ledger": ("rubric_store", "judge_server.ledger"),
    "Operations and workers": ("judge_server.operations", "adjudge_services.worker", "judge_server.generation"),
    "Models, metrics and commands": ("judge_server.models", "judge_server.observability", "adjudge_services.cli"),
}
"""The sections of the page, each with the beginnings of the names in it."""


class Limit(NamedTuple):
    """A limit by its full name, its value, and why it has this value."""

    name: str
    value: float
    meaning: str


def limits_page() -> str:
    """A table for each section.

    Raises:
        ValueError: a constant is in no section, or has no docstring.
    """
    found = sorted([*constants(), *parameters()])
    lines = []
    for section, beginnings in SECTIONS.items():
        rows = [one for one in found if one.name.startswith(beginnings)]
        found = [one for one in found if one not in rows]
        shown = [
            (f"`{one.name}`", f"{one.value:,g}" if one.value < 1e6 else f"{one.value:,.0f}", one.meaning)
            for one in rows
        ]
        lines += [f"### {section}", "", table(("name", "value", "meaning"), shown), ""]
    if found:
        raise ValueError(f"in no section of tests.docs.reference.limits: {', '.join(one.name for one in found)}")
    return "\n".join(lines)


def constants() -> Iterator[Limit]:
    """The constants of all modules, except those for trainers, with their docstrings."""
    for package in _PACKAGES:
        folder = _ROOT / package / "src"
        for source in folder.rglob("*.py"):
            if {"trl", "verl"} & set(source.parts) and source.name != "measure_reports.py":
                continue
            module = ".".join(source.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            yield from _of_module(module, ast.parse(source.read_text(encoding="utf-8")).body)


def _of_module(module: str, body: list[ast.stmt]) -> Iterator[Limit]:
    for statement, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        for name in _names(statement):
            full = f"{module}.{name}"
            if not _SECONDS.fullmatch(name) and full not in OTHERS:
                continue
            doc = after.value if isinstance(after, ast.Expr) else None
            if not isinstance(doc, ast.Constant) or not isinstance(doc.value, str):
                raise ValueError(f"{full} has no docstring; say there why it has this value")
            value = getattr(importlib.import_module(module), name)
            yield Limit(full, float(value), sentence(" ".join(doc.value.split())))


def _names(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def parameters() -> Iterator[Limit]:
    """The parameters of classes, with what their docstrings say."""
    for path, names in PARAMETERS.items():
        module, _, cls = path.rpartition(".")
        owner: Any = getattr(importlib.import_module(module), cls)
        said = entries(owner.__doc__) | entries(owner.__init__.__doc__)
        for name in names:
            default = inspect.signature(owner).parameters[name].default
            yield Limit(f"{path}({name})", float(default), sentence(said[name]))
