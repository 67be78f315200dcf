"""Ranks agree after every call: on continuing or stopping, on one error, and on the pinned rubrics."""

import asyncio
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.trainer_client.trl.judges import FakeJudgeTransport, rewarding
from trainer_client.trl.scoring.ranks import CollectiveOrder, RankSummary

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The outcome of each scene on two ranks connected by gloo."""
    meeting = tmp_path_factory.mktemp("ranks") / "meeting"
    command = [sys.executable, "-m", "tests.trainer_client.trl.scoring.reward_rank"]
    processes = [
        subprocess.Popen([*command, str(rank), str(meeting)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], said
    return [json.loads(out) for out, _ in said]


def scene(ranks, name):
    return [rank[name] for rank in ranks]


@pytest.mark.trl
def test_a_rank_whose_judge_fails_continues_if_the_whole_batch_has_enough_rewards(ranks):
    assert scene(ranks, "half fails, and may") == [[1.0, 2.0, 3.0, 4.0], [None] * 4]


@pytest.mark.trl
def test_both_ranks_raise_the_same_error_when_one_ranks_judge_fails(ranks):
    first, second = scene(ranks, "half fails, and may not")
    assert first == second
    assert first[0] == "TooManyUnscored"
    assert "4 of 8 responses have no reward from the judge, but max_unscored = 0.4 allows only 3: 4 server." in first[1]
    assert "internal happened" in first[1]


@pytest.mark.trl
def test_a_user_error_on_one_rank_stops_both_with_that_error(ranks):
    (kind, text, notes), (own_kind, own_text, own_notes) = scene(ranks, "unknown rubric")
    assert (kind, text) == (own_kind, own_text)
    assert kind == "UnknownRubric"
    assert notes == [*own_notes, "raised on rank 1"]


@pytest.mark.trl
def test_an_unexpected_error_on_one_rank_does_not_block_the_other(ranks):
    first, second = scene(ranks, "own function fails")
    assert second[:2] == ["KeyError", "'missing'"]
    assert first[:2] == ["RankFailed", "scoring failed on rank 1: KeyError: 'missing'"]


@pytest.mark.trl
def test_ranks_pin_the_version_of_the_lowest_rank(ranks):
    assert scene(ranks, "pins differ") == [{"pins": {"r": "r@3"}}] * 2


@pytest.mark.trl
def test_two_reward_functions_exchange_separately_whichever_finishes_first(ranks):
    assert scene(ranks, "two rewards") == [[{"pins": {"x": "x@7"}}, {"pins": {"y": "y@7"}}]] * 2


@pytest.mark.trl
def test_the_functions_of_a_split_exchange_once_beside_another_function(ranks):
    numbers = [1.0, 2.0, 3.0, 4.0]
    assert scene(ranks, "components") == [[numbers, [0.0] * 4, numbers, 1]] * 2


@pytest.mark.trl
def test_a_component_without_a_function_on_one_rank_stops_both(ranks):
    first, second = scene(ranks, "unnamed component")
    assert [kind for kind, *_ in (*first[:2], *second[:2])] == ["InvalidRequest"] * 4
    assert first[2:] == second[2:] == [[1.0, 2.0, 3.0, 4.0], 1]


@pytest.mark.trl
def test_a_ranking_of_whole_groups_is_made_on_each_rank(ranks):
    assert scene(ranks, "whole groups") == [[[0.0, 0.5, 1.0], 1]] * 2
    three = [0.0, 1 / 3, 2 / 3, 1.0]
    assert scene(ranks, "repeated prompt") == [[three, 1]] * 2


@pytest.mark.trl
def test_a_ranking_of_a_group_that_is_split_over_ranks_is_refused(ranks):
    for rank in scene(ranks, "split group"):
        (kind, text, _), _ = rank
        assert kind == "InvalidRequest"
        assert "a group is split: 4 on rank 0 and 2 on rank 1. Give every rank all responses to its prompts" in text


@pytest.mark.trl
def test_a_ranking_that_the_trainers_numbers_would_split_is_refused_before_anything_is_judged(ranks):
    for (kind, text, _), asked in scene(ranks, "known split group"):
        assert (kind, asked) == ("InvalidRequest", 0)
        assert "each rank scores 4 responses, and a group has 8" in text
        assert "to a multiple of num_generations, such as 8, or num_generations to a divisor of 4" in text


@pytest.mark.trl
def test_a_rank_waits_for_its_judge_while_the_other_waits_for_the_rank(ranks):
    assert scene(ranks, "one judge is away") == [[1.0, 2.0, 3.0, 4.0]] * 2


@pytest.mark.trl
@pytest.mark.parametrize(("name", "count"), [("one judge is away for good", 4), ("both are away", 8)])
def test_all_ranks_give_up_together_with_the_same_error(ranks, name, count):
    first, second = scene(ranks, name)
    assert first[0] == second[0] == "TooManyUnscored"
    assert f"{count} of 8 responses have no reward from the judge" in first[1]
    assert "cannot reach http://judge.test" in first[1]


@pytest.mark.trl
def test_ranks_and_functions_record_under_one_made_name(ranks):
    assert scene(ranks, "run names") == [["out-0"]] * 2


@pytest.mark.trl
def test_ranks_stay_in_step_after_errors(ranks):
    assert scene(ranks, "after an error") == [[1.0, 2.0, 3.0, 4.0]] * 2


def gathering(monkeypatch, done, backend, **torch):
    """Replace torch by one whose two ranks gather the same; `done` notes what."""

    def all_gather_object(into, own):
        done.append(own)
        into[:] = [own, own]

    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 0,
        get_world_size=lambda: 2,
        get_backend=lambda: backend,
        all_gather_object=all_gather_object,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed, **torch))


async def test_a_call_waits_for_earlier_calls_only(monkeypatch):
    exchanged = []
    gathering(monkeypatch, exchanged, "gloo")
    first, second = CollectiveOrder(), CollectiveOrder()
    later = asyncio.create_task(second.all_gather(RankSummary(2)))
    await asyncio.sleep(0.01)
    assert exchanged == []
    await first.all_gather(RankSummary(1))
    first.end()
    await later
    second.end()
    assert exchanged == [RankSummary(1), RankSummary(2)]
    third = CollectiveOrder()
    assert await third.all_gather(RankSummary(3)) == [RankSummary(3)] * 2
    third.end()


async def test_a_cancelled_call_does_not_block_others():
    async def hangs(body):
        await asyncio.Event().wait()

    call = asyncio.create_task(rewarding(FakeJudgeTransport(hangs))(["a"], ["1"]))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await rewarding(FakeJudgeTransport())(["a"], ["1"]) == [1.0]


async def test_with_nccl_the_thread_selects_its_ranks_gpu_before_gathering(monkeypatch):
    state = pytest.importorskip("accelerate.state")
    done = []
    gpu = SimpleNamespace(type="cuda", index=1)
    monkeypatch.setattr(state, "PartialState", lambda: SimpleNamespace(device=gpu))
    gathering(monkeypatch, done, "nccl", cuda=SimpleNamespace(set_device=done.append))
    order = CollectiveOrder()
    assert await order.all_gather(RankSummary(1)) == [RankSummary(1)] * 2
    order.end()
    assert done == [gpu, RankSummary(1)]


@pytest.mark.trl
def test_the_judge_wakes_when_all_ranks_have_generated_and_sleeps_before_any_goes_on(ranks):
    found = scene(ranks, "shared memory")
    assert [rewards for rewards, *_ in found] == [[1.0, 2.0, 3.0, 4.0]] * 2
    for _, _, times, _ in found:
        let_go, *rest = [verb for verb, _ in times]  # first of the lease from before the run had a name
        assert (let_go, rest) == ("sleep", ["wake", "rewards", "sleep"])
    at = [dict(times) for _, _, times, _ in found]
    assert min(one["wake"] for one in at) > max(began for _, began, _, _ in found)
    assert min(one["sleep"] for one in at) > max(one["rewards"] for one in at)
    assert min(ended for *_, ended in found) > max(one["sleep"] for one in at)
