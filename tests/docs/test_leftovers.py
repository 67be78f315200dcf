"""Each kind of what merges and renames leave behind is found; `make lint` looks for it in this repository."""

import pytest

from tests.docs.leftovers import (
    adjudge_commands,
    python_words,
    repeated_elements,
    repeated_prose,
    unknown_names,
)

COMMANDS = {
    "": frozenset({"--help", "--version"}),
    "serve": frozenset({"--help", "--engine"}),
    "rubrics": {"": frozenset({"--help"}), "lint": frozenset({"--for"})},
}
WORDS = frozenset({"Scorer", "score", "on_failure", "pass_at_", "adjudge_calls", "--router"})


@pytest.mark.parametrize(
    "source",
    [
        "ROUTERS = (scores, rubrics, health, scores)",
        "KINDS: list[str] = ['a', 'b', 'c', 'a']",
        "KINDS = frozenset(('a', 'b', 'c', 'a'))",
        "HANDLERS = [('score', score), ('rank', rank), ('score', score), ('other', score)]",
        "def build():\n    for router in (scores, rubrics, health, scores):\n        add(router)",
    ],
)
def test_an_element_that_a_table_has_twice_is_found(source: str) -> None:
    assert len(list(repeated_elements(source))) == 1


@pytest.mark.parametrize("source", ["WEIGHTS = (1, 0.5, 1, 1)", "KINDS = ('a', 'b', 'c', 'd')", "x = f(a, b, a, b)"])
def test_numbers_may_repeat_and_so_may_arguments(source: str) -> None:
    assert list(repeated_elements(source)) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("It agrees on 263. These 8 differ:\n263. These 8 differ:\n", "said twice in a row: 263. These 8 differ:"),
        (
            "- The judge is asked once more about it.\n\n1. One. The judge is asked once more about it.\n",
            "said twice: The judge is asked once more about it.",
        ),
        ("| a | b |\n| --- | --- |\n| one | two |\n| one | two |\n", "said twice: | one | two |"),
        ("| what | where |\n| --- | --- |\n| it | `a/b.py`, `a/b.py` |\n", "named twice in a cell: a/b.py"),
    ],
)
def test_a_repetition_in_a_page_is_found(page: str, problem: str) -> None:
    assert list(repeated_prose(page)) == [problem]


def test_two_tables_may_share_a_head_and_a_row_and_a_row_its_numbers() -> None:
    table = "| a | b | c |\n| --- | --- | --- |\n| `a/b.py` 0.1 0.2 0.3 | `a/b.py` 0.1 0.2 0.3 | x |\n"
    assert list(repeated_prose(f"{table}\nOther words.\n\n{table}")) == []


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        ("Scorer.rank", "no such name: Scorer.rank (rank)"),
        ("RankScorer", "no such name: RankScorer (RankScorer)"),
        ("on_group()", "no such name: on_group() (on_group)"),
        ("--judges", "no such option: --judges"),
        ("adjudge serves", "no such command: adjudge serves"),
        ("adjudge rubrics lints x", "no such command: adjudge rubrics lints x"),
        ("adjudge serve --for x", "no such option: --for in adjudge serve --for x"),
    ],
)
def test_a_name_that_no_source_has_is_found(span: str, problem: str) -> None:
    assert list(unknown_names([span], WORDS, COMMANDS)) == [problem]


@pytest.mark.parametrize(
    "span",
    [
        *("Scorer.score", "on_failure()", "pass_at_K", "pass_at_8", "adjudge_calls_total", "some words", "a_b.json"),
        *("--router", "--for", "adjudge --version", "adjudge rubrics lint FILE --for", "adjudge serve --engine URL"),
    ],
)
def test_a_name_that_sources_have_is_not(span: str) -> None:
    assert list(unknown_names([span], WORDS, COMMANDS)) == []


def test_the_words_of_a_module_are_those_of_its_code_and_texts() -> None:
    source = (
        '"""About gone_name."""\nfrom a.b import c as d\ndef f(x):\n  """gone_too"""\n  return x.y("--z and w", k=1)'
    )
    assert set(python_words(source)) == {"a", "b", "c", "d", "f", "x", "y", "--z", "and", "w", "k"}


def test_every_command_has_its_options() -> None:
    commands = adjudge_commands()
    assert "--engine" in commands["serve"]
    assert "--for" in commands["rubrics"]["lint"]
    assert "--version" in commands[""]
