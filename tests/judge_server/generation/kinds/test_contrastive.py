"""`contrastive`: sampled or given solutions, their split, and items distilled from both halves."""

from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric
from judge_server.generation.kinds.contrastive import ContrastiveGenerator, ContrastiveRow
from judge_server.ports import Reply, TextOutput
from tests.judge_server.generation.scripted_writer import ANSWER, WRONG, ModelScript, discarded, generated
from trainer_client.wire.criteria import MathVerification

PROBLEM = "James runs 3 sprints of 60 meters 3 times a week. How many meters a week?"
RUBRIC = {
    "suggest": ["Counts 9 sprints a week.", "Multiplies 9 by 60."],
    "pitfall": ["Forgets that he runs three times a week."],
    "bonus": [],
    "answer": "The final answer is 540 meters.",
}


async def make(told: ModelScript, *solutions: str, truth: str = "540", **parameters: Any) -> GeneratedRubric:
    """The rubric generated from one input."""
    row = ContrastiveRow(question=PROBLEM, ground_truth=truth, solutions=solutions)
    return await generated(ContrastiveGenerator, row, told, **parameters)


async def reason(told: ModelScript, *solutions: str, **parameters: Any) -> str:
    """The reason why the input is discarded."""
    return await discarded(make(told, *solutions, **parameters))


async def test_right_and_wrong_solutions_are_distinguished_and_labelled_in_the_prompt() -> None:
    told = ModelScript(RUBRIC)
    made = await make(told, WRONG, ANSWER, WRONG + " m")
    prompt = told.asked[0][1]
    assert prompt.count("A solution that is right:") == 1
    assert prompt.count("A solution that is wrong:") == 2
    assert [c.id for c in made.content.criteria] == ["suggest-1", "suggest-2", "pitfall-1", "answer-1"]
    assert made.content.criteria[-1].verification == MathVerification(method="math", expected="540")
    assert made.flags == ()
    assert made.record == {
        "solutions_given": True,
        "right": 1,
        "wrong": 2,
        "unknown": 0,
        "right_solutions": [ANSWER],
    }


async def test_without_solutions_some_are_sampled_each_with_its_own_seed() -> None:
    told = ModelScript(ANSWER, Reply(text="### Step 1:", cut=True), WRONG, RUBRIC)
    made = await make(told, samples=3, seed=5, sample_temperature=0.9)
    assert [call.sample.seed for call in told.calls[:3] if call.sample] == [5, 6, 7]
    assert all(isinstance(call.answer, TextOutput) for call in told.calls[:3])
    assert made.record["right"] == 1
    assert made.record["wrong"] == 1


async def test_a_rubric_as_large_as_the_largest_of_the_papers_corpus_is_made() -> None:
    items = {
        "suggest": [f"Does the step number {n}." for n in range(6)],
        "pitfall": [f"Forgets the factor {n}." for n in range(3)],
        "bonus": [f"Finds the short way {n}." for n in range(2)],
    }
    told = ModelScript(RUBRIC | items)
    made = await make(told, ANSWER, WRONG)
    assert [c.kind for c in made.content.criteria] == ["suggest"] * 6 + ["pitfall"] * 3 + ["bonus"] * 2 + ["answer"]
    assert "at most 8 items" in told.asked[0][1]
    assert await reason(ModelScript(RUBRIC | items), ANSWER, WRONG, max_criteria=11) == "too_many"
    assert await reason(ModelScript(RUBRIC | items), ANSWER, WRONG, max_pitfall=2) == "too_many"


@pytest.mark.parametrize(("solution", "flag"), [(ANSWER, "all_right"), (WRONG, "all_wrong")])
async def test_one_half_alone_still_gives_a_rubric_and_is_flagged(solution: str, flag: str) -> None:
    told = ModelScript(RUBRIC | {"pitfall": []})
    made = await make(told, solution, solution + ".")
    assert made.flags == (flag,)
    assert ("no wrong solution is known" in told.asked[0][1]) == (flag == "all_right")
    assert ("no right solution is known" in told.asked[0][1]) == (flag == "all_wrong")


async def test_unfinished_solutions_give_no_contrast() -> None:
    assert await reason(ModelScript(*[Reply(text="So", cut=True)] * 2), samples=2) == "no_contrast"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"suggest": []}, "too_few"),
        ({"suggest": [f"Does the step number {n}." for n in range(40)]}, "too_many"),
        ({"answer": "The final answer is 180."}, "wrong_reference_answer"),
        ({"pitfall": ["Counts 9 sprints a week"]}, "duplicate_criteria"),
        ({"bonus": ["Writes: " + ANSWER]}, "leaks_reference"),
    ],
)
async def test_each_mistake_of_a_model_is_discarded_with_its_own_reason(change: dict[str, Any], expected: str) -> None:
    assert await reason(ModelScript(RUBRIC | change), ANSWER, WRONG) == expected


async def test_a_rubric_without_an_answer_item_is_refused() -> None:
    said = {kind: items for kind, items in RUBRIC.items() if kind != "answer"}
    assert await reason(ModelScript(said), ANSWER, WRONG) == "wrong_shape"


async def test_the_answer_item_may_write_the_answer_differently() -> None:
    told = ModelScript(RUBRIC | {"answer": "The final answer is 0.5."})
    made = await make(told, r"\boxed{\frac12}", truth=r"\frac{1}{2}")
    assert made.content.criteria[-1].description == "The final answer is 0.5."


async def test_tags_repeated_in_an_item_are_stripped() -> None:
    made = await make(ModelScript(RUBRIC | {"suggest": ["<SUGGEST> Counts 9 sprints a week."]}), ANSWER)
    assert made.content.criteria[0].description == "Counts 9 sprints a week."
