"""What each format cannot express, and how that is reported."""

import json
import re

import pytest

from rubric_store import FormatError, read_rubric
from rubric_store.formats import WRITTEN_FORMATS, read_document, write_rubric
from trainer_client.wire import Criterion, RubricContent


def content(*criteria: dict[str, object]) -> RubricContent:
    """A rubric of these criteria, with the ids `a`, `b`… unless given."""
    return RubricContent.model_validate(
        {"criteria": [{"id": "abcdef"[i], "description": f"Says {i}.", **one} for i, one in enumerate(criteria)]}
    )


MISTAKE = content({"weight": 2}, {"kind": "pitfall", "weight": 1, "description": "Subtracts."})


@pytest.mark.parametrize("format", ["healthbench", "rar"])
def test_a_pitfall_is_written_with_a_negative_weight(format: str) -> None:
    written = write_rubric(MISTAKE, format)
    assert [one.weight for one in read_rubric(written.text, format).criteria] == [2, -1]
    assert "criterion b: weight 1 becomes -1" in [str(loss) for loss in written.losses]


def test_a_category_of_rar_becomes_a_tag_and_a_negative_weight_a_pitfall() -> None:
    rows = [
        {"title": "Dose", "description": "Essential Criteria: Names the dose.", "weight": 5},
        {"title": "Harm", "description": "pitfall criteria: Doubles the dose.", "weight": -2},
        {"title": "Care", "description": "Pitfall Criteria: Warns of doubling.", "weight": 1},
        {"title": "", "description": "Names the drug.", "weight": "Important"},
    ]
    criteria = read_rubric(json.dumps({"question": "How much?", "rubric": rows})).criteria
    assert [(c.name, c.description, c.kind, c.weight, c.tags) for c in criteria] == [
        ("Dose", "Names the dose.", "point", 5, ("essential",)),
        ("Harm", "Doubles the dose.", "pitfall", -2, ()),
        ("Care", "Warns of doubling.", "point", 1, ("pitfall",)),
        (None, "Names the drug.", "point", 0.7, ("important",)),
    ]


@pytest.mark.parametrize(
    ("category", "weight"), [("Essential", 1), ("Important", 0.7), ("Optional", 0.3), ("Pitfall", 0.9)]
)
def test_a_category_in_place_of_a_weight_has_the_papers_weight(category: str, weight: float) -> None:
    text = json.dumps([{"title": "T", "description": "Says so.", "weight": category}])
    assert [(c.weight, c.kind) for c in read_rubric(text).criteria] == [(weight, "point")]


def test_two_categories_of_one_criterion_are_refused() -> None:
    text = json.dumps([{"description": "Essential Criteria: Says so.", "weight": "Optional"}])
    with pytest.raises(FormatError, match=r"line 1, \[0\]\.weight: Optional, but .* Essential"):
        read_rubric(text)


def test_rgr_reads_categories_and_refuses_missing_ones_and_other_weights() -> None:
    rows = [
        {"description": "factual criteria: Is four.", "weight": 5},
        {"description": "Process Criteria: Adds.", "weight": 1.0},
    ]
    assert [(c.id, c.kind, c.description, c.weight) for c in read_rubric(json.dumps(rows)).criteria] == [
        ("f1", "factual", "Is four.", 5),
        ("p1", "process", "Adds.", 1),
    ]
    bad = [{"description": "Is four.", "weight": 5}, {"description": "Process Criteria: Adds.", "weight": 6}]
    with pytest.raises(FormatError) as refused:
        read_rubric(json.dumps(bad, indent=1), "rgr")
    assert [(problem.line, problem.place) for problem in refused.value.problems] == [
        (3, "[0].description"),
        (8, "[1].weight"),
    ]


@pytest.mark.parametrize(
    ("format", "criteria", "says"),
    [
        ("srar", [{}, {"kind": "suggest", "weight": -1}], ["criterion a: .*'point'", "criterion b: .*-1"]),
        ("srar", [{"kind": "suggest", "description": "a\nb"}], ["criterion a: .*several; write it in one"]),
        ("rgr", [{"weight": 2.5, "kind": "factual"}, {"weight": 6}], ["a: .*2.5", "b: .*kind 'point'", "b: .*is 6"]),
        ("grounded", [{}, {"weight": -1, "kind": "pitfall"}], ["b: .*negative", "b: .*pitfalls"]),
        ("dro", [{}, {"weight": 0}, {"kind": "pitfall"}], ["criterion b: .*yes is always good", "criterion c: "]),
        ("healthbench", [{"kind": "pitfall"}], ["healthbench cannot hold this rubric: no criterion has a positive"]),
        ("healthbench", [{}, {"tags": ["verifier:rule", "function:none"]}], ["criterion b: its tags name a rule"]),
        ("rar", [{"description": "Essential Criteria: x"}], ["criterion a: .*differently"]),
    ],
)
def test_an_inexpressible_rubric_is_refused_criterion_by_criterion(
    format: str, criteria: list[dict[str, object]], says: list[str]
) -> None:
    with pytest.raises(FormatError) as refused:
        write_rubric(content(*criteria), format)
    problems = [str(problem) for problem in refused.value.problems]
    assert len(problems) == len(says)
    for problem, pattern in zip(problems, says, strict=True):
        assert re.search(pattern, problem), problem


def test_losses_name_the_criterion_the_field_and_both_values() -> None:
    rubric = content(
        {"weight": 3, "name": "Sum", "tags": ["x"], "verification": {"method": "contains", "all_of": ["4"]}}
    )
    assert [str(loss) for loss in write_rubric(rubric, "dro").losses] == [
        'criterion a: id "a" becomes "q1"',
        "criterion a: weight 3 becomes 1",
        'criterion a: tags ["x"] is left out',
        'criterion a: verification {"method": "contains", "all_of": ["4"]} is left out',
        'criterion a: name "Sum" is left out',
    ]


@pytest.mark.parametrize("format", WRITTEN_FORMATS)
def test_a_shadow_criterion_never_becomes_one_that_is_rewarded(format: str) -> None:
    kind = {"rgr": "factual", "srar": "suggest"}.get(format, "point")
    rubric = content({"kind": kind}, {"kind": kind, "shadow": True})
    if format in ("native", "yaml"):
        assert write_rubric(rubric, format).losses == ()
    else:
        with pytest.raises(FormatError, match=rf"^criterion b: {format} has no shadow criteria"):
            write_rubric(rubric, format)


def test_a_program_that_a_format_reads_from_tags_is_reported() -> None:
    rubric = content({"tags": ["verifier:rule", "function:math_verify", "parameters:42"]})
    assert "criterion a: verification none becomes " in str(write_rubric(rubric, "healthbench").losses[-1])


def test_a_record_of_rubric_grounded_keeps_its_question_and_drops_the_passage() -> None:
    record = {
        "question": "Why?",
        "passage": "Because.",
        "criteria": [{"id": "c1", "description": "Says because.", "weight": 1, "name": "", "scoring_guide": ""}],
        "document_analysis": {"genre": "note"},
        "doc_hash": "ab",
    }
    document = read_document(json.dumps(record))
    assert document.metadata == {"question": "Why?", "document_analysis": {"genre": "note"}, "doc_hash": "ab"}
    assert document.content.criteria == (Criterion(id="c1", description="Says because."),)
    written = json.loads(write_rubric(document, "grounded").text)
    assert list(written) == ["question", "document_analysis", "doc_hash", "criteria"]
    assert set(written["criteria"][0]) == {
        *("id", "name", "description", "weight", "required_elements", "scoring_guide"),
        *("expected_keywords", "expected_concepts", "verification_method"),
    }
    with pytest.raises(FormatError, match=r"criteria\[0\]\.weight: .*greater than or equal to 0"):
        read_document(json.dumps({**record, "criteria": [{"id": "a", "description": "x", "weight": -1}]}))


@pytest.mark.parametrize(
    "text",
    [
        "Does it add?\n\nIs the sum four?\n",
        "1. Does it add?\n2) Is the sum four?",
        " - Does it add?\r\n * Is the sum four?\r\n",
        '["Does it add?", "Is the sum four?"]',
        '{"input": "2 + 2", "decomposed_questions": ["Does it add?", "Is the sum four?"]}',
        '{"questions": ["Does it add?", "Is the sum four?"]}',
    ],
)
def test_questions_are_read_from_lists_and_lines(text: str) -> None:
    criteria = read_rubric(text).criteria
    assert [(c.id, c.description, c.weight) for c in criteria] == [
        ("q1", "Does it add?", 1),
        ("q2", "Is the sum four?", 1),
    ]


def test_a_shape_shared_by_two_formats_is_not_guessed() -> None:
    text = '[{"description": "Adds.", "weight": 3}]'
    with pytest.raises(FormatError, match="could be rar or rgr; say which"):
        read_rubric(text)
    assert read_rubric(text, "rar").criteria[0].weight == 3
