"""List the pages of the documentation: `python -m tests.docs.contents` writes the lists, `--check` compares them.

The navigation in `mkdocs.yml` says which pages a section has and in what order. A page says in its front matter, as
`description`, what a reader finds there. A list stands in a page between `<!-- contents: SECTION -->` and
`<!-- end of contents -->`, and is never written by hand.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs.pages import DOCS, ROOT, front_matter, title
from tests.written_files import write_or_check

_LIST = re.compile(r"(?<=<!-- contents: )(?P<section>[^\n]+?) -->\n.*?(?=<!-- end of contents -->)", re.DOTALL)


class _Loader(yaml.SafeLoader):
    """Reads `mkdocs.yml`, whose references to Python objects it takes as text."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)

Entry = str | dict[str, Any]
"""An entry of the navigation: a page's path, or a title with a path or with a section's entries."""


def navigation() -> dict[str, list[Entry]]:
    """The sections of the site, by title, each with its entries."""
    # bandit: the loader is a SafeLoader
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=_Loader)  # nosec B506
    return {key: value for section in config["nav"] for key, value in section.items() if isinstance(value, list)}


def pages_in_navigation() -> set[Path]:
    """The pages of `docs/` that the navigation holds."""

    def paths(entries: list[Entry]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                yield from paths(value) if isinstance(value, list) else [value]

    return {DOCS / path for entries in navigation().values() for path in paths(entries)}


def contents(entries: list[Entry], folder: Path, level: int) -> Iterator[str]:
    """The lines of a list of pages, with links from `folder` and subsections under headings of `level`."""
    for entry in entries:
        text, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            yield from ["", f"{'#' * level} {text}", ""]
            yield from contents(value, folder, level + 1)
        elif (page := DOCS / value).parent != folder or page.name != "README.md":
            description = front_matter(page).get("description")
            link = f"[{text or title(page)}]({os.path.relpath(page, folder)})"
            yield f"- {link}: {description}" if description else f"- {link}"


def with_contents(page: Path) -> str:
    """A page's text with each of its lists as the navigation has it."""
    text = page.read_text(encoding="utf-8")

    def listed(found: re.Match[str]) -> str:
        lines = contents(navigation()[found["section"]], page.parent, level=2)
        return f"{found['section']} -->\n\n" + "\n".join(lines).strip() + "\n\n"

    return _LIST.sub(listed, text)


def main() -> None:
    """Write the lists of all pages, or check them."""
    write_or_check(
        {page: with_contents(page) for page in sorted(DOCS.rglob("*.md"))}, "the navigation says", "tests.docs.contents"
    )


if __name__ == "__main__":
    main()
