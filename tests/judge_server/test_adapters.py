"""Nothing in the server asks which adapter stands behind a port: what callers need is in the port.

An adapter is a class that has every member of a protocol with at least three methods; its parents count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / part / "src" for part in ("judge_server", "rubric_store", "services")]
JUDGES = {"CombinedJudge", "Judge"}
"""The members of the union `AnyJudge`, which is no protocol."""
PORTS_AT_LEAST = {"Engine", "JudgeExecutor", "Ledger", "OperationStore", "RubricSource", "VerdictCache"}
ADAPTERS_AT_LEAST = {"EnginePool", "LocalExecutor", "MemoryCache", "RemoteExecutor"}
METHODS = 3


def classes_of(sources: list[Path]) -> dict[str, ast.ClassDef]:
    """Every class by its name."""
    trees = [ast.parse(path.read_text()) for source in sources for path in sorted(source.rglob("*.py"))]
    return {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def names_in(node: ast.expr) -> set[str]:
    """The classes that an expression such as `a.Judge | Engine` names."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def members_of(name: str, classes: dict[str, ast.ClassDef]) -> tuple[set[str], set[str]]:
    """The names that a class and its parents define, and those among them that are methods or properties."""
    if name not in classes:
        return set(), set()
    body = classes[name].body
    functions = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {one.name for one in functions if not one.name.startswith("_")}
    stored = [one for one in ast.walk(classes[name]) if isinstance(one, ast.Attribute) and _is_self(one)]
    fields = [one for one in body if isinstance(one, ast.Assign | ast.AnnAssign)]
    targets = [target for one in fields for target in (one.targets if isinstance(one, ast.Assign) else [one.target])]
    members = methods | {one.attr for one in stored} | {one.id for one in targets if isinstance(one, ast.Name)}
    for base in classes[name].bases:
        for parent in names_in(base) - {name}:
            theirs, called = members_of(parent, classes)
            members, methods = members | theirs, methods | called
    return members, methods


def _is_self(node: ast.Attribute) -> bool:
    stored = isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    return stored and node.value.id == "self"  # type: ignore[attr-defined]


def ports_and_adapters(sources: list[Path]) -> tuple[set[str], set[str]]:
    """The protocols with enough methods, and the classes that have all members of one of them."""
    classes = classes_of(sources)
    protocols = {name for name, node in classes.items() if any("Protocol" in names_in(base) for base in node.bases)}
    ports = {name: members_of(name, classes) for name in protocols}
    wanted = {name: members for name, (members, methods) in ports.items() if len(methods) >= METHODS}
    others = {name: members_of(name, classes)[0] for name in classes.keys() - protocols}
    return set(wanted), {name for name, has in others.items() if any(needs <= has for needs in wanted.values())}


def told_apart(tree: ast.AST, adapters: set[str]) -> Iterator[tuple[int, str]]:
    """Each place that asks whether a value is one of these classes: its line, and the class."""
    for node in ast.walk(tree):
        asked: set[str] = set()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = names_in(node.args[1])
        elif isinstance(node, ast.MatchClass):
            asked = names_in(node.cls)
        yield from ((node.lineno, name) for name in sorted(asked & adapters))  # type: ignore[attr-defined]


def test_no_code_of_the_server_tells_the_adapters_of_a_port_apart() -> None:
    ports, adapters = ports_and_adapters(SOURCES)
    assert ports >= PORTS_AT_LEAST
    assert adapters >= ADAPTERS_AT_LEAST
    assert classes_of(SOURCES).keys() >= JUDGES
    found = [
        f"{path.relative_to(ROOT)}:{line} asks for {name}; add what it needs to the port"
        for path in sorted((ROOT / "judge_server/src").rglob("*.py"))
        for line, name in told_apart(ast.parse(path.read_text()), ports | adapters | JUDGES)
    ]
    assert found == []


def test_a_planted_question_is_found_in_each_form() -> None:
    planted = """
def capacity(engine, judge):
    if isinstance(engine, EnginePool) or isinstance(judge, judges.CombinedJudge | Judge):
        return 1
    match engine:
        case EnginePool(capacity=given):
            return given
"""
    adapters = {"EnginePool", "CombinedJudge", "Judge"}
    found = sorted(told_apart(ast.parse(planted), adapters))
    assert found == [(3, "CombinedJudge"), (3, "EnginePool"), (3, "Judge"), (6, "EnginePool")]
