"""Mutation testing: change the sources at random places, and count the changes that a test detects.

`make mutations` first runs the tests once to learn which of them reach which line (`.cache/mutations/coverage`), unless
that is known. It then makes mutations in a clone of the last commit, one at a time, and runs the tests that reach the
line. A mutation is killed if a test fails or a run times out; otherwise it survives. Mutations that no test can detect,
such as a changed log message, are among the survivors: compare two runs with the same seed rather than aim at 100 %.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("trainer_client/src", "rubric_store/src", "judge_server/src", "services/src")
KEPT = ROOT / ".cache" / "mutations"
EXPRESSION = "not model and not vllm and not install and not slow and not faults and not processes"
LIMIT_S = 300.0
"""Time limit for the tests of one mutation; a loaded machine needs several times their usual time."""
CPU_LIMIT_S = 60
"""Limit of processor time for the same tests; an endless loop reaches it sooner."""
_PRELOADED = (
    "alembic", "celery", "fastapi", "httpx2", "hypothesis", "numpy", "opentelemetry.sdk.trace", "psycopg", "pydantic",
    "pytest_asyncio", "redis", "sqlalchemy.ext.asyncio", "typer.testing", "uvicorn", "torch", "transformers",
)  # fmt: skip
"""Slow imports that most tests need: done once, before the process is forked for each mutation."""


@dataclass(frozen=True, order=True)
class Mutation:
    """A replacement of the text between two offsets of a file."""

    path: str
    line: int
    start: int
    end: int
    replacement: str
    kind: str

    def apply(self, source: bytes) -> bytes:
        """Return the mutated source."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]

    def describe(self) -> str:
        """Return the location, and the line before and after."""
        source = (ROOT / self.path).read_bytes()
        before = source[: self.start].rpartition(b"\n")[2]
        after = source[self.end :].partition(b"\n")[0]
        was = " ".join(source[self.start : self.end].decode().split())
        return (
            f"{self.path}:{self.line} {self.kind}: {(before + after).decode().strip()!r}: {was} -> {self.replacement}"
        )


_COMPARISONS: dict[type[ast.AST], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


def find_mutations(path: str, source: bytes) -> Iterator[Mutation]:
    """Yield every mutation of a module: operators, comparisons, constants, conditions, returns and calls."""
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def text(node: ast.AST) -> str:
        return source[at(node)[0] : at(node)[1]].decode()

    def at(node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    def put(node: ast.AST, replacement: str, kind: str) -> Mutation:
        assert isinstance(node, ast.expr | ast.stmt)
        return Mutation(path, node.lineno, *at(node), replacement, kind)

    def join(node: ast.expr, first: ast.expr, operator: str, second: ast.expr, kind: str) -> Mutation:
        return put(node, f"(({text(first)}) {operator} ({text(second)}))", kind)

    for node in _walk(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield join(node, left, _COMPARISONS[type(operator)], right, "comparison")
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                yield join(node, left, _OPERATORS[type(operator)], right, "operator")
            case ast.BoolOp(op=operator, values=[left, right]):
                yield join(node, left, _OPERATORS[type(operator)], right, "operator")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield put(node, f"({text(operand)})", "condition")
            case ast.Constant(value=bool(value)):
                yield put(node, str(not value), "constant")
            case ast.Constant(value=int(value) | float(value)):
                yield put(node, repr(value + 1), "constant")
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield put(test, f"(not ({text(test)}))", "condition")
            case ast.Return(value=ast.expr() as value) if text(value) != "None":
                yield put(value, "None", "return")
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield put(node, "pass", "call")
            case ast.Break():
                yield put(node, "continue", "jump")
            case ast.Continue():
                yield put(node, "break", "jump")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are executed, without annotations and f-strings, in source order."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _walk(child)


@dataclass(frozen=True)
class Coverage:
    """Which tests reach which lines, and the duration of each test."""

    tests: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def select(self, path: str, line: int, budget_s: float) -> list[str]:
        """Return tests that reach a line, the fastest of each file in turn, until the budget is used up."""
        by_file: defaultdict[str, list[str]] = defaultdict(list)
        for test in sorted(self.tests[path].get(line, ()), key=lambda test: (self.seconds[test], test)):
            by_file[test.partition("::")[0]].append(test)
        chosen: list[str] = []
        for test in (test for turn in zip_longest(*by_file.values()) for test in turn if test is not None):
            budget_s -= self.seconds[test]
            if chosen and budget_s < 0:
                break
            chosen.append(test)
        return chosen


def measure(kept: Path, workers: int, tests: list[str]) -> None:
    """Run the tests once and record which lines the passing tests reach."""
    kept.mkdir(parents=True, exist_ok=True)
    settings = ("[run]", "relative_files = true", f"source = {','.join(SOURCES)}", f"data_file = {kept / 'coverage'}")
    (kept / "coveragerc").write_text("\n".join(settings))
    command = [
        sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal", "-m", EXPRESSION,
        "-p", "pytest_cov", "--cov", "--cov-config", str(kept / "coveragerc"), "--cov-context=test", "--cov-report=",
        "--hypothesis-profile", "quick", "-p", "tests.mutations", *tests,
    ]  # fmt: skip
    environment = os.environ | {"ADJUDGE_MUTATION_DURATIONS": str(kept / "durations.json")}
    status = subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(status)


_durations: defaultdict[str, float] = defaultdict(float)
_not_passed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up how long a test took; called if this module is a plugin."""
    _durations[report.nodeid] += report.duration
    if not report.passed:
        _not_passed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations, in the main process only."""
    file = os.environ.get("ADJUDGE_MUTATION_DURATIONS")
    if file and not hasattr(session.config, "workerinput"):
        Path(file).write_text(json.dumps({test: s for test, s in _durations.items() if test not in _not_passed}))


def load(kept: Path) -> Coverage:
    """Return what `measure` found."""
    from coverage import CoverageData

    data = CoverageData(str(kept / "coverage"))
    data.read()
    seconds: dict[str, float] = json.loads((kept / "durations.json").read_text())
    tests: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        tests[file] = {
            line: sorted({name for each in reached if (name := each.rpartition("|")[0]) in seconds})
            for line, reached in contexts.items()
        }
    return Coverage(tests, seconds)


def choose(reached: Coverage, number: int, seed: int) -> list[Mutation]:
    """Return a random sample of the mutations on lines that tests reach."""
    found = [
        mutation
        for path in sorted(reached.tests)
        for mutation in find_mutations(path, (ROOT / path).read_bytes())
        if reached.tests[path].get(mutation.line)
    ]
    return sorted(random.Random(seed).sample(sorted(found), number))


_OUTCOMES = {
    pytest.ExitCode.OK: "survived",
    pytest.ExitCode.TESTS_FAILED: "killed",
    pytest.ExitCode.INTERRUPTED: "killed",  # a module that tests import cannot be imported
    -signal.SIGXCPU: "timeout",
    -signal.SIGKILL: "timeout",
}
"""Outcomes by exit status of the test process; any other status is an error of this program or of the test names."""


class Clone:
    """A clone of the last commit in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(self._folder)], check=True)
        self._changes = 0

    def judge(self, mutation: Mutation, tests: list[str]) -> str:
        """Return `killed`, `survived`, `timeout` (counts as killed) or `error`; `log` has the output of the tests."""
        file = self._folder / mutation.path
        source = file.read_bytes()
        self._write(file, mutation.apply(source))
        try:
            return self._run(tests)
        finally:
            self._write(file, source)

    def _write(self, file: Path, source: bytes) -> None:
        """Write a file with a unique modification time: Python recognises stale bytecode by seconds and size only."""
        file.write_bytes(source)
        self._changes += 1
        os.utime(file, (time.time(), 1e9 + 10 * self._changes))

    def _run(self, tests: list[str]) -> str:
        child = os.fork()
        if child == 0:
            self._run_forked(tests)
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _kill_group(child)
                return self._outcome(os.waitstatus_to_exitcode(status))
            time.sleep(0.05)
        _kill_group(child)
        os.waitpid(child, 0)
        return "timeout"

    def _outcome(self, status: int) -> str:
        if status == pytest.ExitCode.USAGE_ERROR and re.search(
            r"\d errors? in ", (self._folder.parent / "log").read_text()
        ):
            return "killed"  # a test module could not be imported
        return _OUTCOMES.get(status, "error")

    def _run_forked(self, tests: list[str]) -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        with (self._folder.parent / "log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.chdir(self._folder)
        sys.path[:0] = paths = [str(self._folder / source) for source in (*SOURCES, ".")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        (self._folder.parent / "tests").write_text("\n".join(tests))
        status: int = pytest.main(
            ["-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"@{self._folder.parent / 'tests'}"]
        )
        sys.stdout.flush()
        os._exit(status)


def _kill_group(leader: int) -> None:
    """Kill processes that a mutation's tests left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def main() -> None:
    """Test mutations and print how many were killed; see `--help`."""
    parser = argparse.ArgumentParser(description="Mutate the sources and count what the tests notice.")
    parser.add_argument("--number", type=int, default=200, help="how many mutations")
    parser.add_argument("--seed", type=int, default=0, help="another seed takes other mutations")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for a mutation")
    parser.add_argument("--workers", type=int, default=2, help="how many processes run tests to learn what they reach")
    parser.add_argument("--of", type=Path, help="judge the mutations of this earlier result instead of a new sample")
    parser.add_argument("--again", action="store_true", help="learn anew what the tests reach")
    parser.add_argument("tests", nargs="*", help="test files and folders to learn from, instead of all")
    arguments = parser.parse_args()
    if arguments.again or not (KEPT / "durations.json").exists():
        measure(KEPT, arguments.workers, arguments.tests)
    reached = load(KEPT)
    if arguments.of:
        mutations = [Mutation(**each["mutation"]) for each in map(json.loads, arguments.of.open())]
    else:
        mutations = choose(reached, arguments.number, arguments.seed)
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    result = KEPT / f"result-{arguments.seed}.jsonl"
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="adjudge-mutations-") as folder, result.open("w") as out:
        clone = Clone(Path(folder))
        first = reached.select(mutations[0].path, mutations[0].line, arguments.budget)
        if clone.judge(replace(mutations[0], start=0, end=0, replacement=""), first) != "survived":
            raise SystemExit(f"tests fail on unchanged sources:\n{(Path(folder) / 'log').read_text()}")
        for number, mutation in enumerate(mutations, 1):
            tests = reached.select(mutation.path, mutation.line, arguments.budget)
            outcome = clone.judge(mutation, tests) if tests else "unreached"
            outcomes[outcome] += 1
            line = {"mutation": asdict(mutation), "outcome": outcome, "tests": len(tests)}
            print(json.dumps(line), file=out, flush=True)
            print(f"{number:4} {outcome:9} {len(tests):4} tests  {mutation.describe()}", flush=True)
            shutil.copyfile(Path(folder) / "log", KEPT / f"last-{arguments.seed}.log")
    print(f"{sum(outcomes.values())} mutations: " + ", ".join(f"{count} {name}" for name, count in outcomes.items()))


if __name__ == "__main__":
    main()
