"""Tables of cases beside a test module, in a JSONL file of the same name.

A line is an object with one key, the name of the table, and one value, the case. The table of a test has the words of
the test's name.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def cases(module: str, table: str) -> list[Any]:
    """Return the cases of a table of a test module, which gives its `__file__`, in their order in the file.

    Raises:
        KeyError: the file has no such table.
    """
    file = Path(module).with_suffix(".jsonl")
    found = [row[table] for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()) if table in row]
    if not found:
        raise KeyError(f"{file.name} has no case of the table {table!r}; add one")
    return found


def each_case(*parameters: str) -> Callable[[Any], Any]:
    """Run a test with each case of its table; a case of several parameters is a list of their values."""

    def parametrized(test: Any) -> Any:
        table = test.__name__.removeprefix("test_").replace("_", " ")
        given = cases(test.__code__.co_filename, table)
        return pytest.mark.parametrize(parameters if len(parameters) > 1 else parameters[0], given)(test)

    return parametrized
