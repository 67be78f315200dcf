"""Whose turn it is, in virtual time: shares, classes, order within a run, and what is taken out."""

from collections import Counter, defaultdict
from collections.abc import Container

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.queueing import FairQueue, FairQueueItem
from tests.hypothesis_examples import examples
from trainer_client.wire import Priority

COSTS = st.lists(st.integers(1, 50), min_size=1, max_size=30)
RUNS = st.dictionaries(st.sampled_from("abcde"), COSTS, min_size=2, max_size=5)
TOLERANCE = 1e-6


def queue_of(
    runs: dict[str, list[int]], priority: Priority = "online", resumed: Container[int] = (), **options: object
) -> FairQueue[int]:
    """A queue with these runs' pieces, each numbered in its run; those of the numbers `begun` are the rest of work."""
    queue: FairQueue[int] = FairQueue(**options)  # type: ignore[arg-type]
    for run, costs in runs.items():
        for number, cost in enumerate(costs):
            queue.push(FairQueueItem(run, priority, cost, number, resumed=number in resumed))
    return queue


def drain(queue: FairQueue[int]) -> list[FairQueueItem[int]]:
    """All pieces in the order of their turns."""
    served = []
    while (entry := queue.pop()) is not None:
        served.append(entry)
    return served


BEGUN = st.frozensets(st.integers(0, 29))


@given(RUNS, st.dictionaries(st.sampled_from("abcde"), st.sampled_from([0.5, 1.0, 3.0])), BEGUN)
@settings(max_examples=examples(60))
def test_over_any_interval_in_which_two_runs_wait_their_shares_differ_by_one_piece_of_each_at_most(
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
            # since both came to wait at the same time, neither is more than one piece ahead
            assert max(map(abs, ahead)) <= max(largest[a], largest[b]) + TOLERANCE


@given(RUNS, BEGUN)
@settings(max_examples=examples(40))
def test_everything_is_served_once_and_each_run_in_its_own_order_what_is_begun_first(
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
def test_a_light_run_waits_for_one_piece_however_much_another_has_queued(cost: int, flood: int, light: int) -> None:
    queue = queue_of({"flood": [cost] * flood})
    queue.pop()
    queue.push(FairQueueItem("light", "online", light, 0))
    turns = [queue.pop() for _ in range(min(2, len(queue)))]
    assert "light" in [entry.run for entry in turns if entry is not None]


def test_the_rest_of_what_a_run_has_begun_costs_another_run_no_turn() -> None:
    queue = queue_of({"a": [10] * 4, "b": [10] * 4})
    queue.pop()
    queue.push(FairQueueItem("a", "online", 10, 9, resumed=True))
    assert [(entry.run, entry.item) for entry in drain(queue)][:4] == [("b", 0), ("a", 9), ("b", 1), ("a", 1)]


@given(COSTS, COSTS, st.sampled_from([0.05, 0.1, 0.3]))
@settings(max_examples=examples(40))
def test_bulk_gets_its_share_while_online_waits_and_no_more(online: list[int], bulk: list[int], share: float) -> None:
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


def test_bulk_work_alone_has_the_engine_to_itself_and_online_work_comes_before_it() -> None:
    queue = queue_of({"b": [10] * 4}, "bulk")
    assert [entry.run for entry in (queue.pop(), queue.pop()) if entry] == ["b", "b"]
    queue.push(FairQueueItem("a", "online", 10, 0))
    assert [entry.run for entry in drain(queue)] == ["a", "b", "b"]


def test_bulk_work_that_comes_while_online_work_waits_stands_behind_it() -> None:
    queue = queue_of({"a": [10] * 30})
    queue.pop()
    queue.push(FairQueueItem("b", "bulk", 10, 0))
    assert 5 <= [entry.run for entry in drain(queue)].index("b") <= 10


def test_a_run_that_did_not_wait_is_owed_nothing() -> None:
    queue = queue_of({"a": [10] * 20})
    for _ in range(10):
        queue.pop()
    for number in range(10):
        queue.push(FairQueueItem("b", "online", 10, number))
    assert Counter(entry.run for entry in drain(queue)[:10]) == {"a": 5, "b": 5}


@given(RUNS, st.data())
@settings(max_examples=examples(40))
def test_what_is_taken_out_costs_its_run_nothing(runs: dict[str, list[int]], data: st.DataObject) -> None:
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


def test_a_run_that_is_passed_over_makes_up_for_nothing() -> None:
    queue = queue_of({"a": [10] * 20, "b": [10] * 20})
    for _ in range(10):
        entry = queue.pop(["b"])
        assert entry is not None
        assert entry.run == "a"
    assert Counter(entry.run for entry in drain(queue)[:10]) == {"a": 5, "b": 5}
    assert queue_of({"b": [1]}).pop(["b"]) is None


def test_names_that_come_once_and_never_again_leave_nothing_behind() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(2_000):
        queue.push(FairQueueItem(f"run {number}", "online", 1.0, number))
        queue.pop()
    assert len(queue._runs["online"]["default"]._tags) < 200


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5])
def test_a_share_that_would_starve_a_class_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="bulk_share"):
        FairQueue(bulk_share=share)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan")])
def test_a_weight_that_is_none_is_refused_with_its_run(weight: float) -> None:
    with pytest.raises(ValueError, match="run 'a'"):
        FairQueue({"a": weight})


def test_a_light_run_that_was_idle_goes_first_within_its_credit_and_gets_no_more_than_that() -> None:
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
    assert 9 <= first <= 11  # a second of what the flood got
    assert sum(lights[first:]) == pytest.approx((40 - first) / 2, abs=1)


def test_a_new_run_has_no_credit_and_without_a_credit_no_run_has_one() -> None:
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
