"""`document`: analysis, question and rubric, enrichment, and unusable documents or questions."""

from pathlib import Path
from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric, source_digest
from judge_server.generation.kinds.document import (
    MAX_DOCUMENT_BYTES,
    DocumentGenerator,
    DocumentParameters,
    DocumentRow,
)
from tests.judge_server.generation.scripted_writer import ModelScript, criteria, discarded, generated, writer

TEXT = "A heap is a list in which no parent is greater than its children. Its first item is the smallest."
ANALYSIS = {
    "genre": "reference",
    "contribution": "Says what a heap is.",
    "concepts": ["heap", "order"],
    "depth": "introductory",
    "reasoning_mode": "definition",
}
MORE = {
    "required_elements": ["parent not greater than child"],
    "scoring_guide": "All points for the reason, some for the fact, none otherwise.",
    "expected_keywords": ["heap"],
    "expected_concepts": ["order"],
    "verification_method": "Look for the reason.",
}
ITEMS = [
    {"name": f"Point {n}", "description": f"Explains the point number {n}.", **MORE, "weight": n} for n in range(1, 6)
]
TASK = {"question": "Why is the smallest item of a heap found at once?", "rationale": "Order.", "criteria": ITEMS}
GOOD = (ANALYSIS, TASK)
ROW = DocumentRow(text=TEXT)


async def make(told: ModelScript, row: DocumentRow = ROW, **parameters: Any) -> GeneratedRubric:
    """The rubric generated from the input."""
    return await generated(DocumentGenerator, row, told, **parameters)


async def reason(*said: Any, row: DocumentRow = ROW, **parameters: Any) -> str:
    """The reason why the input is discarded."""
    return await discarded(make(ModelScript(*said), row, **parameters))


async def test_a_document_becomes_a_question_and_criteria_with_all_nine_fields() -> None:
    told = ModelScript(*GOOD)
    made = await make(told)
    assert len(told.asked) == 2
    assert "Says what a heap is. Central ideas: heap, order." in told.asked[1][1]
    first = made.content.criteria[0]
    assert first.model_dump(exclude={"kind", "tags", "scale", "shadow", "verification", "applies_to"}, mode="json") == {
        "id": "c1",
        "name": "Point 1",
        "description": "Explains the point number 1.",
        "weight": 1.0,
        **MORE,
    }


async def test_a_second_pass_replaces_the_cues_of_each_criterion() -> None:
    other = MORE | {"scoring_guide": "All points for the order, none otherwise."}
    told = ModelScript(*GOOD, *[other] * 5)
    made = await make(told, enrichment=True)
    assert "Point 1: Explains the point number 1." in told.asked[2][1]
    assert [one.scoring_guide for one in made.content.criteria] == [other["scoring_guide"]] * 5


async def test_several_questions_of_a_document_are_about_different_ideas() -> None:
    generator = DocumentGenerator(DocumentParameters(questions=3, validity=False))
    rows = generator.inputs_of(DocumentRow(text=TEXT, name="heaps"))
    assert [row.rubric_name for row in rows] == ["heaps/1", "heaps/2", "heaps/3"]
    assert len({row.canonical for row in rows}) == 3
    asked = []
    for row in rows:
        told = ModelScript(*GOOD)
        await generator.make(row, await writer(told))
        asked.append((told.asked[1][1].split("about this idea:")[1].split("\n")[1].strip(), told.calls[1].sample))
    assert [idea for idea, _ in asked] == ["heap", "order", "heap"]
    assert len({sample.seed for _, sample in asked if sample}) == 3


def test_a_single_question_leaves_the_row_unchanged() -> None:
    [row] = DocumentGenerator(DocumentParameters()).inputs_of(ROW)
    assert row is ROW


async def test_the_record_has_the_papers_fields() -> None:
    made = await make(ModelScript(*GOOD))
    assert set(made.record) == {
        "question",
        "passage",
        "criteria",
        "question_rationale",
        "document_analysis",
        "doc_hash",
    }
    assert made.record["passage"] == TEXT
    assert made.record["doc_hash"] == source_digest(TEXT)
    assert made.record["document_analysis"] == ANALYSIS
    assert "passage" not in made.metadata
    assert made.metadata["question"] == TASK["question"]


async def test_prompts_show_no_more_of_the_document_than_its_budget() -> None:
    told = ModelScript(*GOOD)
    made = await make(told, DocumentRow(text="x" * 300), passage_characters=200)
    assert all("x" * 200 in prompt and "x" * 201 not in prompt for _, prompt in told.asked)
    assert made.flags == ("passage_cut",)


@pytest.mark.parametrize("text", ["", "  \n\t"])
async def test_an_empty_document_is_discarded_without_asking(text: str) -> None:
    assert await reason(row=DocumentRow(text=text)) == "empty_source"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"question": "What does the document say of heaps?"}, "not_self_contained"),
        ({"question": " "}, "wrong_shape"),
        (
            {"criteria": [ITEMS[0] | {"description": "Repeats what the passage says."}, *ITEMS[1:]]},
            "not_self_contained",
        ),
        ({"criteria": ITEMS[:4]}, "too_few"),
        ({"criteria": [ITEMS[0] | {"description": f"Names {n} of them."} for n in range(40)]}, "too_many"),
        ({"criteria": [ITEMS[0] | {"weight": -1}, *ITEMS[1:]]}, "bad_weight"),
        ({"criteria": [item | {"weight": 0} for item in ITEMS]}, "bad_weight"),
        ({"criteria": [ITEMS[0] | {"name": " "}, *ITEMS[1:]]}, "wrong_shape"),
    ],
)
async def test_each_mistake_of_the_author_has_its_own_reason(change: dict[str, Any], expected: str) -> None:
    assert await reason(ANALYSIS, TASK | change) == expected


@pytest.mark.parametrize(
    "change", [{"scoring_guide": " "}, {"expected_keywords": []}, {"required_elements": [""]}, {"expected_concepts": 3}]
)
async def test_a_criterion_that_lacks_a_field_discards_the_input(change: dict[str, Any]) -> None:
    assert await reason(ANALYSIS, TASK, MORE, MORE | change, enrichment=True) == "wrong_shape"
    assert await reason(ANALYSIS, TASK | {"criteria": [ITEMS[0] | change, *ITEMS[1:]]}) == "wrong_shape"


async def test_a_rubric_whose_total_weight_is_too_small_is_discarded() -> None:
    assert (await make(ModelScript(*GOOD), min_total_weight=15)).content.criteria
    assert await reason(*GOOD, min_total_weight=15.5) == "bad_weight"


async def test_an_empty_analysis_is_refused() -> None:
    assert await reason(ANALYSIS | {"genre": ""}) == "wrong_shape"
    assert await reason("It is about heaps.") == "unreadable"


async def test_weight_zero_is_accepted_where_other_weights_are_positive() -> None:
    said = TASK | criteria([ITEMS[0] | {"weight": 0}, *ITEMS[1:]])
    assert (await make(ModelScript(ANALYSIS, said))).content.criteria[0].weight == 0


def test_a_document_may_be_a_file_beside_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "heap.txt").write_text(f"\ufeff{TEXT}\n", encoding="utf-8")
    named, written = DocumentRow(path="heap.txt").loaded(tmp_path), DocumentRow(text=TEXT).loaded(tmp_path)
    assert named.text == TEXT
    assert named.canonical == written.canonical, "two documents with the same content are one input"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe\x00h", "is not UTF-8"),
        (b"x" * (MAX_DOCUMENT_BYTES + 1), "larger"),
    ],
)
def test_an_unreadable_file_is_an_error_that_says_why(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        DocumentRow(path="x.txt").loaded(tmp_path)


def test_no_file_is_read_without_a_folder() -> None:
    with pytest.raises(ValueError, match="files cannot be read here"):
        DocumentRow(path="/etc/hostname").loaded(None)
