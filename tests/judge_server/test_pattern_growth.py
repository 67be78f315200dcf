"""Every regular expression of the packages takes linear time, whatever the text is.

The expressions are found in the modules and their sources, so a new one is tried too. The texts come from the
expression itself: see `tests.hostile_patterns`.
"""

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import adjudge_services
import judge_server
import rubric_store
import trainer_client
from tests.hostile_patterns import growth, hostile_units, uses

PACKAGES: tuple[ModuleType, ...] = (judge_server, rubric_store, trainer_client, adjudge_services)
METHODS = {"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"}

READS_NO_OUTSIDE_TEXT = {
    "judge_server.api.http.responses._INLINE_SCRIPT": "it reads the documentation pages of the web framework, once",
}
"""Expressions that may take longer, and why no text from outside can make them."""

MADE_AT_RUN_TIME = {
    "judge_server.engines.vllm.loading": "made of the package's own phrases; reads the log of its own engine",
    "judge_server.generation.structure": "a number as a whole word: no repetition",
    "judge_server.ports.engine": "the words of a set's lead and white space, matched at the beginning",
    "judge_server.judging.prompts.fencing": "made of control tokens: no repetition",
    "judge_server.verifiers.worker": "patterns of rubrics, which are matched in a worker with a time limit",
    "rubric_store.lint": "made of word lists and an answer; test_lint.py tries texts of growing size",
    "trainer_client.final_answer": "an answer as a whole word: no repetition",
    "trainer_client.measures": "made of single letters; test_growth.py tries texts of growing size",
    "trainer_client.final_answer.words": "the tails of answers in every language, which are kept in `_TAILS`",
    "judge_server.api.http.problems": "made of the paths of the API; the path of a request is short",
}
"""Modules that make expressions at run time, and why these need no trial here."""


class Used(NamedTuple):
    """An expression, the name it has, and the methods that are called on it; none if that is not known."""

    name: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


@cache
def sources() -> dict[str, ast.Module]:
    """The syntax trees of all modules, by name."""
    found = {}
    for package in PACKAGES:
        (folder,) = map(Path, package.__path__)
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def compiling() -> list[str]:
    """The modules that call functions of `re` with an expression."""
    return [name for name, tree in sources().items() if any(True for _ in calls(tree))]


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls of `re.compile(…)`, `re.search(…)` and so on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "re" and node.func.attr in METHODS | {"compile"}:
                yield node


@cache
def methods_called() -> dict[tuple[str, str], frozenset[str]]:
    """The methods that any module calls on a name of a module."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, tree in sources().items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        imported = {one.asname or one.name: (node.module, one.name) for node in imports for one in node.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                of = node.value
                while isinstance(of, ast.Subscript):
                    of = of.value
                if isinstance(of, ast.Name):
                    module_of, name = imported.get(of.id, (module, of.id))
                    found[module_of or module, name].add(node.attr)
    return {key: frozenset(methods) for key, methods in found.items()}


def kept_in(module: str) -> list[Used]:
    """The expressions that a module keeps under a name, alone or in a collection."""
    found = []
    for name, value in vars(importlib.import_module(module)).items():
        methods = methods_called().get((module, name), frozenset())
        found += [Used(f"{module}.{name}", pattern, methods) for pattern in patterns_in(value)]
    return found


def patterns_in(value: object, depth: int = 4) -> Iterator[re.Pattern[Any]]:
    """The expressions in a value and in the collections that it holds."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict | tuple | list | set | frozenset) and depth:
        for one in [*value.items()] if isinstance(value, dict) else value:
            yield from patterns_in(one, depth - 1)


def written_in(module: str) -> list[Used]:
    """The expressions that a module hands to a function of `re` as a literal."""
    found = []
    for call in calls(sources()[module]):
        assert isinstance(call.func, ast.Attribute)
        if isinstance(call.args[0], ast.Constant):
            named = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute) and node.attr.isupper()]
            flags = re.RegexFlag(0)
            for name in named:
                flags |= re.RegexFlag[name]
            pattern = re.compile(call.args[0].value, flags)
            if call.func.attr != "compile":
                methods = frozenset({call.func.attr})
                found.append(Used(f"{module}:{call.lineno}", pattern, methods))
    return found


@pytest.mark.parametrize("module", compiling())
def test_every_regular_expression_takes_linear_time(module: str) -> None:
    slow = {}
    for name, pattern, methods in dict.fromkeys([*kept_in(module), *written_in(module)]):
        if name in READS_NO_OUTSIDE_TEXT:
            continue
        units = hostile_units(pattern)
        for use in uses(pattern, methods):
            for unit in units:
                if times := growth(use, unit, as_bytes=isinstance(pattern.pattern, bytes)):
                    slow[name] = (use.__name__, unit, round(times, 1))
    assert slow == {}


def test_expressions_are_kept_under_a_name_or_it_is_said_why_not() -> None:
    elsewhere = set()
    for module in compiling():
        kept = {(one.pattern.pattern, one.pattern.flags) for one in kept_in(module)}
        for call in calls(sources()[module]):
            assert isinstance(call.func, ast.Attribute)
            if isinstance(call.args[0], ast.Constant):
                text = call.args[0].value
                if call.func.attr == "compile" and text not in {pattern for pattern, _ in kept}:
                    elsewhere.add(module)
            elif not at_top(sources()[module], call):
                elsewhere.add(module)
    assert elsewhere <= MADE_AT_RUN_TIME.keys()
    assert MADE_AT_RUN_TIME.keys() <= set(compiling())


def at_top(tree: ast.Module, call: ast.Call) -> bool:
    """Whether a call is evaluated when its module is imported, and so kept under a name."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return not any(call in ast.walk(function) for function in functions)


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+$", "match"),
        (r"\s+$", "search"),
        (r"(?:x|a)*b", "search"),
        (r"<(\w+)>.*</\1>", "search"),
        (r'"(?:[^"\\]|\\.)*"', "finditer"),
        (r"\d+\s*:\s*\s*x", "fullmatch"),
        (r"max.*token", "search"),
    ],
)
def test_the_trial_finds_expressions_that_backtrack(pattern: str, method: str) -> None:
    compiled = re.compile(pattern)
    assert any(growth(use, unit) for use in uses(compiled, {method}) for unit in hostile_units(compiled))


@pytest.mark.parametrize(
    ("pattern", "method"),
    [(r"(?<!\s)\s++$", "search"), (r'"(?:[^"\\]++|\\.)*+"?', "finditer"), (r"\s+\d+", "fullmatch")],
)
def test_the_trial_lets_linear_expressions_pass(pattern: str, method: str) -> None:
    compiled = re.compile(pattern)
    assert not any(growth(use, unit) for use in uses(compiled, {method}) for unit in hostile_units(compiled))
