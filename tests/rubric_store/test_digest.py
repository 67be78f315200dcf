"""Digests identify content, and survive the database and JSON."""

from hypothesis import HealthCheck, given, settings

from rubric_store import RubricStore
from tests.hypothesis_examples import examples
from tests.rubric_store.examples import contents
from trainer_client.wire import RubricContent


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
