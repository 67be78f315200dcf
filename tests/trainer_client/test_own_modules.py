"""The client has no module that only the service uses."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "trainer_client/src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imported_by(name: str) -> set[str]:
    """The modules of the client that a module of it imports, and the packages that hold these."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for parts in (each.split(".") for each in names):
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return found & (MODULES.keys() - {name})


def documented() -> set[str]:
    """The modules that the pages for users name, but not those that only decision records name."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace(
        "adjudge-verifiers", "adjudge_verifiers"
    )
    return {name for name in MODULES if re.search(rf"\b{re.escape(name)}\b", text)}


def test_every_module_is_imported_by_another_one_or_documented_as_an_entry_point() -> None:
    assert MODULES.keys() - documented() - set().union(*map(imported_by, MODULES)) == set()
