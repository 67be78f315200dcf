"""The contract of `RubricSource` for searching: by prefix, tag and words, and all of them combined."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.ports import RubricSource
from rubric_store.rubrics.queries import MAX_SEARCHED_CHARACTERS, MAX_WORD_LENGTH, MAX_WORDS_BYTES, words_of
from tests.hypothesis_examples import examples
from tests.rubric_store.examples import rubric

PROJECT = "p1"


async def names(source: RubricSource, text: str = "", *, prefix: str = "", tag: str | None = None) -> list[str]:
    page = await source.list(PROJECT, prefix=prefix, tag=tag, text=text, after=None, limit=50)
    return [summary.name for summary in page.rubrics]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Canberra", ["geo"]),
        ("CANBERRA", ["geo"]),
        ("canb", ["geo"]),
        ("erra", []),
        ("names", ["geo", "law"]),
        ("names lease", ["law"]),
        ("lease names", ["law"]),
        ("names, (the) lease!", ["law"]),
        ("straße", ["law"]),
        ("STRASSE", ["law"]),
        ("x+y=10", ["math"]),
        ("ﬁnal", ["math"]),
        ("'final' & | ! <-> \\ % _ 10", []),
        ("'final' & | ! <-> \\ % 10", ["math"]),
        ("nul", ["math"]),
        ("東京の", ["law"]),
        ("?!", []),
        ("\x00", []),
    ],
)
async def test_words_find_the_rubrics_whose_criteria_contain_them(
    source: RubricSource, text: str, found: list[str]
) -> None:
    await source.publish(PROJECT, "geo", rubric("Names Canberra.", "Is sure."))
    await source.publish(PROJECT, "law", rubric("Names the lease.", "Straße.", "東京の都"))
    await source.publish(PROJECT, "math", rubric("Final: x + y = 10.", "nul\x00nul 'quoted' \\ %"))
    await source.publish("p2", "other", rubric("Names Canberra, the lease and the final 10."))
    assert await names(source, text) == found


async def test_a_rubric_is_found_only_by_the_words_of_its_current_version(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("Old words."))
    await source.publish(PROJECT, "a", rubric("New words."))
    assert (await names(source, "old"), await names(source, "new")) == ([], ["a"])
    await source.publish(PROJECT, "a", rubric("Old words."))
    assert await names(source, "new") == ["a"]
    await source.retire(PROJECT, "a", 2, "Wrong.")
    assert (await names(source, "old"), await names(source, "new")) == (["a"], [])
    await source.restore(PROJECT, "a", 2)
    assert (await names(source, "old"), await names(source, "new")) == ([], ["a"])


async def test_prefix_tag_and_words_are_combined(source: RubricSource) -> None:
    for name, text, tags in (
        ("math/a", "Names x.", ["safe"]),
        ("math/b", "Names y.", ["safe"]),
        ("math/c", "Names x.", []),
        ("med/a", "Names x.", ["safe", "x"]),
    ):
        await source.publish(PROJECT, name, rubric(text), tags=tags)
    assert await names(source, tag="safe") == ["math/a", "math/b", "med/a"]
    assert await names(source, "x", tag="safe") == ["math/a", "med/a"]
    assert await names(source, "x", tag="safe", prefix="math/") == ["math/a"]
    assert await names(source, "x", prefix="math/") == ["math/a", "math/c"]
    assert await names(source, tag="sa") == []
    assert await names(source, tag="\x00") == []


async def test_pages_of_a_search_contain_every_match_once(source: RubricSource) -> None:
    for n in range(9):
        await source.publish(PROJECT, f"r{n}", rubric("Odd." if n % 2 else "Even."), tags=["t"])
    seen: list[str] = []
    cursor = None
    while True:
        page = await source.list(PROJECT, prefix="r", tag="t", text="odd", after=cursor, limit=2)
        seen += [s.name for s in page.rubrics]
        if (cursor := page.next_cursor) is None:
            break
    assert seen == ["r1", "r3", "r5", "r7"]


async def test_a_list_shows_tags_aliases_and_whether_every_version_is_retired(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("x"), tags=["t"])
    await source.publish(PROJECT, "a", rubric("y", "z"))
    await source.move_alias(PROJECT, "a", "production", 1, expected=None)

    async def only() -> tuple[int, int, bool, tuple[str, ...], dict[str, int]]:
        (s,) = (await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=5)).rubrics
        return s.latest_version, s.criteria_count, s.retired, s.tags, s.aliases

    assert await only() == (2, 2, False, ("t",), {"production": 1})
    await source.retire(PROJECT, "a", 2, "Wrong.")
    assert await only() == (1, 1, False, ("t",), {"production": 1})
    await source.retire(PROJECT, "a", 1, "Wrong.")
    assert await only() == (2, 2, True, ("t",), {"production": 1})


async def test_the_longest_possible_rubric_is_published_and_found_by_its_first_words(source: RubricSource) -> None:
    texts = ["w" * 20_000, *[" ".join(f"w{i:03}x{j:04}" for j in range(1900)) for i in range(500)]]
    await source.publish(PROJECT, "long", rubric(*texts))
    assert await names(source, "w000x0000") == ["long"]
    assert await names(source, "w" * 20_000) == ["long"]
    assert await names(source, "w499x1899") == []


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.text(max_size=50), max_size=5))
def test_words_are_distinct_bounded_and_find_themselves(texts: list[str]) -> None:
    words = words_of(texts)
    assert len(set(words)) == len(words)
    assert all(word and len(word) <= MAX_WORD_LENGTH and not set(word) & set(" '\\\x00") for word in words)
    assert sum(len(word.encode()) for word in words) <= MAX_WORDS_BYTES
    assert words_of([" ".join(words)]) == words


def test_words_far_into_long_criteria_are_not_looked_for() -> None:
    text = "word " * (MAX_SEARCHED_CHARACTERS // 5 + 1)
    assert words_of(["early", text, "late"]) == ["early", "word"]
    assert words_of([f"{text} late"]) == ["word"]
