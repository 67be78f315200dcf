"""Writes the generated parts of the pages in docs/reference, from the declarations in the sources.

`python -m tests.docs.reference` writes them; with `--check`, it writes nothing and fails if a page is not what it would
write. A generated part stands between two marks in its page, and what is around them is written by hand. To change
what a part says, change the declaration: the docstring, the description of a field, or the help of an option.

The table of a request's options, `docs/reference/request-options.md`, is written by `tests.request_options`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.reference import cli, engines, errors, findings, limits, metrics, modes, settings
from tests.written_files import write_or_check

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/reference"
_BEGIN = "<!-- generated: {} (python -m tests.docs.reference) -->"
_END = "<!-- end of what is generated -->"

PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "cli": {"commands": cli.commands_page},
    "settings": {"settings": settings.settings_page, "engines": engines.engines_page},
    "metrics": {"metrics": metrics.metrics_page},
    "modes": {"table": modes.table, "modes": modes.modes_page},
    "errors": {
        "problems": errors.problems,
        "failures": errors.failures,
        "client": errors.client_errors,
        "commands": errors.command_errors,
    },
    "findings": {
        "lint": findings.lint,
        "generation": findings.generation,
        "monitors": findings.monitors,
        "audit": findings.audit,
        "separation": findings.separation,
    },
    "limits": {"limits": limits.limits_page},
}
"""By page: its generated parts, each with the function that makes it."""


def generate(folder: Path = FOLDER) -> dict[Path, str]:
    """Return the text of each page.

    Raises:
        ValueError: a page lacks the marks of a part.
    """
    found = {}
    for name, parts in PARTS.items():
        page = folder / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        for part, make in parts.items():
            text = replace_part(text, part, make(), page)
        found[page] = text
    return found


def replace_part(text: str, part: str, made: str, page: Path) -> str:
    """Return a page's text with the part between its marks replaced."""
    mark = _BEGIN.format(part)
    head, begin, rest = text.partition(mark)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} lacks {mark} or {_END} after it")
    return f"{head}{mark}\n\n{made.strip()}\n\n{_END}{tail}"


def main() -> None:
    """Write the pages, or check them."""
    write_or_check(generate(), "the sources declare", "tests.docs.reference")
