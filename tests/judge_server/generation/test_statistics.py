"""Statistics of a corpus, and their plot."""

import json
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.generation.results import (
    MOST_TAGS,
    CorpusStatistics,
    Distribution,
    MatplotlibMissing,
    corpus_statistics,
    plot_statistics,
)
from tests.hypothesis_examples import examples


def record(*criteria: tuple[float, str, str], split: str = "train", flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A record of criteria: weight, kind and description."""
    made = [{"weight": w, "kind": k, "description": d, "tags": ["a"]} for w, k, d in criteria]
    return {"criteria": made, "split": split, "flags": list(flags), "metadata": {}}


CORPUS = [
    record((1, "factual", "x" * 39), (2, "process", "x" * 40), (2, "process", "x" * 5)),
    record((-1, "point", "x" * 61), split="test", flags=("all right",)),
]


def test_a_corpus_is_counted() -> None:
    found = corpus_statistics(CORPUS, ["unreadable", "too_few", "unreadable"])
    assert (found.inputs, found.rubrics) == (5, 2)
    assert found.criteria_counts == {"1": 1, "3": 1}
    assert found.weight_counts == {"-1": 1, "1": 1, "2": 2}
    assert found.length_counts == {"0": 1, "20": 1, "40": 1, "60": 1}
    assert found.kinds == {"process": 2, "factual": 1, "point": 1}
    assert (found.splits, found.flags, found.tags) == ({"test": 1, "train": 1}, {"all right": 1}, {"a": 4})
    assert found.discarded == {"unreadable": 2, "too_few": 1}
    assert (found.criteria_per_rubric.mean, found.criteria_per_rubric.deviation) == (2, 1)
    assert (found.description_characters.least, found.description_characters.most) == (5, 61)


def test_validity_is_counted_where_it_was_judged() -> None:
    judged = record((1, "factual", "x"), (1, "factual", "y"))
    items = [{"id": "a", "kind": "factual", "valid": valid, "reason": ""} for valid in (True, False)]
    judged["metadata"] = {"validity": {"items": items}}
    found = corpus_statistics([*CORPUS, judged], [])
    assert found.validity == {"factual": {"items": 2, "valid": 1, "invalid": 1, "unjudged": 0, "rate": 0.5}}


def test_an_empty_corpus_has_zeros() -> None:
    found = corpus_statistics([], [])
    assert (found.inputs, found.criteria_per_rubric, found.kinds) == (0, Distribution(), {})


def test_only_the_commonest_tags_are_counted_by_name() -> None:
    tagged = record((1, "point", "x"))
    tagged["criteria"][0]["tags"] = [f"t{n}" for n in range(100)]
    assert len(corpus_statistics([tagged], []).tags) == MOST_TAGS


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=40))
@settings(max_examples=examples(100))
def test_a_distribution_describes_its_values(values: list[int]) -> None:
    found = Distribution.of(Counter(map(float, values)))
    assert found.count == len(values)
    assert (found.least, found.most) == (min(values), max(values))
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.deviation == pytest.approx(statistics.pstdev(values), abs=1e-9)
    assert found.median == statistics.median_low(values)
    assert found.least <= found.lower <= found.median <= found.upper <= found.most
    assert sum(value <= found.lower for value in values) >= len(values) / 4
    assert sum(value >= found.upper for value in values) >= len(values) / 4


def test_statistics_survive_json() -> None:
    found = corpus_statistics(CORPUS, ["unreadable"])
    assert CorpusStatistics.model_validate_json(found.model_dump_json()) == found
    assert json.loads(found.model_dump_json())["rubrics"] == 2


@pytest.mark.parametrize("name", ["plot.svg", "plot.png"])
@pytest.mark.parametrize("corpus", [CORPUS, []], ids=["some", "none"])
def test_a_corpus_is_plotted(tmp_path: Path, name: str, corpus: list[dict[str, Any]]) -> None:
    plot_statistics(corpus_statistics(corpus, ["unreadable"]), tmp_path / name, title="a $corpus$ of_two")
    begins = (tmp_path / name).read_bytes()[:8]
    assert begins in (b"<?xml ve", b"\x89PNG\r\n\x1a\n")


def test_without_matplotlib_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MatplotlibMissing, match="pip install"):
        plot_statistics(corpus_statistics(CORPUS, []), tmp_path / "plot.svg", title="a corpus")
    assert not (tmp_path / "plot.svg").exists()
