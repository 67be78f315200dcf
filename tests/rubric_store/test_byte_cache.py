"""Caches of callers' texts are bounded in bytes, whatever their number of entries."""

from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging import prompts
from judge_server.judging.questions import _YES_NO_CHOICES, ask_criteria
from rubric_store.byte_cache import ByteCache, size_of
from tests.judge_server.support import prepared
from trainer_client.wire import Criterion


@given(st.lists(st.tuples(st.integers(0, 9), st.text(max_size=300)), max_size=60))
def test_a_cache_stays_within_its_bytes_and_returns_the_last_value_put(puts: list[tuple[int, str]]) -> None:
    cache: ByteCache[int, str] = ByteCache(4000)
    last: dict[int, str] = {}
    for key, value in puts:
        cache.put(key, value)
        last[key] = value
        assert cache.bytes <= 4000
    for key, value in last.items():
        assert cache.get(key) in (None, value)


def test_the_least_recently_used_entry_is_evicted_and_an_oversized_one_is_not_kept() -> None:
    cache: ByteCache[str, str] = ByteCache(8000)
    names = [str(n) for n in range(100)]
    for name in names:
        cache.put(name, "x" * 400)
        cache.get("0")
    assert cache.get("0")
    assert cache.get("1") is None
    assert cache.get("99")
    held = cache.bytes
    cache.put("huge", "x" * 2000)
    assert cache.get("huge") is None
    assert cache.bytes <= held
    assert cache.get_or_create("new", lambda: "made") == cache.get_or_create("new", lambda: "made again")


def test_the_size_of_a_model_counts_all_its_texts() -> None:
    small = Criterion(id="a", description="d")
    large = Criterion(id="a", description="d", required_elements=("x" * 2000,) * 64)
    assert size_of(large) - size_of(small) > 100_000


def test_long_criteria_leave_the_caches_within_their_bounds() -> None:
    texts = [Criterion(id=f"c{n}", description=f"{n}" + "x" * 19_000) for n in range(400)]
    for votes in range(5):
        templates = prepared(rationale=votes % 2 == 0, temperature=votes / 8).single_templates
        for criterion in texts:
            templates.question(criterion)
    assert 0 < prompts._QUESTIONS.bytes <= 32 * 2**20
    for steps in range(400):
        ask_criteria(prepared("stepwise"), (texts[0],), tuple(range(1, 2 + 10 * steps)), None)
    assert 0 < _YES_NO_CHOICES.bytes <= 8 * 2**20
