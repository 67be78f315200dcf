"""The validity judge: a verdict and a reason per item, and rates by kind."""

from typing import Any

import pytest

from judge_server.generation.kinds.points import PointsGenerator, PointsParameters, PointsRow
from judge_server.generation.validity import (
    VALIDITY_PROMPTS,
    ItemValidity,
    judge_items,
    judge_version,
    published_validity,
    rates_by_kind,
    validity_metadata,
)
from judge_server.generation.writer import WriterFailed
from judge_server.ports import CallFailure
from tests.judge_server.generation.scripted_writer import ModelScript, criteria, writer
from trainer_client.wire import Criterion, RubricContent, RubricVersion

CRITERIA = [
    Criterion(id="a", kind="factual", description="States 540."),
    Criterion(id="b", kind="pitfall", description="Adds instead."),
    Criterion(id="c", description="Is rude.", weight=-2),
]
YES, NO = {"valid": True, "reason": "It is so."}, {"valid": False, "reason": "It is about something else."}


def version(**metadata: Any) -> RubricVersion:
    """A published rubric with this metadata."""
    content = RubricContent(criteria=tuple(CRITERIA))
    return RubricVersion.model_validate(
        {
            "name": "t/x",
            "version": 2,
            "digest": content.digest,
            "criteria": content.criteria,
            "created_at": "2026-01-01T00:00:00Z",
            "metadata": metadata,
        }
    )


async def test_each_item_is_judged_separately_as_the_kind_it_claims() -> None:
    told = ModelScript(YES, NO, YES)
    items = await judge_items(await writer(told), CRITERIA, question="How far?", correct="540")
    assert [(item.id, item.kind, item.valid) for item in items] == [
        ("a", "factual", True),
        ("b", "pitfall", False),
        ("c", "negative point", True),
    ]
    assert items[1].reason == "It is about something else."
    prompts = [prompt for _, prompt in told.asked]
    assert "Kind: a mistake that a response may make." in prompts[1]
    assert "Kind: a mistake, which costs a response points." in prompts[2]
    assert all("How far?" in prompt and "540" in prompt for prompt in prompts)
    assert "States 540." not in prompts[1]


async def test_an_unreadable_verdict_is_neither_valid_nor_invalid() -> None:
    items = await judge_items(
        await writer(ModelScript(YES, "Looks fine.", YES)), CRITERIA, question="How far?", correct=None
    )
    assert items[1].valid is None
    assert items[1].reason.startswith("unreadable")


async def test_an_engine_without_an_answer_ends_the_pass() -> None:
    told = ModelScript(YES, *[CallFailure("engine", "gone")] * 4)
    with pytest.raises(WriterFailed):
        await judge_items(await writer(told), CRITERIA, question="How far?", correct=None)


def test_rates_count_judged_items_by_kind() -> None:
    items = [
        ItemValidity("1", "factual", True, ""),
        ItemValidity("2", "factual", False, ""),
        {"id": "3", "kind": "factual", "valid": True, "reason": ""},
        {"id": "4", "kind": "bonus", "valid": None, "reason": ""},
    ]
    assert rates_by_kind(items) == {
        "bonus": {"items": 1, "valid": 0, "invalid": 0, "unjudged": 1, "rate": None},
        "factual": {"items": 3, "valid": 2, "invalid": 1, "unjudged": 0, "rate": 2 / 3},
    }


async def test_a_published_rubric_is_judged_for_the_question_in_its_metadata() -> None:
    told = ModelScript(YES, YES, YES)
    items = await judge_version(await writer(told), version(question="How far?", ground_truth="540"))
    assert len(items) == 3
    assert "Correct answer:" in told.asked[0][1]


async def test_a_rubric_without_a_question_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match=r"t/x@2 has no question"):
        await judge_version(await writer(ModelScript()), version())


async def test_a_generator_ends_with_the_pass_and_stores_it_with_the_version() -> None:
    items = [{"description": f"Names the number {n}.", "points": n} for n in (1, 2, 3)]
    row = PointsRow(question="Which numbers?", ideal_answer="One, two and three.")
    told = ModelScript(criteria(items), YES, NO, "?")
    made = await PointsGenerator(PointsParameters()).make(row, await writer(told))
    kept = made.metadata["validity"]
    assert isinstance(kept, dict)
    assert kept["template_digest"] == VALIDITY_PROMPTS.digest
    assert kept["model"] == "scripted"
    assert [item["valid"] for item in kept["items"]] == [True, False, None]  # type: ignore[union-attr,call-overload,index]
    assert made.flags == ("invalid_criteria:1", "unjudged_criteria:1")


def test_stored_validity_names_the_judge() -> None:
    kept = validity_metadata([ItemValidity("1", "answer", True, "So.")], "m")
    assert kept["items"] == [{"id": "1", "kind": "answer", "valid": True, "reason": "So."}]
    assert kept["model"] == "m"


def test_a_generators_validity_is_read_from_the_version() -> None:
    items = [ItemValidity("a", "factual", True, "So."), ItemValidity("b", "pitfall", None, "unreadable")]
    gone = ItemValidity("z", "factual", False, "A criterion of the version before.")
    assert published_validity(version(validity=validity_metadata([*items, gone], "m"))) == ("m", items)


@pytest.mark.parametrize(
    "kept",
    [
        None,
        "valid",
        {},
        {"items": []},
        {"items": [{"id": "a"}]},
        {"items": [{"id": "z", "kind": "point", "valid": True, "reason": ""}]},
        {"items": "all", "model": "m"},
    ],
)
def test_unrelated_metadata_named_validity_is_ignored(kept: Any) -> None:
    assert published_validity(version(validity=kept)) is None
    assert published_validity(version()) is None
