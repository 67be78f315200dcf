"""Findings that the cache may not show yet are kept exactly as long as somebody could miss them."""

from judge_server.judging.results import WriteBehindBuffer
from judge_server.ports import JudgeResult

YES, NO = JudgeResult(1.0), JudgeResult(0.0)


def test_a_finding_is_known_until_it_is_stored_and_then_no_longer_kept() -> None:
    fresh = WriteBehindBuffer()
    fresh.add(b"a", YES)
    assert fresh.get(b"a") == YES
    taken = fresh.take_pending()
    assert dict(taken) == {b"a": YES}
    assert not fresh.take_pending()
    assert fresh.get(b"a") == YES
    fresh.mark_stored(taken)
    assert fresh.get(b"a") is None
    assert len(fresh) == 0


def test_whoever_read_the_cache_before_it_was_stored_still_finds_it() -> None:
    fresh = WriteBehindBuffer()
    with fresh.read_through():
        fresh.add(b"a", YES)
        fresh.mark_stored(fresh.take_pending())
        with fresh.read_through():
            fresh.add(b"b", NO)
        fresh.mark_stored(fresh.take_pending())
        assert (fresh.get(b"a"), fresh.get(b"b")) == (YES, NO)
    assert len(fresh) == 0


def test_a_reader_that_came_after_it_was_stored_keeps_nothing() -> None:
    fresh = WriteBehindBuffer()
    with fresh.read_through():
        fresh.add(b"a", YES)
    fresh.mark_stored(fresh.take_pending())
    with fresh.read_through():
        assert fresh.get(b"a") is None


def test_the_first_finding_of_a_digest_stands() -> None:
    fresh = WriteBehindBuffer()
    fresh.add(b"a", YES)
    fresh.add(b"a", NO)
    assert fresh.get(b"a") == YES
