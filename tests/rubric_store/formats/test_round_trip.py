"""Round trips for all formats: a written rubric reads back equal except for the reported losses."""

import json

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from rubric_store import FormatError
from rubric_store.formats import (
    WRITTEN_FORMATS,
    FormatProblem,
    RubricDocument,
    RubricFormat,
    read_document,
    write_rubric,
)
from tests.hypothesis_examples import examples
from tests.rubric_store.formats.format_examples import REPRESENTABLE, any_document
from trainer_client.wire import Criterion, RubricContent

FORMATS = WRITTEN_FORMATS
LOSES_NOTHING = ("native", "yaml")
QUICK = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("format", FORMATS)
@QUICK
@given(data=st.data())
def test_a_written_rubric_reads_back_equal_except_for_the_reported_losses(
    format: RubricFormat, data: st.DataObject
) -> None:
    document = data.draw(REPRESENTABLE[format])
    try:
        written = write_rubric(document, format)
    except FormatError:
        reject()  # an unusual wording; hypothesis fails if most are refused
    back = read_document(written.text, format)
    assert [one.description for one in back.content.criteria] == [one.description for one in document.content.criteria]
    repaired = _with_losses_made_good(back, document, {(loss.criterion, loss.field) for loss in written.losses})
    assert repaired == document
    assert read_document(written.text.replace("\n", "\r\n"), format) is not None


@pytest.mark.parametrize("format", FORMATS)
@QUICK
@given(data=st.data())
def test_a_rubric_that_was_read_is_written_without_loss(format: RubricFormat, data: st.DataObject) -> None:
    document = data.draw(REPRESENTABLE[format])
    try:
        said = read_document(write_rubric(document, format).text, format)
        again = write_rubric(said, format)
    except FormatError:
        reject()
    assert again.losses == ()
    assert read_document(again.text, format) == said


@pytest.mark.parametrize("format", LOSES_NOTHING)
@QUICK
@given(document=any_document)
def test_our_own_formats_hold_everything(format: RubricFormat, document: RubricDocument) -> None:
    written = write_rubric(document, format)
    assert written.losses == ()
    assert read_document(written.text) == document
    assert read_document(written.text).content.digest == document.content.digest


@pytest.mark.parametrize("format", FORMATS)
@QUICK
@given(document=any_document)
def test_any_rubric_is_written_or_refused_with_the_criteria_at_fault(
    format: RubricFormat, document: RubricDocument
) -> None:
    problems: tuple[FormatProblem, ...] = ()
    try:
        written = write_rubric(document, format)
    except FormatError as error:
        problems = error.problems
    else:
        assert len(read_document(written.text, format).content.criteria) == len(document.content.criteria)
    ids = {f"criterion {one.id}" for one in document.content.criteria}
    assert all(problem.place in ids or "cannot hold this rubric" in problem.message for problem in problems)


@pytest.mark.parametrize("format", FORMATS)
def test_a_plain_rubric_in_a_formats_own_shape_is_not_refused(format: RubricFormat) -> None:
    read = read_document(EXAMPLES[format], format)
    written = write_rubric(read, format)
    assert written.losses == ()
    assert read_document(written.text) == read, "the format of a written text is not recognised"


EXAMPLES: dict[RubricFormat, str] = {
    "native": '{"name": "team/sum", "criteria": [{"id": "a", "description": "Adds.", "weight": 2}]}',
    "yaml": "name: team/sum\ntags: [math]\ncriteria:\n- {id: a, description: Adds., kind: factual}\n",
    "healthbench": '[{"criterion": "Adds.", "points": 7, "tags": ["axis:accuracy"]}]',
    "rar": '[{"title": "Sum", "description": "Essential Criteria: Adds.", "weight": 5}]',
    "srar": "<SUGGEST> Adds.\n<PITFALL> Subtracts.\n<ANSWER> Four.\n",
    "rgr": '[{"description": "Process Criteria: Adds.", "weight": 3}]',
    "grounded": json.dumps(
        {
            "question": "What is 2 + 2?",
            "passage": "Two and two are four.",
            "criteria": [
                {"id": "c_1", "weight": 2.5, "name": "Sum", "description": "Adds.", "required_elements": ["four"]}
                | {"scoring_guide": "All or nothing.", "expected_keywords": [], "expected_concepts": ["addition"]}
                | {"verification_method": "Look for the sum."}
            ],
            "doc_hash": "ab12",
        }
    ),
    "dro": '["Does the response add?", "Is the sum four?"]',
    "requirement": '[{"requirement": "Adds.", "weight": 2}, {"requirement": "Subtracts.", "weight": -1}]',
}


def _with_losses_made_good(
    back: RubricDocument, was: RubricDocument, lost: set[tuple[str | None, str]]
) -> RubricDocument:
    """The document read, with the fields reported as lost restored from the original."""
    criteria = []
    for read, one in zip(back.content.criteria, was.content.criteria, strict=True):
        fields = {field: getattr(one, field) for field in Criterion.model_fields if (one.id, field) in lost}
        criteria.append(read.model_copy(update=fields))
    heading = {field: getattr(was, field) for field in RubricDocument.model_fields if (None, field) in lost}
    return back.model_copy(update={"content": RubricContent(criteria=tuple(criteria)), **heading})
