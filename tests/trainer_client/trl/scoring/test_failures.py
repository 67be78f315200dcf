"""A failing judge costs rewards but never stops the run; a user error stops it."""

import logging

import httpx2
import pytest

from tests.trainer_client.trl.judges import (
    CRITERIA,
    FakeJudgeTransport,
    client,
    groups,
    obliging,
    problem,
    response,
    rewarding,
    stream,
    summary,
    verdict,
)
from trainer_client import (
    BudgetExhausted,
    Forbidden,
    InvalidRequest,
    JudgingFailed,
    NotFound,
    NotReady,
    RubricRefused,
    ServerError,
    Unauthorized,
    UnknownRubric,
)
from trainer_client.trl import TooManyUnscored
from trainer_client.trl.reward import RubricReward

TWO = (["a", "b"], ["0.25", "0.5"])


def kinds(reward):
    return [row.failures for row in reward.last.rows]


def raising(error):
    def answer(body):
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (raising(httpx2.ConnectError("refused")), "unreachable"),
        (raising(httpx2.ReadTimeout("slow")), "timeout"),
        (lambda body: problem("overloaded", 429, retryable=True), "overloaded"),
        (lambda body: problem("not-ready", 503, retryable=True), "not_ready"),
        (lambda body: problem("internal", 500), "server"),
        (lambda body: httpx2.Response(502, text="bad gateway"), "server"),
        (lambda body: httpx2.Response(429, text="slow down"), "overloaded"),
        (lambda body: httpx2.Response(200, text="<html>"), "malformed"),
        (lambda body: stream(b"{}{\n"), "malformed"),
        (lambda body: stream(), "unreachable"),
        (lambda body: stream({"problem": {**problem("internal", 500).json()}}), "server"),
        (lambda body: stream(summary()), "mismatched"),
    ],
)
async def test_a_failing_service_leaves_all_rows_without_a_reward_and_logs_the_reason(answer, kind, caplog):
    reward = rewarding(FakeJudgeTransport(answer))
    assert await reward(*TWO) == [None, None]
    assert kinds(reward) == [(kind,), (kind,)]
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"2 of 2 responses have no reward from http://judge.test (2 {kind})" in said


async def test_where_failures_are_errors_an_unavailable_judge_stops_training():
    judge = FakeJudgeTransport(lambda body: problem("not-ready", 503, retryable=True))
    reward = RubricReward(client(judge, retries=0), "r", wait_for_judge_s=0.0, on_failure="error", max_unscored=1.0)
    with pytest.raises(NotReady):
        await reward(*TWO)


async def test_groups_received_before_the_answer_broke_are_kept_and_the_rest_requested_again():
    def breaks_after_one(body):
        return stream(groups(body)[0], httpx2.ReadError("reset"))

    judge = FakeJudgeTransport(breaks_after_one, obliging)
    assert await rewarding(judge)(*TWO) == [0.25, 0.5]
    assert [[group["prompt"] for group in asked["groups"]] for asked in judge.asked] == [["a", "b"], ["b"]]


async def test_an_answer_that_breaks_before_any_group_is_not_requested_again():
    def breaks(body):
        return stream(httpx2.ReadError("reset"))

    judge = FakeJudgeTransport(breaks)
    reward = RubricReward(client(judge, retries=0), "r", wait_for_judge_s=0.0, max_unscored=1.0)
    assert await reward(*TWO) == [None, None]
    assert len(judge.asked) == 1


async def test_groups_received_before_a_permanent_problem_are_kept_without_a_retry():
    def fails_after_one(body):
        return stream(groups(body)[0], {"problem": problem("internal", 500).json()})

    judge = FakeJudgeTransport(fails_after_one)
    reward = rewarding(judge)
    assert await reward(*TWO) == [0.25, None]
    assert kinds(reward) == [(), ("server",)]
    assert len(judge.asked) == 1


async def test_a_service_that_does_not_stream_is_read_whole():
    def whole(body):
        lines = groups(body)
        return httpx2.Response(200, json={**summary()["summary"], "groups": [line["group"] for line in lines]})

    assert await rewarding(FakeJudgeTransport(whole))(*TWO) == [0.25, 0.5]


async def test_groups_in_another_order_reach_their_own_rows():
    reward = rewarding(FakeJudgeTransport(lambda body: stream(*reversed(groups(body)), summary())))
    assert await reward(["a", "b", "a"], ["1", "2", "3"]) == [1.0, 2.0, 3.0]


UNKNOWN = {"group": {"id": "unknown", "responses": [response(9.0)] * 2}}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[0]["group"]["responses"].pop(),
        lambda lines: lines[0]["group"]["responses"].append(response(9.0)),
        lambda lines: lines.pop(),
        lambda lines: lines.append(UNKNOWN),
        lambda lines: lines.append(lines[0]),
        lambda lines: lines[1]["group"]["responses"][0].update(verdicts=[verdict("another")]),
    ],
    ids=["lost response", "extra response", "lost group", "unknown group", "repeated group", "other criterion"],
)
async def test_no_row_is_rewarded_by_an_answer_that_is_not_that_of_its_request(spoil, caplog):
    def spoilt(body):
        lines = groups(body)
        spoil(lines)
        return stream(*lines, summary())

    reward = rewarding(FakeJudgeTransport(spoilt), CRITERIA)
    assert await reward(["a", "a", "b"], ["1", "2", "3"]) == [None, None, None]
    assert kinds(reward) == [("mismatched",)] * 3
    assert "is not that of this request" in caplog.text


@pytest.mark.parametrize("number", [b"NaN", b"1e999", b"-1e999"])
async def test_a_reward_that_is_not_a_finite_number_counts_as_missing(number):
    def strange(body):
        [line] = groups(body)
        line["group"]["responses"][0]["reward"] = "HERE"
        return stream(httpx2.Response(200, json=line).content.replace(b'"HERE"', number) + b"\n", summary())

    reward = rewarding(FakeJudgeTransport(strange))
    assert await reward(["a"], ["1"]) == [None]
    assert kinds(reward) == [("not_finite",)]


async def test_every_response_lists_each_kind_of_failure_once():
    def failing(body):
        failed = [verdict("a", None, "parse"), verdict("b", None, "parse"), verdict("c", None, "engine")]
        passed = [verdict("a"), verdict("b"), verdict("c")]
        answers = iter([response(None, *failed), response(0.5, *passed[:2], failed[2]), response(None, *passed)])
        return stream(*groups(body, lambda said: next(answers)), summary())

    reward = rewarding(FakeJudgeTransport(failing))
    assert await reward(["a"] * 3, ["1"] * 3) == [None, 0.5, None]
    assert kinds(reward) == [("parse", "engine"), ("engine",), ("unscored",)]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda body: problem("invalid-request", 422), InvalidRequest),
        (lambda body: problem("unsuitable-rubric", 422), RubricRefused),
        (lambda body: problem("unknown-rubric", 404), UnknownRubric),
        (lambda body: problem("not-found", 404), NotFound),
        (lambda body: problem("too-large", 413), InvalidRequest),
        (lambda body: problem("judging-failed", 502), JudgingFailed),
        (lambda body: stream({"problem": problem("judging-failed", 502).json()}), JudgingFailed),
        (lambda body: problem("forbidden", 403), Forbidden),
        (lambda body: problem("unauthorized", 401), Unauthorized),
        (lambda body: problem("budget-exhausted", 429), BudgetExhausted),
        (lambda body: httpx2.Response(401, text="who are you?"), ServerError),
        (lambda body: httpx2.Response(413, text="nginx"), ServerError),
    ],
)
async def test_a_user_error_stops_training_whatever_share_may_stay_unscored(answer, error):
    with pytest.raises(error):
        await rewarding(FakeJudgeTransport(answer))(*TWO)


async def test_an_unexpected_error_is_raised():
    with pytest.raises(ZeroDivisionError):
        await rewarding(FakeJudgeTransport(raising(ZeroDivisionError())))(*TWO)


@pytest.mark.parametrize(("failing", "stops"), [(0, False), (2, False), (3, True), (4, True)])
async def test_training_stops_when_too_large_a_share_has_no_reward(failing, stops):
    def fails_some(body):
        numbers = iter(range(4))
        return stream(*groups(body, lambda said: response(None if next(numbers) < failing else 1.0)), summary())

    reward = rewarding(FakeJudgeTransport(fails_some), max_unscored=0.5)
    if stops:
        with pytest.raises(TooManyUnscored, match=f"{failing} of 4 responses have no reward"):
            await reward(["a"] * 4, ["1"] * 4)
    else:
        assert (await reward(["a"] * 4, ["1"] * 4)).count(None) == failing


@pytest.mark.parametrize("policy", ["zero", "zero_unparseable"])
async def test_rewards_zeroed_by_a_failure_policy_count_as_missing(policy):
    def zeroes(body):
        return stream(*groups(body, lambda said: response(0.0, policy_applied=policy, status="unscored")), summary())

    with pytest.raises(TooManyUnscored, match="4 of 4 responses have no reward"):
        await rewarding(FakeJudgeTransport(zeroes), max_unscored=0.5)(["a"] * 4, ["1"] * 4)


async def test_the_error_states_the_number_the_causes_and_the_remedy():
    def overloaded(body):
        return problem("overloaded", 429, retryable=True)

    with pytest.raises(TooManyUnscored) as raised:
        await rewarding(FakeJudgeTransport(overloaded), max_unscored=0.5, deadline_s=30)(*TWO)
    for part in (
        "2 of 2 responses have no reward from the judge",
        "max_unscored = 0.5 allows only 1: 2 overloaded.",
        "The last error: overloaded happened",
        "http://judge.test/readyz",
        "raise deadline_s (30)",
        "max_unscored=1.0",
    ):
        assert part in str(raised.value)
