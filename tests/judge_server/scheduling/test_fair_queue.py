"""The order of a fair queue, in virtual time: shares, classes, order within a run, and removal."""

import math
from collections import Counter, defaultdict
from collections.abc import Container
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.scheduling.queueing import FairQueue, FairQueueItem
from tests.hypothesis_examples import examples
from trainer_client.wire import Priority

COSTS = st.lists(st.integers(1, 50), min_size=1, max_size=30)
RUNS = st.dictionaries(st.sampled_from("abcde"), COSTS, min_size=2, max_size=5)
TOLERANCE = 1e-6


def queue_of(
    runs: dict[str, list[int]], priority: Priority = "online", resumed: Container[int] = (), **options: object
) -> FairQueue[int]:
    """A queue of these runs' pieces, numbered per run; the pieces in `resumed` continue work already begun."""
    queue: FairQueue[int] = FairQueue(**options)  # type: ignore[arg-type]
    for run, costs in runs.items():
        for number, cost in enumerate(costs):
            queue.push(FairQueueItem(run, priority, cost, number, resumed=number in resumed))
    return queue


def drain(queue: FairQueue[int]) -> list[FairQueueItem[int]]:
    """All pieces in the order in which they are served."""
    served = []
    while (entry := queue.pop()) is not None:
        served.append(entry)
    return served


BEGUN = st.frozensets(st.integers(0, 29))


@given(RUNS, st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1.0, 3.0])), BEGUN)
@settings(max_examples=examples(60))
def test_the_shares_of_two_waiting_runs_differ_by_at_most_one_piece_of_each(
    runs: dict[str, list[int]], weights: dict[str, float], resumed: frozenset[int]
) -> None:
    served = drain(queue_of(runs, resumed=resumed, weights=weights))
    given_to = {run: [0.0] for run in runs}
    for entry in served:
        for run, sums in given_to.items():
            sums.append(sums[-1] + (entry.cost / weights.get(run, 1.0) if entry.run == run else 0.0))
    left = {run: len(costs) for run, costs in runs.items()}
    both_wait_until = dict.fromkeys(runs, 0)
    for place, entry in enumerate(served):
        left[entry.run] -= 1
        if left[entry.run] == 0:
            both_wait_until[entry.run] = place
    largest = {run: max(costs) / weights.get(run, 1.0) for run, costs in runs.items()}
    for a in runs:
        for b in runs:
            end = min(both_wait_until[a], both_wait_until[b])
            ahead = [given_to[a][place] - given_to[b][place] for place in range(end + 1)]
            assert max(ahead) - min(ahead) <= largest[a] + largest[b] + TOLERANCE
            # both began to wait at the same time, so neither is more than one piece ahead
            assert max(map(abs, ahead)) <= max(largest[a], largest[b]) + TOLERANCE


@given(RUNS, BEGUN)
@settings(max_examples=examples(40))
def test_every_piece_is_served_once_in_the_order_of_its_run_with_resumed_work_first(
    runs: dict[str, list[int]], resumed: frozenset[int]
) -> None:
    queue = queue_of(runs, resumed=resumed)
    assert len(queue) == sum(map(len, runs.values()))
    orders = defaultdict(list)
    for entry in drain(queue):
        orders[entry.run].append(entry.item)
    assert orders == {
        run: sorted(range(len(costs)), key=lambda number: (number not in resumed, number))
        for run, costs in runs.items()
    }
    assert len(queue) == 0


@given(st.integers(1, 50), st.integers(1, 2000), st.integers(1, 50))
@settings(max_examples=examples(40))
def test_a_light_run_waits_for_at_most_one_piece_however_much_another_run_has_queued(
    cost: int, flood: int, light: int
) -> None:
    queue = queue_of({"flood": [cost] * flood})
    queue.pop()
    queue.push(FairQueueItem("light", "online", light, 0))
    turns = [queue.pop() for _ in range(min(2, len(queue)))]
    assert "light" in [entry.run for entry in turns if entry is not None]


def test_resumed_work_of_a_run_costs_other_runs_no_turn() -> None:
    queue = queue_of({"a": [10] * 4, "b": [10] * 4})
    queue.pop()
    queue.push(FairQueueItem("a", "online", 10, 9, resumed=True))
    assert [(entry.run, entry.item) for entry in drain(queue)][:4] == [("b", 0), ("a", 9), ("b", 1), ("a", 1)]


@given(COSTS, COSTS, st.sampled_from([0.05, 0.1, 0.3]))
@settings(max_examples=examples(40))
def test_bulk_work_gets_its_share_and_no_more_while_online_work_waits(
    online: list[int], bulk: list[int], share: float
) -> None:
    queue = queue_of({"a": online * 5}, bulk_share=share)
    for number, cost in enumerate(bulk * 5):
        queue.push(FairQueueItem("b", "bulk", cost, number))
    given_to: Counter[str] = Counter()
    left = {"online": len(online) * 5, "bulk": len(bulk) * 5}
    while left["online"] and left["bulk"]:
        entry = queue.pop()
        assert entry is not None
        given_to[entry.priority] += entry.cost
        left[entry.priority] -= 1
        ahead = given_to["online"] / (1 - share) - given_to["bulk"] / share
        assert abs(ahead) <= max(online) / (1 - share) + max(bulk) / share + TOLERANCE


def test_bulk_work_alone_is_served_at_once_and_online_work_goes_before_it() -> None:
    queue = queue_of({"b": [10] * 4}, "bulk")
    assert [entry.run for entry in (queue.pop(), queue.pop()) if entry] == ["b", "b"]
    queue.push(FairQueueItem("a", "online", 10, 0))
    assert [entry.run for entry in drain(queue)] == ["a", "b", "b"]


def test_bulk_work_that_arrives_while_online_work_waits_is_served_after_some_of_it() -> None:
    queue = queue_of({"a": [10] * 30})
    queue.pop()
    queue.push(FairQueueItem("b", "bulk", 10, 0))
    assert 5 <= [entry.run for entry in drain(queue)].index("b") <= 10


def test_a_run_gains_no_credit_while_it_does_not_wait() -> None:
    queue = queue_of({"a": [10] * 20})
    for _ in range(10):
        queue.pop()
    for number in range(10):
        queue.push(FairQueueItem("b", "online", 10, number))
    assert Counter(entry.run for entry in drain(queue)[:10]) == {"a": 5, "b": 5}


@given(RUNS, st.data())
@settings(max_examples=examples(40))
def test_a_removed_piece_costs_its_run_nothing(runs: dict[str, list[int]], data: st.DataObject) -> None:
    kept = {
        run: data.draw(st.lists(st.booleans(), min_size=len(costs), max_size=len(costs))) for run, costs in runs.items()
    }
    queue: FairQueue[int] = FairQueue()
    out = []
    for run, costs in runs.items():
        for number, cost in enumerate(costs):
            entry = FairQueueItem(run, "online", cost, number)
            queue.push(entry)
            if not kept[run][number]:
                out.append(entry)
    for entry in out:
        assert queue.remove(entry)
        assert not queue.remove(entry)
    without = {run: [c for c, keep in zip(costs, kept[run], strict=True) if keep] for run, costs in runs.items()}
    plain = queue_of({run: costs for run, costs in without.items() if costs})
    assert [(e.run, e.cost) for e in drain(queue)] == [(e.run, e.cost) for e in drain(plain)]


def test_a_run_that_was_passed_over_does_not_catch_up() -> None:
    queue = queue_of({"a": [10] * 20, "b": [10] * 20})
    for _ in range(10):
        entry = queue.pop(["b"])
        assert entry is not None
        assert entry.run == "a"
    assert Counter(entry.run for entry in drain(queue)[:10]) == {"a": 5, "b": 5}
    assert queue_of({"b": [1]}).pop(["b"]) is None


def test_runs_that_come_only_once_leave_little_state_behind() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(2_000):
        queue.push(FairQueueItem(f"run {number}", "online", 1.0, number))
        queue.pop()
    assert len(queue._runs["online"]["default"]) < 200


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5])
def test_a_share_that_would_starve_a_class_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="bulk_share"):
        FairQueue(bulk_share=share)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_an_invalid_weight_is_refused_with_the_name_of_its_run(weight: float) -> None:
    with pytest.raises(ValueError, match="run 'a'"):
        FairQueue({"a": weight})


def test_a_light_run_that_was_idle_goes_first_only_within_its_credit() -> None:
    now = [0.0]
    queue: FairQueue[int] = FairQueue(idle_credit_s=1.0, clock=lambda: now[0])
    queue.push(FairQueueItem("light", "online", 1.0, 0))
    for number in range(400):
        queue.push(FairQueueItem("flood", "online", 1.0, number))
    for _ in range(101):  # ten a second
        queue.pop()
        now[0] += 0.1
    for number in range(40):
        queue.push(FairQueueItem("light", "online", 1.0, number))
    served = [queue.pop() for _ in range(40)]
    lights = [entry is not None and entry.run == "light" for entry in served]
    first = lights.index(False)
    assert 9 <= first <= 11  # one second of the flood's rate
    assert sum(lights[first:]) == pytest.approx((40 - first) / 2, abs=1)


def test_idle_credit_is_not_given_to_new_runs_or_when_it_is_off() -> None:
    for credit, run in ((1.0, "new"), (0.0, "light")):
        now = [0.0]
        queue: FairQueue[int] = FairQueue(idle_credit_s=credit, clock=lambda now=now: now[0])  # type: ignore[misc]
        queue.push(FairQueueItem("light", "online", 1.0, 0))
        for number in range(400):
            queue.push(FairQueueItem("flood", "online", 1.0, number))
        for _ in range(101):
            queue.pop()
            now[0] += 0.1
        for number in range(40):
            queue.push(FairQueueItem(run, "online", 1.0, number))
        served = [queue.pop() for _ in range(20)]
        assert 9 <= sum(entry is not None and entry.run == run for entry in served) <= 11


class Batch(NamedTuple):
    """A batch of a run, which arrives so much work after the one before it."""

    run: str
    gap: int
    costs: list[int]


BATCHES = st.lists(st.builds(Batch, st.sampled_from("abcd"), st.integers(0, 60), COSTS), min_size=1, max_size=12)
WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 3.0]))


def arrivals(batches: list[Batch]) -> list[float]:
    """The times at which batches arrive."""
    return [float(time) for time in accumulate([0, *(batch.gap for batch in batches[1:])])]


def served_ends(batches: list[Batch], queue: FairQueue[int]) -> list[float]:
    """When the last piece of each batch has been served, on an engine of one unit of work in a unit of time."""
    times, ends = arrivals(batches), [0.0] * len(batches)
    now, here = 0.0, 0
    while here < len(batches) or len(queue):
        if not len(queue):
            now = max(now, times[here])
        while here < len(batches) and times[here] <= now:
            for cost in batches[here].costs:
                queue.push(FairQueueItem(batches[here].run, "online", cost, here, batch=str(here)))
            here += 1
        entry = queue.pop()
        assert entry is not None
        now += entry.cost
        ends[entry.item] = now
    return ends


def shared_ends(batches: list[Batch], weights: dict[str, float]) -> list[float]:
    """When each batch would end if all waiting runs were served at once, by their weights, each in order."""
    times, now, here = arrivals(batches), 0.0, 0
    left = [float(sum(batch.costs)) for batch in batches]
    ends = [0.0] * len(batches)
    while here < len(batches) or any(work > TOLERANCE for work in left[:here]):
        heads: dict[str, int] = {}
        for place in range(here):
            if left[place] > TOLERANCE:
                heads.setdefault(batches[place].run, place)
        total = sum(weights.get(run, 1.0) for run in heads)
        until = times[here] - now if here < len(batches) else math.inf
        for run, place in heads.items():
            until = min(until, left[place] * total / weights.get(run, 1.0))
        now += until
        for run, place in heads.items():
            left[place] -= until * weights.get(run, 1.0) / total
            if left[place] <= TOLERANCE:
                ends[place] = now
        while here < len(batches) and times[here] <= now + TOLERANCE:
            here += 1
    return ends


@given(BATCHES, WEIGHTS)
@settings(max_examples=examples(200))
def test_no_batch_ends_later_than_if_runs_shared_the_engine_but_for_two_pieces(
    batches: list[Batch], weights: dict[str, float]
) -> None:
    largest = max(cost for batch in batches for cost in batch.costs)
    for served, shared in zip(served_ends(batches, FairQueue(weights)), shared_ends(batches, weights), strict=True):
        assert served <= shared + 2 * largest + TOLERANCE * 100


def test_of_equal_batches_one_is_finished_before_the_other_begins() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(4):
        for run in "ab":
            queue.push(FairQueueItem(run, "online", 10, number, batch="step 1"))
    assert [entry.run for entry in drain(queue)] == [*"aaaabbbb"]


def test_a_small_batch_overtakes_a_large_one_and_a_stream_of_them_does_not_starve_it() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(100):
        queue.push(FairQueueItem("large", "online", 1, number, batch="1"))
    served: list[str] = []
    while served.count("large") < 100:
        queue.push(FairQueueItem("small", "online", 1, 0, batch=str(len(served))))
        entry = queue.pop()
        assert entry is not None
        served.append(entry.run)
    assert served[:5] == ["small"] * 5
    assert 198 <= len(served) <= 202  # half of the engine is the share of each


def test_a_run_that_names_one_batch_for_ever_gets_its_share_nevertheless() -> None:
    now = [0.0]
    queue: FairQueue[int] = FairQueue(clock=lambda: now[0])
    served: Counter[str] = Counter()
    for second in range(600):  # the engine serves one piece a second, and 2.9 come
        now[0] = second
        for run, every in (("endless", 10), ("b", 6), ("c", 6)):
            for number in range(9 if run == "endless" else 6):
                if second % every == 0:
                    queue.push(FairQueueItem(run, "online", 1, number, batch="0" if run == "endless" else str(second)))
        entry = queue.pop()
        assert entry is not None
        served[entry.run] += 1
    assert min(served[run] for run in ("endless", "b", "c")) >= 150


def test_batches_of_one_run_are_served_in_the_order_of_their_pieces() -> None:
    queue: FairQueue[int] = FairQueue()
    for number, batch in enumerate(["1", "1", "2", "", "2", "3"]):
        queue.push(FairQueueItem("a", "online", 10, number, batch=batch))
    assert [entry.item for entry in drain(queue)] == [0, 1, 2, 3, 4, 5]


@given(BATCHES, st.data())
@settings(max_examples=examples(60))
def test_a_piece_removed_from_a_batch_costs_its_run_nothing(batches: list[Batch], data: st.DataObject) -> None:
    queue: FairQueue[int] = FairQueue()
    plain: FairQueue[int] = FairQueue()
    out = []
    for number, batch in enumerate(batches):
        for cost in batch.costs:
            entry = FairQueueItem(batch.run, "online", cost, number, batch=str(number))
            queue.push(entry)
            if data.draw(st.booleans()):
                out.append(entry)
            else:
                plain.push(FairQueueItem(batch.run, "online", cost, number, batch=str(number)))
    for entry in out:
        assert queue.remove(entry)
    served = [(entry.item, entry.cost) for entry in drain(queue)]
    assert Counter(served) == Counter((entry.item, entry.cost) for entry in drain(plain))


def test_runs_without_batches_share_piece_by_piece_beside_a_batch_that_ends_later() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(10):
        queue.push(FairQueueItem("batch", "online", 10, number, batch="1"))
        queue.push(FairQueueItem("a", "online", 10, number))
        queue.push(FairQueueItem("b", "online", 10, number))
    served = [entry.run for entry in drain(queue)]
    assert Counter(served[:10]) == {"a": 5, "b": 5}
    assert served[-1] != "batch" or served.index("batch") >= 10
