"""Arbitrary rubric documents for tests of formats: of any kind, and of the kinds that each format can express."""

from typing import get_args

from hypothesis import strategies as st

from rubric_store.formats import RubricDocument, RubricFormat
from tests.rubric_store.examples import texts, weights
from trainer_client.wire import Criterion, CriterionKind, Lineage, RubricContent

line = texts.filter(lambda text: not {"\n", "\r", "\0"} & set(text))
ODD = (
    "no|~|1e3|0o17|12:30|- a|a: b|#x|? y|<PITFALL> x|Essential Criteria: x|'|\"|*a|process criteria : y|\u2028|"
    "a\nb\n c|true|.5|{}|[1]|1. Is it?|@x|%y|\x85|é\xa0b"
)
odd = st.sampled_from(ODD.split("|")).filter(lambda text: text == text.strip())
anything = texts | odd
lists = st.lists(anything, max_size=2).map(tuple)
verifications = st.sampled_from(
    [
        None,
        {"method": "judge"},
        {"method": "contains", "all_of": ["x"], "step": 2},
        {"method": "numeric", "expected": 1.5},
        {"method": "json_schema", "schema": {"type": "object"}},
        {"method": "math", "expected": "1/2"},
    ]
)


def documents(
    kinds: st.SearchStrategy[str], descriptions: st.SearchStrategy[str], of_weight: st.SearchStrategy[float], bare: bool
) -> st.SearchStrategy[RubricDocument]:
    """Documents with criteria of these kinds; bare ones have only what every format can express."""
    criterion = st.builds(
        Criterion,
        id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
        description=descriptions,
        kind=kinds,
        weight=of_weight,
        **{} if bare else GUIDED,
    )
    many = st.lists(criterion, min_size=1, max_size=4, unique_by=lambda one: one.id)
    content = many.filter(lambda all_: any(one.weight > 0 for one in all_)).map(
        lambda all_: RubricContent(criteria=tuple(all_))
    )
    if bare:
        return content.map(lambda of: RubricDocument(content=of))
    return st.builds(RubricDocument, content=content, **HEADING)


GUIDED = {
    "tags": st.lists(texts | st.sampled_from(["essential", "pitfall"]), max_size=2).map(tuple),
    "scale": st.integers(1, 100),
    "verification": verifications,
    "name": st.none() | anything,
    "required_elements": lists,
    "scoring_guide": st.none() | anything,
    "expected_keywords": lists,
    "expected_concepts": lists,
    "verification_method": st.none() | anything,
}
HEADING = {
    "name": st.none() | st.sampled_from(["team/a", "1", "no", "1e3", "a.b-c_d"]),
    "tags": st.lists(st.sampled_from(["math", "1", "no", "level:2", "0x1"]), max_size=2).map(tuple),
    "metadata": st.none()
    | st.dictionaries(
        anything, st.integers(-(10**20), 10**20) | weights | st.booleans() | st.none() | anything, max_size=2
    ),
    "lineage": st.none()
    | st.builds(Lineage, author=st.none() | line, parameters=st.dictionaries(line, st.integers() | line, max_size=2)),
}

kinds = st.sampled_from(get_args(CriterionKind))
positive = st.floats(min_value=1e-6, max_value=1e6)
any_document = documents(kinds, anything, weights, bare=False)

REPRESENTABLE: dict[RubricFormat, st.SearchStrategy[RubricDocument]] = {
    "native": any_document,
    "yaml": any_document,
    "healthbench": documents(kinds, anything, weights, bare=False),
    "rar": documents(kinds, anything, weights, bare=False),
    "srar": documents(st.sampled_from(["suggest", "pitfall", "bonus", "answer"]), line, positive, bare=False),
    "rgr": documents(st.sampled_from(["factual", "process"]), anything, st.integers(1, 5).map(float), bare=False),
    "grounded": documents(st.sampled_from(["point", "factual"]), anything, positive | st.just(0.0), bare=False),
    "requirement": documents(kinds, anything, weights, bare=False),
    "dro": documents(st.sampled_from(["point", "factual"]), anything, positive, bare=False),
}
"""Documents that a format can mostly express, with much that it has no field for."""
