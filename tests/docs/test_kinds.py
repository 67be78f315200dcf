"""Each page of the documentation is of one kind, short enough for it, described, and in the navigation once."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.contents import pages_in_navigation, with_contents
from tests.docs.pages import DOCS, PAGES, ROOT, body, front_matter, links, name

MOST_WORDS = {"tutorials": 1200, "how-to": 600, "explanation": 1200}
MOST_WORDS_IN_ALL = 75_000
FEWEST_HOW_TO = 40

GENERATED = {"docs/reference", "docs/decisions", "helm/adjudge"}
"""Folders whose pages are made from sources, or are records."""


def words(page: Path) -> int:
    """The words that a reader of a page meets, with those of its code, without those of a list of pages."""
    text = re.sub(r"<!-- contents:.*<!-- end of contents -->|<!--.*?-->", "", body(page), flags=re.DOTALL)
    return sum(re.search(r"\w", word) is not None for word in text.split())


@pytest.mark.parametrize("kind", MOST_WORDS)
def test_no_page_is_longer_than_its_kind_allows(kind: str) -> None:
    long = {name(page): words(page) for page in (DOCS / kind).glob("*.md") if words(page) > MOST_WORDS[kind]}
    assert not long


def test_the_book_can_be_read() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True)
    pages = [ROOT / path for path in tracked.stdout.splitlines() if path != "CHANGELOG.md"]
    book = [page for page in pages if page.exists() and page.parent.relative_to(ROOT).as_posix() not in GENERATED]
    assert sum(map(words, book)) <= MOST_WORDS_IN_ALL


def test_there_is_a_page_for_each_task_that_people_ask_about() -> None:
    assert len(list((DOCS / "how-to").glob("*.md"))) > FEWEST_HOW_TO


def test_the_navigation_has_every_page_but_records_of_decisions() -> None:
    pages = {page for page in DOCS.rglob("*.md") if page.parent.name != "decisions" or page.name == "README.md"}
    assert pages - pages_in_navigation() == {DOCS / "index.md"}


def test_the_index_of_decisions_has_every_record() -> None:
    folder = DOCS / "decisions"
    assert {folder / target for target in links(folder / "README.md")} >= set(folder.glob("0*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name in MOST_WORDS], ids=name)
def test_a_page_describes_itself_in_a_line(page: Path) -> None:
    description = front_matter(page).get("description", "") if page.name != "README.md" else "a list"
    assert 0 < len(description) <= 140


def test_the_lists_of_pages_follow_from_the_navigation() -> None:
    assert [name(page) for page in DOCS.rglob("*.md") if with_contents(page) != page.read_text(encoding="utf-8")] == []
