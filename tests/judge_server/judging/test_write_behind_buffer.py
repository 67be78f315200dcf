"""Results are kept until every reader is certain to find them in the cache."""

from judge_server.judging.results import WriteBehindBuffer
from judge_server.ports import JudgeResult

YES, NO = JudgeResult(1.0), JudgeResult(0.0)


def test_a_result_is_kept_until_it_is_stored() -> None:
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


def test_a_request_takes_its_own_results_and_leaves_those_of_others() -> None:
    fresh = WriteBehindBuffer()
    for digest in (b"a", b"b", b"c"):
        fresh.add(digest, YES)
    assert dict(fresh.take_pending([b"b", b"d"])) == {b"b": YES}
    assert dict(fresh.take_pending()) == {b"a": YES, b"c": YES}


def test_a_reader_that_started_before_the_result_was_stored_still_finds_it() -> None:
    fresh = WriteBehindBuffer()
    with fresh.read_through():
        fresh.add(b"a", YES)
        fresh.mark_stored(fresh.take_pending())
        with fresh.read_through():
            fresh.add(b"b", NO)
        fresh.mark_stored(fresh.take_pending())
        assert (fresh.get(b"a"), fresh.get(b"b")) == (YES, NO)
    assert len(fresh) == 0


def test_a_reader_that_started_after_the_result_was_stored_does_not_keep_it() -> None:
    fresh = WriteBehindBuffer()
    with fresh.read_through():
        fresh.add(b"a", YES)
    fresh.mark_stored(fresh.take_pending())
    with fresh.read_through():
        assert fresh.get(b"a") is None


def test_the_first_result_of_a_digest_is_kept() -> None:
    fresh = WriteBehindBuffer()
    fresh.add(b"a", YES)
    fresh.add(b"a", NO)
    assert fresh.get(b"a") == YES
