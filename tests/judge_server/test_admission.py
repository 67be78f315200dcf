"""The one queue in front of an engine: fair, in order, and nothing that was given up gets through it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from judge_server.judging.admission import USUAL_RULES, Admission, QueueRules, Ticket, estimated_tokens
from judge_server.judging.concurrency import AdaptiveLimit
from judge_server.judging.work import Caller
from tests.judge_server.support import batch


class Desk:
    """An admission and whatever is at its engine: batches stay there until the test lets them go."""

    def __init__(self, places: int = 1, rules: QueueRules = USUAL_RULES, **engine: Any) -> None:
        self.now = 0.0
        self.places = places
        self.admission = Admission(lambda: self.places, rules, clock=lambda: self.now, **engine)
        self.began: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    def comes(
        self, name: str, *questions: str, run: str = "", bulk: bool = False, resumed: bool = False
    ) -> tuple[Ticket, asyncio.Task[None]]:
        """A batch comes; it begins under this name."""
        asked = batch(*(questions or ("?",)))
        ticket = Ticket(Caller(run, "bulk" if bulk else "online"), asked, self.now, resumed=resumed)
        self._leave[name] = asyncio.Event()
        return ticket, asyncio.create_task(self._visit(name, ticket))

    def goes(self, *names: str) -> None:
        """These leave the engine."""
        for name in names:
            self._leave[name].set()

    async def _visit(self, name: str, ticket: Ticket) -> None:
        async with self.admission.turn(ticket):
            self.began.append(name)
            await self._leave[name].wait()


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_batches_of_one_run_reach_the_engine_in_order_one_at_a_time() -> None:
    desk = Desk()
    visits = [desk.comes(name) for name in "abc"]
    await settle()
    assert desk.began == ["a"]
    desk.goes("a", "b", "c")
    await asyncio.gather(*(task for _, task in visits))
    assert desk.began == ["a", "b", "c"]


async def test_as_many_batches_run_together_as_the_engine_allows_or_as_the_rules_say() -> None:
    for places, rules, together in ((2, USUAL_RULES, 2), (1, QueueRules(batches=3), 3)):
        desk = Desk(places, rules)
        visits = [desk.comes(name) for name in "abcd"]
        await settle()
        assert len(desk.began) == together
        desk.goes(*"abcd")
        await asyncio.gather(*(task for _, task in visits))


async def test_a_batch_begins_when_those_at_the_engine_leave_a_place_to_one_of_its_calls() -> None:
    desk = Desk(4, calls=4)
    visits = [desk.comes(name, *"123") for name in "abc"]
    await settle()
    assert desk.began == ["a", "b"]
    first, second = (ticket for ticket, _ in visits[:2])
    for ticket, left, begun in ((first, 2, "ab"), (first, 1, "ab"), (second, 2, "abc"), (second, 1, "abc")):
        desk.admission.answered(ticket, left)
        await settle()
        assert desk.began == list(begun)
    desk.goes(*"abc")
    await asyncio.gather(*(task for _, task in visits))


async def test_a_batch_whose_first_call_goes_alone_takes_one_place_until_that_is_answered() -> None:
    desk = Desk(4, calls=2, first_alone=True)
    visits = [desk.comes(name, *"123") for name in "abc"]
    await settle()
    assert desk.began == ["a", "b"]
    desk.admission.answered(visits[0][0], 2)
    desk.goes("b")
    await settle()
    assert desk.began == ["a", "b"]
    desk.goes(*"ac")
    await asyncio.gather(*(task for _, task in visits))
    assert desk.began == ["a", "b", "c"]


async def test_what_is_left_of_a_response_comes_before_its_runs_others_as_soon_as_its_batch_has_left() -> None:
    desk = Desk()
    visits = [desk.comes(name, run=run) for name, run in (("a0", "a"), ("a1", "a"), ("b0", "b"))]
    await settle()
    first, others = visits[0][1], [task for _, task in visits[1:]]
    desk.goes("a0", "a1", "b0")
    await first
    _, again = desk.comes("a0 again", run="a", resumed=True)
    desk.goes("a0 again")
    await asyncio.gather(again, *others)
    assert desk.began == ["a0", "b0", "a0 again", "a1"]


async def test_runs_take_turns_whatever_one_has_queued() -> None:
    desk = Desk()
    flood = [desk.comes(f"flood {n}", run="flood") for n in range(6)]
    await settle()
    light = [desk.comes(f"light {n}", run="light") for n in range(2)]
    await settle()
    for n in range(6):
        desk.goes(f"flood {n}")
    desk.goes("light 0", "light 1")
    await asyncio.gather(*(task for _, task in flood + light))
    assert [name.split()[0] for name in desk.began][:5] == ["flood", "light", "flood", "light", "flood"]


async def test_a_batch_that_waits_in_bulk_comes_to_the_front_when_somebody_online_joins_it() -> None:
    desk = Desk()
    visits = [desk.comes("first")]
    await settle()
    visits += [desk.comes(f"bulk {n}", bulk=True, run=f"run {n}") for n in range(3)]
    visits += [desk.comes("online")]
    await settle()
    desk.admission.hurry(visits[3][0])
    desk.goes("first", "bulk 0", "bulk 1", "bulk 2", "online")
    await asyncio.gather(*(task for _, task in visits))
    assert set(desk.began[1:3]) == {"bulk 2", "online"}


@pytest.mark.parametrize("give_up", ["cancelled", "withdrawn and cancelled", "granted and cancelled"])
async def test_a_batch_that_is_given_up_leaves_queue_and_engine(give_up: str) -> None:
    desk = Desk()
    _, first = desk.comes("first")
    await settle()
    ticket, second = desk.comes("second")
    await settle()
    if give_up.startswith("granted"):
        first.cancel()  # which frees the place, and the second one's wait is over before it knows
        await asyncio.sleep(0)
    elif give_up.startswith("withdrawn"):
        desk.admission.withdraw(ticket)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    _, third = desk.comes("third")
    desk.goes("first", "third")
    await asyncio.gather(first, third, return_exceptions=True)
    assert desk.began == ["first", "third"]
    assert desk.admission.state()[1] == 0


async def test_a_run_has_no_more_calls_at_the_engine_than_it_may_and_others_pass_it() -> None:
    desk = Desk(4, QueueRules(run_at_engine=2))
    visits = [desk.comes(f"a{n}", "1", "2", run="a") for n in range(3)] + [desk.comes("b0", run="b")]
    await settle()
    assert desk.began == ["a0", "b0"]
    desk.goes("a0")
    await settle()
    assert desk.began == ["a0", "b0", "a1"]
    desk.goes("a1", "a2", "b0")
    await asyncio.gather(*(task for _, task in visits))


async def test_waiting_counts_as_queued_and_working_as_judging_at_any_moment() -> None:
    desk = Desk()
    a, first = desk.comes("a")
    b, second = desk.comes("b")
    await settle()
    desk.now = 3.0
    assert (a.seconds(desk.now), b.seconds(desk.now)) == ((0.0, 3.0), (3.0, 0.0))
    desk.goes("a")
    await settle()
    desk.now = 5.0
    desk.goes("b")
    await asyncio.gather(first, second)
    desk.now = 9.0
    assert (a.seconds(desk.now), b.seconds(desk.now)) == ((0.0, 3.0), (3.0, 2.0))


async def test_the_state_says_who_waits_and_who_is_at_the_engine() -> None:
    desk = Desk()
    desk.admission.room.enter("a", 3)
    _, task = desk.comes("a0", "1", "2", run="a")
    await settle()
    waiting, at_engine, batches, held = desk.admission.state()
    assert (waiting, at_engine, batches, dict(held)) == (1, 2, 1, {"a": 3})
    desk.goes("a0")
    await task
    assert desk.admission.state()[1] == 0


def test_the_shared_part_of_a_batch_counts_once() -> None:
    alone, both = (estimated_tokens(batch(*q, shared="x" * 4000)) for q in (("y" * 40,), ("y" * 40, "y" * 40)))
    assert alone == pytest.approx(1014, abs=5)
    assert both - alone == pytest.approx(10)


def test_the_limit_follows_the_engine_only_where_it_is_asked_to() -> None:
    clock: Callable[[], float] = lambda: 0.0  # noqa: E731
    assert isinstance(Admission(lambda: 8, QueueRules(batches="auto"), clock=clock).concurrency, AdaptiveLimit)
    assert Admission(lambda: 8, USUAL_RULES, clock=clock).concurrency.limit == 8


async def test_an_engine_that_takes_more_is_given_more_and_one_that_takes_less_is_given_less_as_places_are_left() -> (
    None
):
    desk = Desk(places=1)
    tasks = [desk.comes(name, run=name)[1] for name in "abcdefg"]
    await settle()
    assert len(desk.began) == 1
    desk.places = 3
    desk.goes("a")
    await settle()
    assert desk.began == list("abcd")
    desk.places = 2
    desk.goes("b", "c")
    await settle()
    assert desk.began == list("abcde")
    assert desk.admission.state()[2] == 2
    desk.goes(*"defg")
    await asyncio.gather(*tasks)


async def test_an_engine_that_takes_nothing_for_now_is_given_what_it_took_last() -> None:
    desk = Desk(places=2)
    desk.places = 0
    tasks = [desk.comes(name)[1] for name in "abc"]
    await settle()
    assert desk.began == ["a", "b"]
    desk.goes(*"abc")
    await asyncio.gather(*tasks)


async def test_a_number_of_batches_set_by_hand_stays_whatever_the_engine_takes() -> None:
    desk = Desk(places=8, rules=QueueRules(batches=3))
    desk.places = 16
    assert desk.admission.state()[2] == 3
