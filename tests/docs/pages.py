"""Documentation pages and their parts, as the tests read them."""

import re
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PAGES = sorted(
    path
    for pattern in ("*.md", "*/README.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith(".")  # environments and caches also contain Markdown files
)

_FRONT_MATTER = re.compile(r"\A---\n(?P<yaml>.*?)^---\n", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^(?P<fence>```|~~~)(?P<language>\w*)\n(?P<code>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`(?P<code>[^`\n]+)`")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


def name(page: Path) -> str:
    """A page's path from the root, for test ids."""
    return page.relative_to(ROOT).as_posix()


def front_matter(page: Path) -> dict[str, Any]:
    """What a page says of itself at its top: `description`, and `tags`, the other words that people search."""
    found = _FRONT_MATTER.match(page.read_text(encoding="utf-8"))
    return yaml.safe_load(found["yaml"]) if found else {}


def title(page: Path) -> str:
    """A page's first heading."""
    heading = _HEADING.search(prose(page))
    assert heading, f"{name(page)} has no heading"
    return heading["title"]


def body(page: Path) -> str:
    """A page without its front matter."""
    return _FRONT_MATTER.sub("", page.read_text(encoding="utf-8"), count=1)


def prose(page: Path) -> str:
    """A page without its front matter and code blocks."""
    return _FENCED.sub("", body(page))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [b["code"] for b in _FENCED.finditer(page.read_text(encoding="utf-8")) if b["language"] == language]


def links(page: Path) -> list[str]:
    """The targets of a page's links and images."""
    return [link["target"] for link in _LINK.finditer(prose(page))]


def code_spans(page: Path) -> list[str]:
    """The code spans in a page's prose."""
    return [span["code"] for span in _CODE.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as a Git forge generates them."""
    titles = (heading["title"].lower() for heading in _HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def table(page: Path, heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading, each a mapping of column names to cells."""
    under = page.read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = dropwhile(lambda line: not line.startswith("|"), under.splitlines())
    head, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in takewhile(lambda line: line.startswith("|"), lines)
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]
