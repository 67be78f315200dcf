"""`gate`: yes/no criteria that the reference answer satisfies. `graded`: positive and negative criteria."""

import json
from typing import Any

import pytest

from judge_server.generation.generator import AnsweredRow, GeneratedRubric
from judge_server.generation.kinds.dro import GateGenerator, GradedGenerator
from judge_server.ports import JsonOutput
from tests.judge_server.generation.scripted_writer import ANSWER, ModelScript, criteria, discarded, generated

ROW = AnsweredRow(question="How many meters does James run?", reference_answer=ANSWER)
QUESTIONS = [
    "Does the response count 9 sprints?",
    "Does the response name a unit?",
    "Does the response state 540?",
]


def verdicts(*satisfied: bool) -> dict[str, Any]:
    """The judge's reply about this many criteria."""
    return criteria([{"id": n, "satisfied": yes, "justification": "so"} for n, yes in enumerate(satisfied, 1)])


async def make(told: ModelScript, **parameters: Any) -> GeneratedRubric:
    """The yes/no criteria generated from the input."""
    return await generated(GateGenerator, ROW, told, **parameters)


async def reason(*said: Any, **parameters: Any) -> str:
    """The reason why the input is discarded."""
    return await discarded(make(ModelScript(*said), **parameters))


async def test_only_criteria_satisfied_by_the_reference_answer_are_kept() -> None:
    told = ModelScript(criteria(QUESTIONS), verdicts(True, False, True))
    made = await make(told)
    assert [c.description for c in made.content.criteria] == [QUESTIONS[0], QUESTIONS[2]]
    assert made.record["dropped"] == [{"criterion": QUESTIONS[1], "justification": "so"}]
    assert len(told.asked) == 2
    assert all(question in told.asked[1][1] for question in QUESTIONS)
    assert "When uncertain" in told.asked[1][1]


async def test_too_few_satisfied_criteria_give_no_rubric() -> None:
    assert await reason(criteria(QUESTIONS), verdicts(True, False, False)) == "not_satisfied_by_reference"
    assert (await make(ModelScript(criteria(QUESTIONS), verdicts(True, False, False)), kept=1)).content.criteria


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (criteria(QUESTIONS[:1]), "too_few"),
        (criteria([f"Does it name the number {n}?" for n in range(40)]), "too_many"),
        (criteria([*QUESTIONS, QUESTIONS[0].upper()]), "duplicate_criteria"),
        (criteria([*QUESTIONS, f"Does it say {ANSWER}?"]), "leaks_reference"),
    ],
)
async def test_each_mistake_of_the_author_has_its_own_reason(said: Any, expected: str) -> None:
    assert await reason(said) == expected


@pytest.mark.parametrize("ids", [(1, 2, 2), (0, 1, 2), (1, 2, 4)])
async def test_verdicts_that_do_not_match_the_criteria_are_discarded(ids: tuple[int, ...]) -> None:
    said = criteria([{"id": id_, "satisfied": True, "justification": "so"} for id_ in ids])
    assert await reason(criteria(QUESTIONS), said) == "wrong_shape"


async def test_verdicts_that_omit_criteria_are_discarded() -> None:
    assert await reason(criteria(QUESTIONS), verdicts(True, True)) == "too_few"


GRADED = {"positive": ["Counts 9 sprints.", "Multiplies 9 by 60."], "negative": ["Forgets the three days."]}


async def graded(told: ModelScript, **parameters: Any) -> GeneratedRubric:
    """The signed criteria generated from the input."""
    return await generated(GradedGenerator, ROW, told, **parameters)


async def test_signs_become_weights_and_ids() -> None:
    made = await graded(ModelScript(GRADED), scale=6)
    assert [(c.id, c.weight, c.scale) for c in made.content.criteria] == [
        ("positive-1", 1, 6),
        ("positive-2", 1, 6),
        ("negative-1", -1, 6),
    ]


async def test_negative_criteria_are_asked_for_but_not_required() -> None:
    told = ModelScript(GRADED | {"negative": []})
    assert {c.weight for c in (await graded(told)).content.criteria} == {1}
    form = told.calls[0].answer
    assert isinstance(form, JsonOutput)
    assert json.loads(form.schema)["properties"]["negative"]["minItems"] == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"positive": ["Counts 9 sprints."]}, "too_few"),
        ({"positive": []}, "too_few"),
        ({"positive": [f"Writes the number {n}." for n in range(40)]}, "too_many"),
        ({"negative": ["counts 9 sprints"]}, "duplicate_criteria"),
        ({"positive": [ANSWER, "Multiplies 9 by 60."]}, "leaks_reference"),
    ],
)
async def test_each_mistake_in_signed_criteria_has_its_own_reason(change: dict[str, Any], expected: str) -> None:
    assert await discarded(graded(ModelScript(GRADED | change))) == expected
