"""A call returns in time whatever the service does. Only waiting moves the clock, so the tests do not wait."""

import asyncio

import httpx2
import pytest

from tests.trainer_client.trl.judges import (
    LARGE_PROMPTS,
    FakeJudgeTransport,
    SkippingLoop,
    client,
    groups,
    problem,
    rewarding,
    stream,
    summary,
)
from trainer_client import UnknownRubric
from trainer_client.trl import TooManyUnscored
from trainer_client.trl.reward import RubricReward


@pytest.fixture
def loop():
    made = SkippingLoop()
    yield made
    made.close()


async def hang(*_):
    await asyncio.Event().wait()


def timed(loop, work):
    """The result, and the seconds it took."""

    async def run():
        began = loop.time()
        result = await work()
        return result, loop.time() - began

    return loop.run_until_complete(run())


def test_a_service_that_never_answers_is_given_up_after_the_deadline_and_grace_period(loop):
    reward = rewarding(FakeJudgeTransport(hang), deadline_s=60, grace_s=5)
    rewards, seconds = timed(loop, lambda: reward(["a", "b"], ["1", "2"]))
    assert rewards == [None, None]
    assert [row.failures for row in reward.last.rows] == [("timeout",)] * 2
    assert seconds == pytest.approx(65)


def test_groups_received_by_the_deadline_are_kept(loop):
    reward = rewarding(FakeJudgeTransport(lambda body: stream(groups(body)[1], hang(), groups(body)[0])))
    rewards, seconds = timed(loop, lambda: reward(["a", "b"], ["1", "2"]))
    assert rewards == [None, 2.0]
    assert seconds == pytest.approx(65)


def test_a_request_that_ignores_cancellation_is_abandoned(loop):
    let_go = asyncio.Event()

    async def stubborn(body):
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return stream(summary())

    reward = rewarding(FakeJudgeTransport(stubborn))
    rewards, seconds = timed(loop, lambda: reward(["a"], ["1"]))
    assert rewards == [None]
    assert 65 <= seconds < 70
    loop.run_until_complete(_end(let_go))


async def _end(let_go):
    let_go.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


def test_a_cancelled_call_hangs_up(loop):
    gone = asyncio.Event()

    async def waits(body):
        try:
            await hang()
        finally:
            gone.set()

    async def leave():
        call = asyncio.create_task(rewarding(FakeJudgeTransport(waits))(["a"], ["1"]))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await gone.wait()

    loop.run_until_complete(leave())


def test_a_user_error_in_one_of_several_requests_is_raised_at_once(loop):
    reward = rewarding(FakeJudgeTransport(hang, lambda body: problem("unknown-rubric", 404)))

    async def refused():
        with pytest.raises(UnknownRubric):
            await reward(LARGE_PROMPTS, ["1", "2"])

    assert timed(loop, refused)[1] < 1


class Outage(FakeJudgeTransport):
    """A judge that is unreachable between two times; connecting then takes ten seconds and fails."""

    def __init__(self, loop, begins, ends):
        super().__init__()
        self.loop, self.begins, self.ends = loop, begins, ends

    async def handle_async_request(self, request):
        if self.begins <= self.loop.time() < self.ends:
            await asyncio.sleep(10)
            raise httpx2.ConnectTimeout("nobody is there")
        return await super().handle_async_request(request)


def test_an_outage_of_ten_minutes_affects_only_its_steps(loop):
    judge = Outage(loop, 100, 700)
    like = client(judge, sleep=asyncio.sleep, clock=loop.time)
    reward = RubricReward(like, "r", wait_for_judge_s=0.0, max_unscored=1.0)
    steps = []

    async def train():
        while loop.time() < 1000:
            began = loop.time()
            rewards = await reward(["a"] * 4, ["1"] * 4)
            steps.append((began, loop.time() - began, rewards))
            await asyncio.sleep(30)  # the rest of a step

    loop.run_until_complete(train())
    assert {len(rewards) for _, _, rewards in steps} == {4}
    assert all(seconds <= 66 for _, seconds, _ in steps)
    lost = [began for began, _, rewards in steps if rewards == [None] * 4]
    assert lost
    assert all(40 <= began <= 700 for began in lost)
    assert all(rewards == [1.0] * 4 for began, _, rewards in steps if began not in lost)
    assert steps[-1][0] > 900


def test_an_outage_that_is_not_waited_for_stops_training_within_a_step(loop):
    like = client(Outage(loop, 0, 700), sleep=asyncio.sleep, clock=loop.time)
    with pytest.raises(TooManyUnscored, match=r"2 of 2 .* 2 (unreachable|timeout)"):
        loop.run_until_complete(RubricReward(like, "r", wait_for_judge_s=0.0)(["a"] * 2, ["1"] * 2))
    assert loop.time() <= 66


def test_a_second_request_gets_the_rest_of_the_deadline(loop):
    async def late(body):
        await asyncio.sleep(50)
        return stream(groups(body)[0], httpx2.ReadError("reset"))

    judge = FakeJudgeTransport(late, lambda body: stream(*groups(body), summary()))
    rewards, _ = timed(loop, lambda: rewarding(judge, deadline_s=60)(["a", "b"], ["1", "2"]))
    assert rewards == [1.0, 2.0]
    assert [asked["deadline_s"] for asked in judge.asked] == [60, 10]


def test_nothing_is_requested_after_the_deadline(loop):
    async def late(body):
        await asyncio.sleep(62)
        return stream(groups(body)[0], httpx2.ReadError("reset"))

    judge = FakeJudgeTransport(late)
    rewards, _ = timed(loop, lambda: rewarding(judge, deadline_s=60, grace_s=30)(["a", "b"], ["1", "2"]))
    assert rewards == [1.0, None]
    assert len(judge.asked) == 1
