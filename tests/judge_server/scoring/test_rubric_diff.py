"""A diff lists exactly what changed between two versions, by criterion id."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.scoring.rubrics import diff_versions
from tests.hypothesis_examples import examples
from tests.rubric_store.examples import contents
from trainer_client.wire import Criterion, RubricContent, RubricDiff, RubricVersion

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def version(number: int, *criteria: Criterion, name: str = "a") -> RubricVersion:
    content = RubricContent(criteria=criteria)
    return RubricVersion(name=name, version=number, digest=content.digest, criteria=criteria, created_at=NOW)


def criterion(id_: str, **fields: object) -> Criterion:
    return Criterion.model_validate({"id": id_, "description": f"Says {id_}.", **fields})


A, B, C, D = (criterion(id_) for id_ in "abcd")


def apply(criteria: tuple[Criterion, ...], diff: RubricDiff) -> tuple[Criterion, ...]:
    """The criteria that a diff makes of those of its first version."""
    fields = {criterion.id: criterion.model_dump() for criterion in criteria}
    for removed in diff.removed:
        del fields[removed.criterion.id]
    for reworded in diff.reworded:
        fields[reworded.id]["description"] = reworded.after
    for reweighted in diff.reweighted:
        fields[reweighted.id]["weight"] = reweighted.after
    for changed in diff.changed:
        fields[changed.id][changed.field] = changed.after
    placed = {added.place: added.criterion for added in diff.added}
    placed |= {move.after: Criterion.model_validate(fields.pop(move.id)) for move in diff.moved}
    unmoved = map(Criterion.model_validate, fields.values())
    return tuple(placed[place] if place in placed else next(unmoved) for place in range(len(fields) + len(placed)))


@st.composite
def edited(draw: st.DrawFn) -> tuple[RubricContent, RubricContent]:
    """Two contents that share some ids; criteria of the second are kept, changed or new, in any order."""
    before, other = draw(contents), draw(contents)
    donors = list(other.criteria)
    kept = [
        draw(
            st.sampled_from(
                [c, c.model_copy(update={"weight": 1.5}), c.model_copy(update={"description": "Other."})]
                + [donor.model_copy(update={"id": c.id}) for donor in donors]
            )
        )
        for c in draw(st.lists(st.sampled_from(before.criteria), unique_by=lambda c: c.id))
    ]
    taken = {c.id for c in kept}
    after = draw(st.permutations([*kept, *[c for c in donors if c.id not in taken]]))
    if not any(c.weight > 0 for c in after):
        after.append(Criterion(id="0" * 30, description="Is there."))
    return before, RubricContent(criteria=tuple(after))


@settings(max_examples=examples(200), deadline=None)
@given(edited())
def test_applying_a_diff_to_its_first_version_gives_the_second(pair: tuple[RubricContent, RubricContent]) -> None:
    before, after = pair
    diff = diff_versions(version(1, *before.criteria), version(2, *after.criteria))
    sent = RubricDiff.model_validate_json(diff.model_dump_json())
    assert apply(before.criteria, sent) == after.criteria


@settings(max_examples=examples(100), deadline=None)
@given(edited())
def test_every_criterion_of_the_second_version_is_under_a_heading_or_unchanged(
    pair: tuple[RubricContent, RubricContent],
) -> None:
    before, after = pair
    diff = diff_versions(version(1, *before.criteria), version(2, *after.criteria))
    touched = {item.id for part in (diff.reworded, diff.reweighted, diff.changed, diff.moved) for item in part}
    assert len(touched) + len(diff.added) + diff.unchanged == len(after.criteria)
    back = diff_versions(version(2, *after.criteria), version(1, *before.criteria))
    assert {p.criterion.id for p in back.added} == {p.criterion.id for p in diff.removed}
    assert len(back.moved) == len(diff.moved)


CHANGES: dict[str, object] = {
    "description": "Says more.",
    "kind": "factual",
    "weight": 2.0,
    "tags": ["x"],
    "scale": 5,
    "verification": {"method": "math"},
    "name": "Sum",
    "required_elements": ["x"],
    "scoring_guide": "1 or 0",
    "expected_keywords": ["x"],
    "expected_concepts": ["x"],
    "verification_method": "Look.",
    "shadow": True,
    "applies_to": "last_turn",
}


@pytest.mark.parametrize("field", [name for name in Criterion.model_fields if name != "id"])
def test_a_change_of_any_field_is_listed(field: str) -> None:
    after = (criterion("a", **{field: CHANGES[field]}), B)
    diff = diff_versions(version(1, A, B), version(2, *after))
    assert diff.unchanged == 1
    assert apply((A, B), RubricDiff.model_validate_json(diff.model_dump_json())) == after


def test_equal_versions_do_not_differ() -> None:
    diff = diff_versions(version(1, A, B), version(2, A, B))
    assert diff.model_dump(exclude_defaults=True).keys() == {"name", "before", "after", "unchanged"}
    assert diff.unchanged == 2


def test_each_kind_of_change_has_its_own_heading() -> None:
    after = (
        D,
        criterion("a", description="Says something else."),
        criterion("b", weight=2.5),
        criterion("e", kind="pitfall", tags=["safety"], scale=10, verification={"method": "math"}),
    )
    diff = diff_versions(version(1, A, B, C, criterion("e")), version(4, *after))
    assert (diff.before.version, diff.after.version) == (1, 4)
    assert [(p.place, p.criterion) for p in diff.added] == [(0, D)]
    assert [(p.place, p.criterion) for p in diff.removed] == [(2, C)]
    assert [(r.id, r.before, r.after) for r in diff.reworded] == [("a", "Says a.", "Says something else.")]
    assert [(r.id, r.before, r.after) for r in diff.reweighted] == [("b", 1.0, 2.5)]
    assert [(c.id, c.field, c.before) for c in diff.changed] == [
        ("e", "kind", "point"),
        ("e", "tags", []),
        ("e", "scale", 4),
        ("e", "verification", None),
    ]
    assert (diff.moved, diff.unchanged) == ((), 0)


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ((A, B, C, D), (D, A, B, C), [("d", 3, 0)]),
        ((A, B, C, D), (B, C, D, A), [("a", 0, 3)]),
        ((A, B), (C, A, B), []),
        ((A, B, C), (B, C), []),
        ((A, B, C), (C, A), [("c", 2, 0)]),
    ],
)
def test_only_reordered_criteria_have_moved(
    before: tuple[Criterion, ...], after: tuple[Criterion, ...], moved: list[tuple[str, int, int]]
) -> None:
    diff = diff_versions(version(1, *before), version(2, *after))
    assert [(m.id, m.before, m.after) for m in diff.moved] == moved


def test_versions_of_different_rubrics_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"a@1 and b@1 are versions of different rubrics"):
        diff_versions(version(1, A), version(1, A, name="b"))
