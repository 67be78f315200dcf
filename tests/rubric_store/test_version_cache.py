"""The cache of references: only immutable ones, the last used, separate for each project."""

from datetime import UTC, datetime

from rubric_store.rubrics.queries import VersionCache
from trainer_client.wire import Criterion, RubricVersion, content_digest, parse_reference

CRITERIA = (Criterion(id="a", description="Is right."),)
VERSION = RubricVersion(
    name="team/a", version=1, digest=content_digest(CRITERIA), criteria=CRITERIA, created_at=datetime.now(UTC)
)


def test_versions_and_digests_are_cached_and_movable_references_are_not() -> None:
    remembered = VersionCache()
    for text in ("team/a@1", VERSION.digest, "team/a", "team/a@production", "team/a@latest"):
        remembered.put("p", parse_reference(text), VERSION, 0.0)
    assert remembered.get("p", parse_reference("team/a@1")) is VERSION
    assert remembered.get("p", parse_reference(VERSION.digest)) is VERSION
    for text in ("team/a", "team/a@production", "team/a@latest", "team/a@2"):
        assert remembered.get("p", parse_reference(text)) is None


def test_a_project_gets_only_what_it_found_itself() -> None:
    remembered = VersionCache()
    remembered.put("p", parse_reference("team/a@1"), VERSION, 0.0)
    assert remembered.get("q", parse_reference("team/a@1")) is None


def test_the_version_found_longest_ago_is_evicted_first() -> None:
    million = Criterion(id="a", description="x" * 20_000).model_copy(update={"description": "x" * 2**20})
    version = VERSION.model_copy(update={"criteria": (million,)})
    remembered = VersionCache()
    for number in [*range(1, 21), 1, *range(21, 41)]:
        remembered.put("p", parse_reference(f"team/a@{number}"), version, 0.0)
    kept = [n for n in range(1, 41) if remembered.get("p", parse_reference(f"team/a@{n}"))]
    assert kept == [1, *range(42 - len(kept), 41)]
    assert 20 < len(kept) <= 32  # versions of one mebibyte each
