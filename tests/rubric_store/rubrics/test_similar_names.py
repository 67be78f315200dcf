"""The name or alias that is suggested for one that does not exist."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubric_store.rubrics.store import most_similar
from tests.growth import assert_linear

NAMES = ("math/primes", "math/proofs", "chem/acids", "style")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("math/prime", "math/primes"),
        ("math/pirmes", "math/primes"),
        ("mathprimes", "math/primes"),
        ("chem/acid", "chem/acids"),
        ("styles", "style"),
        ("history", None),
        ("", None),
        ("x", None),
    ],
)
def test_the_most_similar_name_is_found(asked: str, found: str | None) -> None:
    assert most_similar(asked, NAMES) == found


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=5))
def test_a_name_is_most_similar_to_itself(name: str, others: list[str]) -> None:
    assert most_similar(name, [*others, name]) == name


@pytest.mark.parametrize("texts", [("ab", "a", "b"), ("a", "a", "b"), ("ab", "ba", "")], ids=str)
def test_similarity_takes_time_linear_in_the_names(texts: tuple[str, str, str]) -> None:
    def work(size: int) -> Callable[[], object]:
        name, first, last = [text * (size // max(1, len(text))) for text in texts]
        return lambda: most_similar(name, [first + last])

    assert_linear(work, 10_000)
