"""`points`: criteria with points, and an ideal answer written where none is given."""

from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds.points import PointsGenerator, PointsRow
from tests.judge_server.generation.scripted_writer import ModelScript, criteria, discarded, generated

IDEAL = "Keep it in a cloth bag at room temperature. Do not put it into the fridge."
ITEMS = [
    {"description": "Names a cloth bag.", "points": 7},
    {"description": "Advises room temperature.", "points": 5},
    {"description": "Advises the fridge.", "points": -6},
]
ASKED = "How do I keep bread fresh?"


async def make(told: ModelScript, row: dict[str, Any] | None = None) -> GeneratedRubric:
    """The rubric generated from the input."""
    return await generated(
        PointsGenerator, PointsRow.model_validate(row or {"question": ASKED, "ideal_answer": IDEAL}), told
    )


async def test_points_are_weights() -> None:
    rubric = await make(ModelScript(criteria(ITEMS)))
    assert [(c.id, c.kind, c.weight) for c in rubric.content.criteria] == [
        ("point-1", "point", 7),
        ("point-2", "point", 5),
        ("point-3", "point", -6),
    ]


async def test_an_ideal_answer_is_written_where_none_is_given() -> None:
    told = ModelScript(IDEAL, criteria(ITEMS))
    rubric = await make(told, {"question": ASKED})
    assert IDEAL in told.asked[1][1]
    assert rubric.record == {"ideal_answer": IDEAL, "ideal_answer_given": False}


async def test_a_conversation_is_one_question() -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bread!"},
    ]
    rubric = await make(ModelScript(criteria(ITEMS)), {"prompt": turns, "ideal_answer": IDEAL})
    assert rubric.metadata["question"] == "User: Hi\n\nAssistant: Yes?\n\nUser: Bread!"
    alone = await make(ModelScript(criteria(ITEMS)), {"prompt": turns[:1], "ideal_answer": IDEAL})
    assert alone.metadata["question"] == "Hi"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([item | {"points": -3} for item in ITEMS], "bad_weight"),
        ([ITEMS[0] | {"points": 0}, *ITEMS[1:]], "bad_weight"),
        ([ITEMS[0] | {"points": 11}, *ITEMS[1:]], "bad_weight"),
        ([ITEMS[0] | {"points": 2.5}, *ITEMS[1:]], "bad_weight"),
        (ITEMS[:2], "too_few"),
        ([ITEMS[0] | {"description": f"Names {n} ways."} for n in range(40)], "too_many"),
        ([*ITEMS, ITEMS[1] | {"description": IDEAL}], "leaks_reference"),
    ],
)
async def test_each_mistake_of_a_model_has_its_own_reason(items: list[Any], expected: str) -> None:
    assert await discarded(make(ModelScript(criteria(items)))) == expected
