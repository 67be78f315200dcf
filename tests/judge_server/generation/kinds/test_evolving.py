"""`evolving`: new criteria that tell current responses apart, as a version of a rubric in the store."""

from typing import Any

import pytest

from judge_server.generation.generator import GeneratedRubric, RubricLookup
from judge_server.generation.kinds.evolving import EVOLVED_TAG, EvolvingGenerator, EvolvingRow
from judge_server.ports import LabelChoice
from rubric_store import RubricStore
from tests.judge_server.generation.scripted_writer import ANSWER, WRONG, ModelScript, criteria, discarded, generated
from trainer_client.wire import Criterion, RubricContent, RubricVersion

QUESTION = "How many meters does James run?"
NEW = [{"sign": "positive", "description": "Names the unit."}, {"sign": "negative", "description": "Stops too early."}]
OLD = (
    Criterion(id="first", description="Counts 9 sprints."),
    Criterion(id="evolved-1", description="Writes sentences.", tags=(EVOLVED_TAG,)),
    Criterion(id="evolved-2", description="Shows each sum.", tags=(EVOLVED_TAG,)),
)


async def evolving(
    told: ModelScript, find: RubricLookup | None, rubric: str = "team/run", **parameters: Any
) -> GeneratedRubric:
    """The rubric generated from the input, whose rubric `find` looks up."""
    row = EvolvingRow(question=QUESTION, rubric=rubric, responses=(ANSWER, WRONG))
    return await generated(EvolvingGenerator, row, told, find=find, **parameters)


def finding(store: RubricStore) -> RubricLookup:
    """A lookup of rubrics in a store."""

    async def find(reference: str) -> RubricVersion | None:
        return await store.find("default", reference)

    return find


@pytest.fixture
async def find(store: RubricStore) -> RubricLookup:
    """A lookup of a rubric of three criteria, two of them evolved, named `team/run`."""
    await store.publish("default", "team/run", RubricContent(criteria=OLD), metadata={"about": "running"})
    return finding(store)


async def test_new_criteria_join_the_rubric_and_the_others_keep_their_ids(find: RubricLookup) -> None:
    told = ModelScript(criteria(NEW), "4", "1", "0", "3")
    made = await evolving(told, find)
    assert made.content.criteria[:3] == OLD
    added = made.content.criteria[3:]
    assert [(c.description, c.weight, c.tags) for c in added] == [
        ("Names the unit.", 1, (EVOLVED_TAG,)),
        ("Stops too early.", -1, (EVOLVED_TAG,)),
    ]
    assert (made.name, made.parent_reference) == ("team/run", "team/run@1")
    assert made.metadata == {"about": "running", "question": QUESTION}
    assert "- Counts 9 sprints.\n" in told.asked[0][1]
    assert all(isinstance(call.answer, LabelChoice) for call in told.calls[1:])


async def test_criteria_that_grade_all_responses_alike_are_dropped(find: RubricLookup) -> None:
    made = await evolving(ModelScript(criteria(NEW), "2", "1", "2", "3"), find)
    assert [c.description for c in made.content.criteria[3:]] == ["Stops too early."]
    assert made.record["grades"] == [
        {"criterion": "Names the unit.", "grades": [2, 2]},
        {"criterion": "Stops too early.", "grades": [1, 3]},
    ]


async def test_where_no_criterion_distinguishes_the_responses_there_is_no_new_version(find: RubricLookup) -> None:
    assert await discarded(evolving(ModelScript(criteria(NEW), "2", "3", "2", "3"), find)) == "no_contrast"


async def test_the_oldest_evolved_criteria_are_dropped_first_and_the_original_ones_never(find: RubricLookup) -> None:
    made = await evolving(ModelScript(criteria(NEW), "4", "0", "1", "3"), find, max_evolved=3)
    assert [c.id for c in made.content.criteria][:2] == ["first", "evolved-2"]
    assert len(made.content.criteria) == 4
    made = await evolving(ModelScript(criteria(NEW), "4", "0", "1", "3"), find, max_evolved=1)
    assert made.content.criteria[0].id == "first"
    assert not {"evolved-1", "evolved-2"} & {c.id for c in made.content.criteria}


async def test_the_same_description_has_the_same_id_in_every_version(find: RubricLookup) -> None:
    once, again = [await evolving(ModelScript(criteria(NEW), "4", "0", "1", "3"), find) for _ in range(2)]
    assert [c.id for c in once.content.criteria] == [c.id for c in again.content.criteria]


async def test_a_criterion_already_in_the_rubric_is_not_new(find: RubricLookup) -> None:
    said = [{"sign": "positive", "description": "counts 9 sprints"}]
    assert await discarded(evolving(ModelScript(criteria(said)), find)) == "duplicate_criteria"
    made = await evolving(ModelScript(criteria([*said, *NEW]), "4", "0", "1", "3"), find)
    assert len(made.content.criteria) == 5


async def test_the_rubric_may_be_hidden_from_a_model_that_would_copy_it(find: RubricLookup) -> None:
    told = ModelScript(criteria([*NEW, {"sign": "positive", "description": "Shows each sum."}]), "4", "0", "1", "3")
    made = await evolving(told, find, show_known=False)
    assert "Counts 9 sprints" not in told.asked[0][1]
    assert [c.description for c in made.content.criteria[3:]] == ["Names the unit.", "Stops too early."]


async def test_new_criteria_may_all_be_negative_where_the_rubric_has_others(
    find: RubricLookup, store: RubricStore
) -> None:
    made = await evolving(ModelScript(criteria(NEW[1:]), "4", "0"), find)
    assert made.content.criteria[-1].weight == -1
    assert await discarded(evolving(ModelScript(criteria(NEW[1:])), finding(store), "team/new")) == "bad_weight"


async def test_an_unknown_name_begins_a_new_rubric(store: RubricStore) -> None:
    made = await evolving(ModelScript(criteria(NEW), "4", "0", "1", "3"), finding(store), "team/new")
    assert made.flags == ("new_rubric",)
    assert (made.name, made.parent_reference) == (None, None)
    assert len(made.content.criteria) == 2


@pytest.mark.parametrize("rubric", ["team/run@7", "sha256:" + "0" * 64])
async def test_an_unknown_version_is_refused(find: RubricLookup, rubric: str) -> None:
    assert await discarded(evolving(ModelScript(), find, rubric)) == "empty_source"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"sign": "neutral", "description": "Is written in verse."}, "unknown_kind"),
        ({"sign": "positive", "description": "Is as good as Response 2."}, "not_self_contained"),
        ({"sign": "negative", "description": "The worse response forgets the unit."}, "not_self_contained"),
        ({"sign": "positive", "description": "Names the unit!"}, "duplicate_criteria"),
        ({"sign": "positive", "description": "Writes: " + ANSWER}, "leaks_reference"),
    ],
)
async def test_each_new_criterion_is_checked(find: RubricLookup, item: dict[str, Any], expected: str) -> None:
    assert await discarded(evolving(ModelScript(criteria([*NEW, item])), find)) == expected


def test_the_rubric_keeps_its_name_whatever_version_was_requested() -> None:
    rows = [EvolvingRow(question="q", rubric=r, responses=("a", "b")) for r in ("t/x", "t/x@3", "sha256:" + "0" * 64)]
    assert [row.rubric_name for row in rows] == ["t/x", "t/x", None]
