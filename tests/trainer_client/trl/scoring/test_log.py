"""Results of a call: metrics for the trainer's log, a text for each row, and the rows themselves."""

import math

import pytest

from tests.trainer_client.trl.judges import (
    CRITERIA,
    FakeJudgeTransport,
    Trainer,
    groups,
    problem,
    response,
    rewarding,
    stream,
    summary,
    verdict,
)
from trainer_client.trl.scoring.metrics import MAX_TRACKED_CRITERIA


def giving(*answers):
    """A judge that gives these responses in order."""

    def answer(body):
        left = iter(answers)
        return stream(*groups(body, lambda said: next(left)), summary())

    return FakeJudgeTransport(answer)


async def logged(judge, rows, rubric="r", **columns):
    trainer = Trainer()
    reward = rewarding(judge, rubric)
    await reward(["a"] * rows, ["1"] * rows, **trainer.logs, **columns)
    assert all(len(values) == 1 and math.isfinite(values[0]) for values in trainer.metrics.values())
    return {name: values[0] for name, values in trainer.metrics.items()}, trainer.extra, reward


ANSWERS = (
    response(1.0, verdict("a", 1.0, cached=True), verdict("b", 1.0)),
    response(0.5, verdict("a", 0.5), verdict("b", None, "parse"), status="partial", policy_applied="skip"),
    response(0.0, verdict("a", None, "parse"), verdict("b", None, "engine"), status="partial", policy_applied="zero"),
    response(None, verdict("a", 0.0), verdict("b", None, "engine")),
)


async def test_metrics_include_shares_counts_costs_and_pass_rates():
    metrics, _, _ = await logged(giving(*ANSWERS), 4)
    waited = metrics.pop("rubric/wait_seconds")
    assert 0 < waited < 60
    assert metrics == {
        "rubric/unscored": 0.25,
        "rubric/partial": 0.5,
        "rubric/without_rubric": 0.0,
        "rubric/zeroed": 1.0,
        "rubric/skipped": 1.0,
        "rubric/failed_verdicts": 0.5,
        "rubric/uncertain_verdicts": 0.0,
        "rubric/cached": 0.125,
        "rubric/clipped": 0.0,
        "rubric/judge_calls": 2.0,
        "rubric/judge_seconds": 0.5,
        "rubric/queue_seconds": 0.25,
        "rubric/failures/parse": 2.0,
        "rubric/failures/engine": 2.0,
        "rubric/pass/a": 0.5,
        "rubric/pass/b": 1.0,
    }


async def test_the_reward_under_the_rubrics_own_weights_is_logged_where_others_are_trained_on():
    given = response(0.9, declared_reward=0.5), response(0.1, declared_reward=0.0), response(None)
    metrics, _, reward = await logged(giving(*given), 3)
    assert metrics["rubric/declared_reward"] == 0.25
    assert [row.reward for row in reward.last.rows] == [0.9, 0.1, None]


async def test_the_table_has_a_text_with_the_verdicts_for_each_row():
    _, extra, _ = await logged(giving(*ANSWERS), 4)
    assert extra == {
        "rubric": [
            "2 of 2: a ✓ b ✓",
            "0.5 of 2 (policy skip): a 0.5 b ?",
            "0 of 2 (policy zero): a ? b ?",
            "no reward (engine); 0 of 2: a ✗ b ?",
        ]
    }


async def test_a_trainer_without_a_table_is_given_none():
    trainer = Trainer(log_completions=False)
    await rewarding(giving(response(1.0)))(["a"], ["1"], **trainer.logs)
    assert trainer.extra == {}
    assert trainer.metrics["rubric/unscored"] == [0.0]


async def test_a_long_rubric_is_truncated_in_the_table():
    _, extra, _ = await logged(giving(response(1.0, *(verdict(f"c{n}") for n in range(30)))), 1)
    assert extra["rubric"][0].startswith("30 of 30: c0 ✓")
    assert extra["rubric"][0].endswith("c23 ✓ … 6 more")


async def test_an_outage_logs_only_the_known_metrics():
    metrics, extra, _ = await logged(FakeJudgeTransport(lambda body: problem("internal", 500)), 2)
    assert extra == {"rubric": ["no reward (server)"] * 2}
    metrics.pop("rubric/wait_seconds")
    assert metrics == {
        "rubric/unscored": 1.0,
        "rubric/partial": 0.0,
        "rubric/without_rubric": 0.0,
        "rubric/zeroed": 0.0,
        "rubric/skipped": 0.0,
        "rubric/failures/server": 2.0,
    }


async def test_an_invalid_score_does_not_affect_pass_rates():
    strange = verdict("a") | {"score": 1e308}
    metrics, _, _ = await logged(giving(response(1.0, strange, verdict("b"))), 1)
    assert "rubric/pass/a" not in metrics
    assert metrics["rubric/pass/b"] == 1.0


def many(first, count):
    return [{"id": f"c{n}", "kind": "factual", "description": "x"} for n in range(first, first + count)]


def all_of(criteria):
    return giving(response(1.0, *(verdict(c["id"], 0.5) for c in criteria)))


async def test_with_too_many_criteria_pass_rates_are_by_kind():
    metrics, _, _ = await logged(all_of(many(0, MAX_TRACKED_CRITERIA + 1)), 1, many(0, MAX_TRACKED_CRITERIA + 1))
    assert {name for name in metrics if "pass" in name} == {"rubric/pass/kind/factual"}
    assert metrics["rubric/pass/kind/factual"] == 0.5


async def test_with_too_many_criteria_those_of_unknown_kind_are_left_out():
    metrics, _, _ = await logged(all_of(many(0, MAX_TRACKED_CRITERIA + 1)), 1)
    assert not [name for name in metrics if "pass" in name]


async def test_rubrics_that_never_repeat_do_not_flood_the_log_with_names():
    trainer, names = Trainer(), set()
    judge = FakeJudgeTransport()
    reward = rewarding(judge, None)
    for batch in range(10):
        criteria = many(batch * 20, 20)
        judge.answers = all_of(criteria).answers
        await reward(["a"], ["1"], rubric=[criteria], **trainer.logs)
        names |= {name for name in trainer.metrics if "pass" in name}
    assert len(names) <= MAX_TRACKED_CRITERIA + 1
    assert "rubric/pass/kind/factual" in names


async def test_two_rubric_rewards_of_one_trainer_log_separately():
    one, two = rewarding(FakeJudgeTransport()), rewarding(FakeJudgeTransport())
    trainer = Trainer([one, two], masks_missing_rewards=True)
    for reward in (one, two):
        await reward(["a"], ["1"], **trainer.logs)
    assert set(trainer.extra) == {"rubric", "rubric_2"}
    assert trainer.metrics["rubric/unscored"] == [0.0]
    assert trainer.metrics["rubric_2/unscored"] == [0.0]


async def test_the_rows_of_the_latest_call_are_kept_in_its_order():
    metrics, _, reward = await logged(giving(*ANSWERS), 4, CRITERIA)
    assert {name for name in metrics if "pass" in name} == {"rubric/pass/a", "rubric/pass/b"}
    rows = reward.last.rows
    assert [row.reward for row in rows] == [1.0, 0.5, 0.0, None]
    assert [row.answer.status for row in rows] == ["scored", "partial", "partial", "unscored"]
    assert [row.failures for row in rows] == [(), ("parse",), ("parse", "engine"), ("engine",)]
    assert len({row.group for row in rows}) == 1
    await reward(["b"], ["1"])
    assert len(reward.last.rows) == 1


@pytest.mark.parametrize("logs", [{}, {"log_metric": print}, {"log_extra": lambda *_: None}])
async def test_a_trainer_without_some_logging_functions_is_supported(logs, capsys):
    assert await rewarding(FakeJudgeTransport())(["a"], ["1"], **logs) == [1.0]
