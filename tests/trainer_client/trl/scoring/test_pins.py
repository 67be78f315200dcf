"""A run uses one version of each rubric until it is repinned."""

import json
import logging
from types import SimpleNamespace

import httpx2
import pytest

from tests.trainer_client.trl.judges import (
    CRITERIA,
    DIGEST,
    LARGE_PROMPTS,
    FakeJudgeTransport,
    Trainer,
    groups,
    pinned,
    problem,
    rewarding,
    stream,
    summary,
)
from trainer_client.rows.judging import RubricPins
from trainer_client.wire import RubricContent, RubricVersion

OTHER = "sha256:" + "2" * 64


def judging_by(*rubrics, digest=DIGEST):
    return lambda body: stream(*groups(body, rubric=digest), summary(rubrics=list(rubrics)))


@pytest.mark.parametrize("reference", ["math/r", "math/r@production"])
async def test_the_first_answer_pins_a_reference_and_later_requests_send_it_pinned(reference):
    judge = FakeJudgeTransport(judging_by(pinned("math/r", 3)))
    reward = rewarding(judge, reference)
    for _ in range(2):
        await reward(["a"], ["1"])
    assert [asked["rubric"] for asked in judge.asked] == [reference, "math/r@3"]
    assert reward.state() == {"pins": {reference: "math/r@3"}}


async def test_references_of_rows_are_pinned_separately(caplog):
    def two(body):
        lines = groups(body)
        lines[1]["group"]["rubric"] = OTHER
        return stream(*lines, summary(rubrics=[pinned("x", 3), pinned("y", 4, OTHER), pinned("x", 9, OTHER)]))

    judge = FakeJudgeTransport(two)
    reward = rewarding(judge, None)
    for _ in range(2):
        await reward(["a", "b"], ["1", "1"], rubric=["x", "y"])
    assert [group["rubric"] for group in judge.asked[1]["groups"]] == ["x@3", "y@4"]
    assert caplog.text == ""


@pytest.mark.parametrize("rubric", ["math/r@2", DIGEST, CRITERIA])
async def test_inline_and_versioned_rubrics_are_not_pinned(rubric):
    judge = FakeJudgeTransport(judging_by(pinned("math/r", 2)))
    reward = rewarding(judge, rubric)
    for _ in range(2):
        await reward(["a"], ["1"])
    assert reward.state() == {"pins": {}}
    assert judge.asked[0] == judge.asked[1]


async def test_an_answer_by_a_different_version_than_the_pinned_one_gives_no_reward(caplog):
    judge = FakeJudgeTransport(judging_by(pinned("r", 3)), judging_by(pinned("r", 4)))
    reward = rewarding(judge, "r")
    assert [await reward(["a"], ["1"]) for _ in range(2)] == [[1.0], [None]]
    assert "it was judged by r@4, and r@3 was asked for" in caplog.text
    assert reward.state() == {"pins": {"r": "r@3"}}


async def test_without_an_answer_nothing_is_pinned():
    reward = rewarding(FakeJudgeTransport(lambda body: problem("internal", 500)), "r")
    await reward(["a"], ["1"])
    assert reward.state() == {"pins": {}}


async def test_repinning_takes_the_newest_version_and_returns_the_old_one(caplog):
    caplog.set_level(logging.INFO)
    judge = FakeJudgeTransport(judging_by(pinned("r", 3)), judging_by(pinned("r", 5)))
    reward = rewarding(judge, "r")
    await reward(["a"], ["1"])
    reward.repin()
    for _ in range(2):
        await reward(["a"], ["1"])
    assert [asked["rubric"] for asked in judge.asked] == ["r", "r", "r@5"]
    assert caplog.text.count("rubric r: was r@3, is now r@5") == 1


async def test_a_checkpoint_keeps_the_pins_as_json():
    reward = rewarding(FakeJudgeTransport(judging_by(pinned("r", 3))), "r")
    await reward(["a"], ["1"])
    kept = json.dumps(reward.state())
    judge = FakeJudgeTransport()
    resumed = rewarding(judge, "r")
    resumed.load_state(json.loads(kept))
    await resumed(["a"], ["1"])
    assert judge.asked[0]["rubric"] == "r@3"


async def test_the_trainers_state_keeps_the_pins_of_each_function_for_its_checkpoints():
    state = SimpleNamespace(global_step=1, stateful_callbacks={"TrainerControl": {"args": {}}})
    for name, number in (("one", 3), ("two", 7)):
        reward = rewarding(FakeJudgeTransport(judging_by(pinned("r", number))), "r", name=name)
        await reward(["a"], ["1"], trainer_state=state, log_metric=Trainer([reward]).log_metric)
    loaded = SimpleNamespace(global_step=1, stateful_callbacks=json.loads(json.dumps(state.stateful_callbacks)))
    for name, number in (("one", 3), ("two", 7)):
        judge = FakeJudgeTransport()
        resumed = rewarding(judge, "r", name=name)
        await resumed(["a"], ["1"], trainer_state=loaded, log_metric=Trainer([resumed]).log_metric)
        assert judge.asked[0]["rubric"] == f"r@{number}"


async def test_versions_chosen_before_the_first_call_win_over_those_of_a_checkpoint():
    kept = {"RubricReward rubric": {"args": {}, "attributes": {"pins": {"r": "r@3"}}}}
    judge = FakeJudgeTransport()
    reward = rewarding(judge, "r")
    reward.repin({"r": "r@5"})
    await reward(["a"], ["1"], trainer_state=SimpleNamespace(global_step=1, stateful_callbacks=kept))
    reward.repin({"r": "r@6"})
    assert judge.asked[0]["rubric"] == "r@5"
    assert kept["RubricReward rubric"]["attributes"] == {"pins": {"r": "r@6"}}


@pytest.mark.parametrize("state", [{}, {"pins": ["r"]}, {"pins": {"r": 3}}])
def test_an_invalid_state_is_refused(state):
    with pytest.raises(ValueError, match="pins must be a mapping"):
        rewarding(FakeJudgeTransport()).load_state(state)


def test_ranks_with_different_pins_take_those_of_the_lowest_rank(caplog):
    pins = RubricPins({"x": "x@2"})
    pins.merge_ranks([{}, {"x": "x@1", "y": "y@7"}, {"x": "x@2"}])
    assert pins.state() == {"x": "x@1", "y": "y@7"}
    assert "rubric x: ranks disagree, x@2 becomes x@1" in caplog.text


async def test_of_two_versions_in_one_call_the_first_is_kept_and_the_other_logged(caplog):
    judge = FakeJudgeTransport(judging_by(pinned("r", 3)), judging_by(pinned("r", 4)))
    reward = rewarding(judge, "r")
    await reward(LARGE_PROMPTS, ["1", "1"])
    assert reward.state() == {"pins": {"r": "r@3"}}
    assert "judged by r@4" in caplog.text


def version(number, criteria=CRITERIA):
    content = RubricContent.model_validate({"criteria": criteria})
    body = {"name": "r", "version": number, "digest": content.digest, "created_at": "2025-01-01T00:00:00Z"}
    return RubricVersion(**body, criteria=content.criteria)


def fetching(found):
    """A judge that uses that version, and a reward function that needs its criteria."""
    judge = FakeJudgeTransport(judging_by(pinned("r", found.version, found.digest), digest=found.digest))
    judge.rubrics = {found.reference: httpx2.Response(200, content=found.model_dump_json())}
    reward = rewarding(judge, "r")
    reward.needs_criteria = True
    return judge, reward


async def test_criteria_behind_a_reference_are_fetched_once_and_only_where_needed():
    found = version(3)
    judge, reward = fetching(found)
    for _ in range(2):
        await reward(["a", "a"], ["1", "1"])
    assert [row.criteria for row in reward.last.rows] == [found.criteria] * 2
    assert judge.fetched == ["r@3"]
    reward.needs_criteria = False
    await reward(["a"], ["1"])
    assert reward.last.rows[0].criteria is None


async def test_a_failed_fetch_of_criteria_is_logged_and_retried(caplog):
    found = version(3)
    judge, reward = fetching(found)
    good, judge.rubrics["r@3"] = judge.rubrics["r@3"], problem("internal", 500)
    assert await reward(["a"], ["1"]) == [1.0]
    assert reward.last.rows[0].criteria is None
    assert "could not fetch the criteria of r@3" in caplog.text
    judge.rubrics["r@3"] = good
    await reward(["a"], ["1"])
    assert reward.last.rows[0].criteria == found.criteria


async def test_criteria_whose_content_differs_from_the_judged_one_are_not_used(caplog):
    judge, reward = fetching(version(3))
    wrong = version(3, CRITERIA[:1])
    judge.rubrics["r@3"] = httpx2.Response(200, content=wrong.model_dump_json())
    await reward(["a"], ["1"])
    assert reward.last.rows[0].criteria is None
    assert f"rubric r@3 is {wrong.digest}" in caplog.text


async def test_inline_criteria_are_those_of_the_row():
    reward = rewarding(FakeJudgeTransport(), CRITERIA)
    await reward(["a", "b"], ["1", "1"], rubric=[None, [{"id": "own", "description": "x"}]])
    assert [[c.id for c in row.criteria] for row in reward.last.rows] == [["a", "b"], ["own"]]
