"""`reference`: the reference answer, its verification, and the rubric made from it."""

from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.inputs import make_record, run_input
from judge_server.generation.kinds.reference import ReferenceGenerator, ReferenceParameters, ReferenceRow
from judge_server.generation.validity import published_warnings
from judge_server.generation.writer import RubricDiscarded, WriterFailed
from judge_server.ports import CallFailure, JsonOutput, Reply, SamplingOptions
from tests.judge_server.generation.scripted_writer import (
    ANSWER,
    WRONG,
    ModelScript,
    criteria,
    discarded,
    generated,
    writer,
)

QUESTION = "James runs 3 sprints of 60 meters 3 times a week. How many meters a week?"
ROW = ReferenceRow(question=QUESTION, ground_truth="540")
GIVEN = ReferenceRow(question=QUESTION, ground_truth="540", reference_answer=ANSWER)
STEP = {"kind": "process", "description": "Multiplies 3 by 3 to get 9 sprints.", "weight": 3}
STEP_2 = {"kind": "process", "description": "Multiplies 9 by 60.", "weight": 2}
FACT = {"kind": "factual", "description": "States 540 meters a week.", "weight": 5}
GOOD = criteria([STEP, STEP_2, FACT])


async def make(row: ReferenceRow, told: ModelScript, **parameters: Any) -> GeneratedRubric:
    """The rubric generated from one input."""
    return await generated(ReferenceGenerator, row, told, **parameters)


async def reason(*said: Any, row: ReferenceRow = GIVEN, **told: Any) -> str:
    """The reason why the input is discarded."""
    return await discarded(make(row, ModelScript(*said), **told))


async def test_an_answer_is_written_where_none_is_given_and_the_rubric_is_made_from_it() -> None:
    told = ModelScript(ANSWER, GOOD)
    made = await make(ROW, told)
    assert [(c.id, c.kind, c.weight) for c in made.content.criteria] == [
        ("process-1", "process", 3),
        ("process-2", "process", 2),
        ("factual-1", "factual", 5),
    ]
    assert QUESTION in told.asked[0][1]
    assert "He runs 9*60 = 540 meters." in told.asked[1][1]
    assert made.record == {"reference_answer": ANSWER, "reference_answer_given": False}
    assert made.metadata == {"question": QUESTION, "ground_truth": "540"}


async def test_a_given_answer_is_not_written_again() -> None:
    told = ModelScript(GOOD)
    made = await make(GIVEN, told)
    assert len(told.asked) == 1
    assert made.record["reference_answer_given"] is True


@pytest.mark.parametrize(("says", "flags"), [("States 540 meters.", []), ("States the result.", ["result_not_named"])])
async def test_a_rubric_that_any_result_would_satisfy_is_flagged_and_published_with_a_warning(
    says: str, flags: list[str]
) -> None:
    generator = ReferenceGenerator(ReferenceParameters(validity=False))
    model = await writer(ModelScript(criteria([STEP, STEP_2, FACT | {"description": says}])))
    try:
        record = await make_record(generator, run_input(generator, model.identity, GIVEN), model)
    finally:
        await generator.answers.close()
    assert record["flags"] == [one.flag for one in published_warnings(record["metadata"])] == flags


async def test_prefixes_from_the_paper_are_stripped() -> None:
    said = criteria([STEP | {"description": "Process Criteria: Multiplies 3 by 3."}, STEP_2, FACT])
    made = await make(GIVEN, ModelScript(said))
    assert made.content.criteria[0].description == "Multiplies 3 by 3."


@pytest.mark.parametrize(("given", "written"), [(WRONG, []), (None, [WRONG])])
async def test_a_wrong_reference_answer_is_discarded_before_a_rubric_is_requested(
    given: str | None, written: list[str]
) -> None:
    row = ReferenceRow(question=QUESTION, ground_truth="540", reference_answer=given)
    assert await reason(*written, row=row) == "wrong_reference_answer"


@pytest.mark.parametrize(
    ("ground_truth", "answer"),
    [
        (r"\frac{1}{2}", r"So it is \boxed{0.5}"),
        ("x^2+1", "Final answer: $1 + x^2$"),
        ("540", "9 * 60 = $540"),
        ("Paris", "Final answer: paris"),
    ],
)
async def test_answers_are_compared_as_mathematics_or_text_without_asking_the_model(
    ground_truth: str, answer: str
) -> None:
    row = ReferenceRow(question=QUESTION, ground_truth=ground_truth, reference_answer=answer)
    assert (await make(row, ModelScript(GOOD))).content.criteria


async def test_an_answer_that_cannot_be_compared_is_not_accepted() -> None:
    row = ReferenceRow(question=QUESTION, ground_truth="<>", reference_answer="So it is.")
    with pytest.raises(RubricDiscarded, match="no final answer that can be compared"):
        await make(row, ModelScript(GOOD))


@pytest.mark.parametrize(("said", "right"), [("yes", True), ("no", False)])
async def test_the_model_decides_about_differently_worded_answers(said: str, right: bool) -> None:
    row = ReferenceRow(
        question="Why is the sky blue?", ground_truth="Rayleigh scattering", reference_answer="Air scatters blue most."
    )
    if right:
        assert (await make(row, ModelScript(said, GOOD))).content.criteria
    else:
        assert await reason(said, row=row) == "wrong_reference_answer"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (criteria([STEP]), "too_few"),
        (criteria([STEP | {"description": f"Writes the number {n} down."} for n in range(40)]), "too_many"),
        (criteria([STEP | {"kind": "bonus"}, STEP_2, FACT]), "unknown_kind"),
        (criteria([STEP | {"weight": 0}, STEP_2, FACT]), "bad_weight"),
        (criteria([STEP | {"weight": 6}, STEP_2, FACT]), "bad_weight"),
        (criteria([STEP | {"description": "Says: " + ANSWER}, STEP_2, FACT]), "leaks_reference"),
        (CallFailure("truncated_input", "too many tokens"), "too_long"),
    ],
)
async def test_each_mistake_of_a_model_is_discarded_with_its_own_reason(said: Any, expected: str) -> None:
    assert await reason(said) == expected


async def test_an_unfinished_reference_answer_is_cut_short() -> None:
    assert await reason(Reply(text="First,", cut=True), row=ROW) == "cut_short"


async def test_an_overlong_reference_answer_is_discarded() -> None:
    assert await reason(row=GIVEN, reference_characters=20) == "too_long"


async def test_an_engine_without_an_answer_is_not_a_discard() -> None:
    with pytest.raises(WriterFailed):
        await make(GIVEN, ModelScript(*[CallFailure("engine", "gone")] * 4))


async def test_the_models_output_is_constrained_to_the_requested_bounds() -> None:
    told = ModelScript(criteria([FACT]))
    await make(GIVEN, told, min_criteria=1, max_criteria=2, temperature=0.5, seed=3, rubric_tokens=99)
    form = told.calls[0].answer
    assert isinstance(form, JsonOutput)
    assert '"maxItems":2,"minItems":1' in form.schema
    assert '"enum":["process","factual"]' in form.schema
    assert '"maximum":5,"minimum":1' in form.schema
    assert form.max_tokens == 99
    assert told.calls[0].sample == SamplingOptions(0.5, 3)
    assert "1 to 2 criteria" in told.asked[0][1]
