"""The queue in front of an engine: it is fair, keeps order, and drops cancelled batches."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from judge_server.judging.results import Caller
from judge_server.scheduling.admission import (
    DEFAULT_QUEUE_RULES,
    AdaptiveLimit,
    Admission,
    QueueEntry,
    QueueRules,
    estimated_tokens,
)
from tests.judge_server.support import batch


class AdmissionHarness:
    """An admission queue and its engine, where batches stay until the test releases them."""

    def __init__(self, places: int = 1, rules: QueueRules = DEFAULT_QUEUE_RULES, **engine: Any) -> None:
        self.now = 0.0
        self.places = places
        self.admission = Admission(lambda: self.places, rules, clock=lambda: self.now, **engine)
        self.began: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}

    def comes(
        self, name: str, *questions: str, run: str = "", bulk: bool = False, resumed: bool = False
    ) -> tuple[QueueEntry, asyncio.Task[None]]:
        """Submit a batch under this name."""
        asked = batch(*(questions or ("?",)))
        queue_entry = QueueEntry(Caller(run, "bulk" if bulk else "online"), asked, self.now, resumed=resumed)
        self._leave[name] = asyncio.Event()
        return queue_entry, asyncio.create_task(self._visit(name, queue_entry))

    def goes(self, *names: str) -> None:
        """Release these batches from the engine."""
        for name in names:
            self._leave[name].set()

    async def _visit(self, name: str, queue_entry: QueueEntry) -> None:
        async with self.admission.acquire(queue_entry):
            self.began.append(name)
            await self._leave[name].wait()


async def settle() -> None:
    """Let all pending tasks proceed."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_batches_of_one_run_reach_the_engine_in_order_one_at_a_time() -> None:
    executor = AdmissionHarness()
    visits = [executor.comes(name) for name in "abc"]
    await settle()
    assert executor.began == ["a"]
    executor.goes("a", "b", "c")
    await asyncio.gather(*(task for _, task in visits))
    assert executor.began == ["a", "b", "c"]


async def test_the_engine_or_the_rules_limit_how_many_batches_run_at_once() -> None:
    for places, rules, together in ((2, DEFAULT_QUEUE_RULES, 2), (1, QueueRules(batches=3), 3)):
        executor = AdmissionHarness(places, rules)
        visits = [executor.comes(name) for name in "abcd"]
        await settle()
        assert len(executor.began) == together
        executor.goes(*"abcd")
        await asyncio.gather(*(task for _, task in visits))


async def test_a_batch_begins_once_the_engine_has_a_free_place_for_one_of_its_calls() -> None:
    executor = AdmissionHarness(4, calls=4)
    visits = [executor.comes(name, *"123") for name in "abc"]
    await settle()
    assert executor.began == ["a", "b"]
    first, second = (queue_entry for queue_entry, _ in visits[:2])
    for queue_entry, left, begun in ((first, 2, "ab"), (first, 1, "ab"), (second, 2, "abc"), (second, 1, "abc")):
        executor.admission.record_answer(queue_entry, left)
        await settle()
        assert executor.began == list(begun)
    executor.goes(*"abc")
    await asyncio.gather(*(task for _, task in visits))


async def test_a_batch_whose_first_call_goes_alone_takes_one_place_until_that_call_is_answered() -> None:
    executor = AdmissionHarness(4, calls=2, first_alone=True)
    visits = [executor.comes(name, *"123") for name in "abc"]
    await settle()
    assert executor.began == ["a", "b"]
    executor.admission.record_answer(visits[0][0], 2)
    executor.goes("b")
    await settle()
    assert executor.began == ["a", "b"]
    executor.goes(*"ac")
    await asyncio.gather(*(task for _, task in visits))
    assert executor.began == ["a", "b", "c"]


async def test_the_rest_of_a_response_goes_before_other_responses_of_its_run() -> None:
    executor = AdmissionHarness()
    visits = [executor.comes(name, run=run) for name, run in (("a0", "a"), ("a1", "a"), ("b0", "b"))]
    await settle()
    first, others = visits[0][1], [task for _, task in visits[1:]]
    executor.goes("a0", "a1", "b0")
    await first
    _, again = executor.comes("a0 again", run="a", resumed=True)
    executor.goes("a0 again")
    await asyncio.gather(again, *others)
    assert executor.began == ["a0", "b0", "a0 again", "a1"]


async def test_runs_take_turns_however_much_one_of_them_has_queued() -> None:
    executor = AdmissionHarness()
    flood = [executor.comes(f"flood {n}", run="flood") for n in range(6)]
    await settle()
    light = [executor.comes(f"light {n}", run="light") for n in range(2)]
    await settle()
    for n in range(6):
        executor.goes(f"flood {n}")
    executor.goes("light 0", "light 1")
    await asyncio.gather(*(task for _, task in flood + light))
    assert [name.split()[0] for name in executor.began][:5] == ["flood", "light", "flood", "light", "flood"]


async def test_a_bulk_batch_is_promoted_when_an_online_request_joins_it() -> None:
    executor = AdmissionHarness()
    visits = [executor.comes("first")]
    await settle()
    visits += [executor.comes(f"bulk {n}", bulk=True, run=f"run {n}") for n in range(3)]
    visits += [executor.comes("online")]
    await settle()
    executor.admission.promote(visits[3][0])
    executor.goes("first", "bulk 0", "bulk 1", "bulk 2", "online")
    await asyncio.gather(*(task for _, task in visits))
    assert set(executor.began[1:3]) == {"bulk 2", "online"}


@pytest.mark.parametrize("give_up", ["cancelled", "withdrawn and cancelled", "granted and cancelled"])
async def test_a_cancelled_batch_leaves_the_queue_and_the_engine(give_up: str) -> None:
    executor = AdmissionHarness()
    _, first = executor.comes("first")
    await settle()
    queue_entry, second = executor.comes("second")
    await settle()
    if give_up.startswith("granted"):
        first.cancel()  # frees the place, which the second batch is granted before its task runs
        await asyncio.sleep(0)
    elif give_up.startswith("withdrawn"):
        executor.admission.withdraw(queue_entry)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    _, third = executor.comes("third")
    executor.goes("first", "third")
    await asyncio.gather(first, third, return_exceptions=True)
    assert executor.began == ["first", "third"]
    assert executor.admission.state()[1] == 0


async def test_a_run_at_its_limit_of_calls_waits_while_other_runs_pass_it() -> None:
    executor = AdmissionHarness(4, QueueRules(run_at_engine=2))
    visits = [executor.comes(f"a{n}", "1", "2", run="a") for n in range(3)] + [executor.comes("b0", run="b")]
    await settle()
    assert executor.began == ["a0", "b0"]
    executor.goes("a0")
    await settle()
    assert executor.began == ["a0", "b0", "a1"]
    executor.goes("a1", "a2", "b0")
    await asyncio.gather(*(task for _, task in visits))


async def test_time_in_the_queue_counts_as_queued_and_time_at_the_engine_as_judging() -> None:
    executor = AdmissionHarness()
    a, first = executor.comes("a")
    b, second = executor.comes("b")
    await settle()
    executor.now = 3.0
    assert (a.seconds(executor.now), b.seconds(executor.now)) == ((0.0, 3.0), (3.0, 0.0))
    executor.goes("a")
    await settle()
    executor.now = 5.0
    executor.goes("b")
    await asyncio.gather(first, second)
    executor.now = 9.0
    assert (a.seconds(executor.now), b.seconds(executor.now)) == ((0.0, 3.0), (3.0, 2.0))


async def test_the_state_counts_what_is_waiting_and_what_is_at_the_engine() -> None:
    executor = AdmissionHarness()
    executor.admission.limits.acquire("a", 3)
    _, task = executor.comes("a0", "1", "2", run="a")
    await settle()
    waiting, at_engine, batches, held = executor.admission.state()
    assert (waiting, at_engine, batches, dict(held)) == (1, 2, 1, {"a": 3})
    executor.goes("a0")
    await task
    assert executor.admission.state()[1] == 0


def test_the_shared_part_of_a_batch_counts_once() -> None:
    alone, both = (estimated_tokens(batch(*q, shared="x" * 4000)) for q in (("y" * 40,), ("y" * 40, "y" * 40)))
    assert alone == pytest.approx(1014, abs=5)
    assert both - alone == pytest.approx(10)


def test_the_limit_adapts_only_if_batches_is_auto() -> None:
    clock: Callable[[], float] = lambda: 0.0  # noqa: E731
    assert isinstance(Admission(lambda: 8, QueueRules(batches="auto"), clock=clock).concurrency, AdaptiveLimit)
    assert Admission(lambda: 8, DEFAULT_QUEUE_RULES, clock=clock).concurrency.limit == 8


async def test_the_number_of_running_batches_follows_the_capacity_of_the_engine() -> None:
    executor = AdmissionHarness(places=1)
    tasks = [executor.comes(name, run=name)[1] for name in "abcdefg"]
    await settle()
    assert len(executor.began) == 1
    executor.places = 3
    executor.goes("a")
    await settle()
    assert executor.began == list("abcd")
    executor.places = 2
    executor.goes("b", "c")
    await settle()
    assert executor.began == list("abcde")
    assert executor.admission.state()[2] == 2
    executor.goes(*"defg")
    await asyncio.gather(*tasks)


async def test_an_engine_that_reports_no_capacity_keeps_its_last_limit() -> None:
    executor = AdmissionHarness(places=2)
    executor.places = 0
    tasks = [executor.comes(name)[1] for name in "abc"]
    await settle()
    assert executor.began == ["a", "b"]
    executor.goes(*"abc")
    await asyncio.gather(*tasks)


async def test_a_fixed_number_of_batches_ignores_the_capacity_of_the_engine() -> None:
    executor = AdmissionHarness(places=8, rules=QueueRules(batches=3))
    executor.places = 16
    assert executor.admission.state()[2] == 3
