"""Find where tests set a name of our packages that is private, or a constant.

A test that sets one breaks when the code is rearranged, although nothing that others rely on has changed. Give what
uses the value a parameter instead. `python -m tests.patched_names`, in the root folder, prints each place and fails;
`make lint` runs it. It cannot see names that are computed.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("trainer_client", "rubric_store", "judge_server", "adjudge_services")

EXCEPTIONS = {
    "tests/judge_server/api/test_compat.py: FIRST_RETRY_AFTER_S",
    "tests/judge_server/faults/test_engine_endpoints.py: READY_TIMEOUT_S",
    "tests/judge_server/models/conftest.py: DOWNLOAD_RETRY_DELAY_S",
    "tests/judge_server/operations/conftest.py: QUEUE",
    "tests/judge_server/operations/test_operation_handlers.py: BLOCKED_LOG",
    "tests/services/operations/test_commands.py: INITIAL_BACKOFF_S",
    "tests/trainer_client/trl/test_entropy_bonus.py: _get_per_token_logps_and_entropies",
    "tests/vllm/test_death.py: _answerer",
}
"""What tests still set: a parameter would have to pass through too many functions, or the name is TRL's."""

_SETTERS = ("setattr", "delattr", "object", "patch")
_DEFAULTS = ("__defaults__", "__kwdefaults__")
_WATCHED = re.compile(r"_(?!_)\w+|[A-Z][A-Z0-9_]+")
"""Private names, and constants."""


def defined_names(source: str) -> Iterator[str]:
    """The private names and constants that a module defines: functions, classes, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if _WATCHED.fullmatch(name):
            yield name


def patched_names(source: str, ours: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The lines on which a test sets one of these names on something other than itself, and the names."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr=word) | ast.Name(id=word)) if word in _SETTERS:
                texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
                found = [name for text in texts if isinstance(text, str) for name in _names_in(text)]
            case ast.Attribute(value=ast.Name(id=owner), ctx=ast.Store()) if owner in ("self", "cls"):
                continue
            case ast.Attribute(attr=attribute, ctx=ast.Store()):
                found = [attribute]
            case _:
                continue
        yield from ((node.lineno, name) for name in found if name in ours or name in _DEFAULTS)


def _names_in(text: str) -> list[str]:
    """The parts of a dotted name in one of our packages, or a name alone; no part of any other text."""
    parts = text.split(".")
    return parts if len(parts) == 1 or parts[0] in PACKAGES else []


def problems() -> Iterator[str]:
    """Each place in this repository, and each exception that is not needed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    paths = [path for one in listed.decode().split("\0") if one and (path := ROOT / one).is_file()]
    sources = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    ours = frozenset(name for where, text in sources.items() if "/src/" in where for name in defined_names(text))
    needless = set(EXCEPTIONS)
    for where, text in sources.items():
        if not where.startswith("tests/"):
            continue
        for line, name in patched_names(text, ours):
            needless.discard(f"{where}: {name}")
            if f"{where}: {name}" not in EXCEPTIONS:
                yield f"{where}:{line}: a test sets {name}; give what uses it a parameter"
    yield from (f"tests/patched_names.py: no test sets this any more: {one}" for one in sorted(needless))


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(bool(found))
