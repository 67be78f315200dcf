"""Findings that the cache may not show yet are kept exactly as long as somebody could miss them."""

from judge_server.judging.findings import FreshFindings
from judge_server.ports import Finding

YES, NO = Finding(1.0), Finding(0.0)


def test_a_finding_is_known_until_it_is_stored_and_then_no_longer_kept() -> None:
    fresh = FreshFindings()
    fresh.add(b"a", YES)
    assert fresh.get(b"a") == YES
    taken = fresh.take_new()
    assert dict(taken) == {b"a": YES}
    assert not fresh.take_new()
    assert fresh.get(b"a") == YES
    fresh.stored(taken)
    assert fresh.get(b"a") is None
    assert len(fresh) == 0


def test_whoever_read_the_cache_before_it_was_stored_still_finds_it() -> None:
    fresh = FreshFindings()
    with fresh.reading():
        fresh.add(b"a", YES)
        fresh.stored(fresh.take_new())
        with fresh.reading():
            fresh.add(b"b", NO)
        fresh.stored(fresh.take_new())
        assert (fresh.get(b"a"), fresh.get(b"b")) == (YES, NO)
    assert len(fresh) == 0


def test_a_reader_that_came_after_it_was_stored_keeps_nothing() -> None:
    fresh = FreshFindings()
    with fresh.reading():
        fresh.add(b"a", YES)
    fresh.stored(fresh.take_new())
    with fresh.reading():
        assert fresh.get(b"a") is None


def test_the_first_finding_of_a_digest_stands() -> None:
    fresh = FreshFindings()
    fresh.add(b"a", YES)
    fresh.add(b"a", NO)
    assert fresh.get(b"a") == YES
