"""Generates `trainer_client.client.sync` from the classes for event loops.

With `--check`, it writes nothing, and exits with 1 if the file is not what it would write.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "trainer_client/src/trainer_client/client"
MODULES = ("connection", "answers", "rubrics", "ledger", "operations", "projects", "clients")
HEADER = '''"""`Client`: what a trainer calls Adjudge with, in code without an event loop.

Generated from `AsyncClient` by `python -m tests.trainer_client.sync_client`: change that class instead.
"""

import time
from collections.abc import Generator, Iterator
'''
REPLACEMENTS = (
    (r"Tasks of one event loop can share it", r"Threads can share it"),
    (r"\n\n    Cancelling the task that waits for a group closes it too\.", r""),
    (r"an `async with`", r"a `with`"),
    (r"Callable\[\[float\], Awaitable\[None\]\] = asyncio\.sleep", r"Callable[[float], None] = time.sleep"),
    (r"response\.aiter_bytes\(\)", r"own_pieces(response)"),
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\basync (def|with|for) ", r"\1 "),
    (r"\bawait ", r""),
    (r"__a(enter|exit|next)__", r"__\1__"),
    (r"\ba(next\(|read\(|close\b)", r"\1"),
    (r"\bAsync([A-Z]\w+)", r"\1"),
)
"""What turns code for event loops, and its documentation, into code without: patterns, and what takes their place."""


def generate() -> str:
    """Return the text of the module. Imports are all of its sources, and ruff removes those that it does not need."""
    imports, classes = [], []
    for name in MODULES:
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        shared = []
        for one in ast.parse(source).body:
            if isinstance(one, ast.ClassDef) and one.name.startswith("Async"):
                classes.append(ast.get_source_segment(source, one))
            elif isinstance(one, ast.Import | ast.ImportFrom):
                one.names = [each for each in one.names if not each.name.startswith("Async")]
                imports += [ast.unparse(one)] if one.names else []
            elif isinstance(one, ast.ClassDef | ast.FunctionDef):
                shared.append(one.name)
            elif isinstance(one, ast.Assign):
                shared += [each.id for each in one.targets if isinstance(each, ast.Name)]
        imports += [f"from trainer_client.client.{name} import {each}" for each in shared if not each.startswith("_")]
    text = "\n\n\n".join(filter(None, classes))
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    whole = HEADER + "\n".join(imports) + "\n\n\n" + text + "\n"
    return _ruff("format", text=_ruff("check", "--fix-only", "--quiet", text=whole))


def _ruff(*command: str, text: str) -> str:
    arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", PACKAGE / "sync.py", "-"]
    return subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """Write the module, or check it."""
    generated = generate()
    if "--check" not in sys.argv:
        (PACKAGE / "sync.py").write_text(generated, encoding="utf-8")
    elif (PACKAGE / "sync.py").read_text(encoding="utf-8") != generated:
        sys.exit("trainer_client.client.sync is out of date; run: python -m tests.trainer_client.sync_client")


if __name__ == "__main__":
    main()
