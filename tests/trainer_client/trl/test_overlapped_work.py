"""A method's work while the judge runs."""

import asyncio

import pytest

from tests.trainer_client.trl.judges import FakeJudgeTransport, groups, obliging, rewarding, stream, summary

IDS = [[1], [2, 3]]


async def test_it_is_done_before_the_judge_answers():
    done = asyncio.Event()

    async def answer(body):
        await done.wait()
        return stream(*groups(body), summary())

    def work(texts, ids):
        yield
        done.set()

    reward = rewarding(FakeJudgeTransport(answer), deadline_s=30.0)
    reward.overlapped_work = work
    assert await reward(["a", "a"], ["1", "2"], IDS) == [1.0, 2.0]


async def test_the_judge_is_asked_between_its_pieces():
    judge = FakeJudgeTransport()

    def work(texts, ids):
        for _ in range(1000):
            yield
        assert judge.asked

    reward = rewarding(judge, deadline_s=30.0)
    reward.overlapped_work = work
    assert await reward(["a", "a"], ["1", "2"], IDS) == [1.0, 2.0]


async def test_it_gets_the_judged_texts_and_their_tokens():
    told = []

    def work(sent, ids):
        told.append(([one.judged.text for one in sent], ids))
        yield

    reward = rewarding(FakeJudgeTransport(), reasoning="strip")
    reward.overlapped_work = work
    thought = [{"role": "assistant", "content": "<think>hm</think>\n2"}]
    await reward(["a"], ["1"], IDS[:1])
    await reward(["a"], [[{"role": "assistant", "content": "2"}]], IDS[1:])
    reward.select_judged_part = lambda said: said[0]["content"].removeprefix("<think>hm</think>\n")
    await reward(["a"], [thought], IDS[1:])
    assert told == [(["1"], IDS[:1]), (["2"], IDS[1:]), (["2"], IDS[1:])]


async def test_without_tokens_it_is_not_called():
    reward = rewarding(FakeJudgeTransport())
    reward.overlapped_work = lambda texts, ids: pytest.fail("there are no tokens")
    assert await reward(["a"], ["1"]) == [1.0]


async def test_its_error_stops_training():
    def work(texts, ids):
        yield
        raise ValueError("a token id is -1")

    reward = rewarding(FakeJudgeTransport(obliging))
    reward.overlapped_work = work
    with pytest.raises(ValueError, match="a token id is -1"):
        await reward(["a", "a"], ["1", "2"], IDS)
