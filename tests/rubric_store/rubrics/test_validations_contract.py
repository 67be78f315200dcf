"""The contract of `RubricValidations`: a judge's findings are kept with a version, and never replaced."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from judge_server.ports import RubricValidations
from rubric_store import RubricStore
from rubric_store.rubrics.rows import CriterionValidity, RubricValidation
from rubric_store.rubrics.tables import rubric_validations
from tests.rubric_store.examples import rubric

PROJECT = "p1"
WORDS = "sha256:" + "0" * 64


@pytest.fixture
async def source(store: RubricStore) -> RubricValidations:
    """A store with a rubric `a`, of two versions with two criteria and one, and another project's `a`."""
    await store.publish(PROJECT, "a", rubric("x", "y"))
    await store.publish(PROJECT, "a", rubric("z"))
    await store.publish("p2", "a", rubric("x", "y"))
    return store


def items(*valid: bool | None, reason: str = "So.") -> list[CriterionValidity]:
    return [CriterionValidity(criterion=f"c{n}", valid=one, reason=reason) for n, one in enumerate(valid, start=1)]


async def keep(
    source: RubricValidations, found: list[CriterionValidity], judge: str = "ada", version: int = 1
) -> RubricValidation:
    digest = "sha256:" + judge.encode().hex().rjust(64, "0")
    return await source.add_validation(
        PROJECT, "a", version, judge=digest, model=judge, template_digest=WORDS, items=found
    )


async def test_findings_are_read_as_they_were_stored(source: RubricValidations) -> None:
    before = datetime.now(UTC)
    kept = await keep(source, items(True, None, reason="Nul \x00, ' and 🧮."))
    assert await source.validations(PROJECT, "a", 1) == (kept,)
    assert kept.reference == "a@1"
    assert [(item.criterion, item.valid) for item in kept.items] == [("c1", True), ("c2", None)]
    assert before <= kept.created_at <= datetime.now(UTC) + timedelta(seconds=1)


async def test_an_unjudged_version_has_none(source: RubricValidations) -> None:
    await keep(source, items(True, True))
    assert await source.validations(PROJECT, "a", 2) == ()
    assert await source.validations(PROJECT, "a", 9) == ()
    assert await source.validations(PROJECT, "b", 1) == ()
    assert await source.validations("p2", "a", 1) == ()


async def test_the_newest_validation_of_each_judge_counts_and_the_newest_of_all_comes_first(
    source: RubricValidations,
) -> None:
    await keep(source, items(True, True), judge="ada")
    bob = await keep(source, items(False, True), judge="bob")
    ada = await keep(source, items(False, False), judge="ada")
    assert await source.validations(PROJECT, "a", 1) == (ada, bob)


async def test_an_older_pass_stays_in_the_table(source: RubricValidations, store: RubricStore) -> None:
    for valid in (True, False, True):
        await keep(source, items(valid, True))
    assert [row[0] for row in await store._read(select(func.count()).select_from(rubric_validations))] == [3]


async def test_concurrent_validations_are_all_kept(source: RubricValidations) -> None:
    judges = [f"judge {n}" for n in range(8)]
    await asyncio.gather(*(keep(source, items(True, None), judge=judge) for judge in judges))
    assert sorted(one.model for one in await source.validations(PROJECT, "a", 1)) == judges


@pytest.mark.parametrize(("name", "version"), [("a", 3), ("b", 1)])
async def test_a_validation_of_a_missing_version_is_refused(source: RubricValidations, name: str, version: int) -> None:
    with pytest.raises(LookupError, match=name):
        await source.add_validation(
            PROJECT, name, version, judge="j", model="m", template_digest=WORDS, items=items(True)
        )


@pytest.mark.parametrize("found", [[], items(True), items(True, True, True), items(True, True)[::-1]])
async def test_verdicts_on_other_criteria_than_the_versions_are_refused(
    source: RubricValidations, found: list[CriterionValidity]
) -> None:
    with pytest.raises(ValueError, match="must be the criteria of a@1"):
        await keep(source, found)
    assert await source.validations(PROJECT, "a", 1) == ()
