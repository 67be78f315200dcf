"""Small rubrics that tests publish, and strategies for arbitrary ones."""

from typing import get_args

from hypothesis import strategies as st

from trainer_client.wire import Criterion, CriterionKind, RubricContent
from trainer_client.wire.base import MAX_MAGNITUDE, MIN_MAGNITUDE


def rubric(*descriptions: str) -> RubricContent:
    """A rubric with one plain criterion per description."""
    return RubricContent(
        criteria=tuple(Criterion(id=f"c{i}", description=text) for i, text in enumerate(descriptions, start=1))
    )


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).map(str.strip).filter(bool)
"""Any text that a criterion may hold, without surrounding space; with control characters and other scripts."""

weights = st.just(0.0) | st.floats(MIN_MAGNITUDE, MAX_MAGNITUDE) | st.floats(-MAX_MAGNITUDE, -MIN_MAGNITUDE)

criteria = st.lists(
    st.builds(
        Criterion,
        id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        description=texts,
        kind=st.sampled_from(get_args(CriterionKind)),
        weight=weights,
        tags=st.lists(texts, max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda criterion: criterion.id,
)

contents = criteria.filter(lambda many: any(c.weight > 0 for c in many)).map(
    lambda many: RubricContent(criteria=tuple(many))
)
"""Any content that may be published."""
