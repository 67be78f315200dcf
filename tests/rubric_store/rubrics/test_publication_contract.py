"""The contract of `RubricSource` for data published with the criteria: metadata, lineage, tags and parents."""

import pytest
from hypothesis import HealthCheck, given, settings

from judge_server.ports import RubricSource
from rubric_store import RubricStore
from tests.hypothesis_examples import examples
from tests.rubric_store.examples import contents, rubric
from trainer_client.wire import Lineage, RubricContent

PROJECT = "p1"
LINEAGE = Lineage(
    generator="contrastive",
    model="qwen",
    template_digest="sha256:" + "0" * 64,
    parameters={"samples": 8, "temperature": 0.7, "nested": {"a": [1, None, "é"]}},
    source_digest="sha256:" + "1" * 64,
    operation_id="op-7",
)
METADATA = {"by": "Ada", "nul": "\x00", "nested": {"a": [1, 2.5, None, True, "🧮"]}}


async def test_metadata_and_lineage_are_read_as_published(source: RubricSource) -> None:
    published, _ = await source.publish(PROJECT, "a", rubric("x"), metadata=METADATA, lineage=LINEAGE)
    assert (published.metadata, published.lineage) == (METADATA, LINEAGE)
    assert await source.find(PROJECT, "a@1") == published


async def test_a_change_outside_the_criteria_makes_no_version(source: RubricSource) -> None:
    first, _ = await source.publish(PROJECT, "a", rubric("x"), metadata={"by": "Ada"})
    again, added = await source.publish(PROJECT, "a", rubric("x"), metadata={"by": "Bob"}, lineage=LINEAGE, parent=1)
    assert (again, added) == (first, False)
    assert first.digest == rubric("x").digest


async def test_a_versions_parent_is_the_newest_one_unless_given(source: RubricSource) -> None:
    parents = []
    for text, parent in (("w", None), ("x", None), ("y", 1), ("z", None)):
        parents.append((await source.publish(PROJECT, "a", rubric(text), parent=parent))[0].parent)
    assert parents == [None, 1, 1, 3]
    found = await source.find(PROJECT, "a@3")
    assert found is not None
    assert found.parent == 1


@pytest.mark.parametrize(("name", "there"), [("a", "its versions are 1 to 1"), ("b", "it has no version yet")])
async def test_a_missing_parent_is_refused(source: RubricSource, name: str, there: str) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    with pytest.raises(ValueError, match=f"parent: there is no {name}@2 to descend from; {there}"):
        await source.publish(PROJECT, name, rubric("y"), parent=2)
    page = await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=10)
    assert [(s.name, s.latest_version) for s in page.rubrics] == [("a", 1)]


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"a": "x" * 70_000}, "metadata: this object is 70009 bytes as JSON; use at most 65536"),
        ({"a": float("nan")}, "metadata.*finite"),
        ({"a": "\ud800"}, "metadata.*surrogate"),
        ({"a": object()}, "metadata"),
    ],
)
async def test_metadata_that_cannot_be_stored_is_refused(
    source: RubricSource, metadata: dict[str, object], wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        await source.publish(PROJECT, "a", rubric("x"), metadata=metadata)
    assert await source.find(PROJECT, "a") is None


@pytest.mark.parametrize("name", ["team/versions", "a/diff", "a/aliases/b", "a/tags", "a/retirement/x"])
async def test_a_name_that_collides_with_a_route_is_refused(source: RubricSource, name: str) -> None:
    with pytest.raises(ValueError, match="a name must not contain"):
        await source.publish(PROJECT, name, rubric("x"))


@pytest.mark.parametrize("name", ["versions", "diff/a", "a/versions2"])
async def test_a_name_that_only_resembles_a_route_is_accepted(source: RubricSource, name: str) -> None:
    assert (await source.publish(PROJECT, name, rubric("x")))[1]


async def test_a_name_of_ten_thousand_characters_is_refused_without_being_repeated(source: RubricSource) -> None:
    with pytest.raises(ValueError, match=r"10000 characters\).*at most 200 characters") as refused:
        await source.publish(PROJECT, "a" * 10_000, rubric("x"))
    assert len(str(refused.value)) < 400
    assert await source.find(PROJECT, "a" * 10_000) is None


@given(contents)
def test_a_digest_survives_json(content: RubricContent) -> None:
    assert RubricContent.model_validate_json(content.model_dump_json()).digest == content.digest


@given(contents, contents)
def test_digests_are_equal_exactly_if_contents_are(one: RubricContent, other: RubricContent) -> None:
    same = one.model_dump_json() == other.model_dump_json()
    assert (one.digest == other.digest) == same


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents)
async def test_any_content_comes_back_from_the_database_with_its_digest(
    store: RubricStore, content: RubricContent
) -> None:
    published, _ = await store.publish("p1", "any", content)
    found = await store.find("p1", published.reference)
    assert found == published
    assert RubricContent(criteria=published.criteria).digest == content.digest
