"""The formula of an explanation evaluates to the reward, and what cannot be explained says so."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.scoring.explanation import RecordedReward, explain
from judge_server.scoring.rewards import reward_of
from trainer_client.rewards import ResponseFacts, UnsuitableRubric
from trainer_client.wire import PROTOCOLS_FOR, Criterion, Failure, FailurePolicy, RewardMode, RewardOptions, Verdict
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC

QUARTERS = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
KINDS = st.sampled_from(["point", "factual", "process", "answer", "bonus", "suggest", "pitfall"])


def verdicts(scores: list[float | None]) -> list[Verdict]:
    """A verdict per score; None stands for a failed verdict."""
    return [
        Verdict(criterion=f"c{i}", status="failed", failure=Failure(kind="timeout", detail="late"))
        if score is None
        else Verdict(criterion=f"c{i}", status="ok", score=score)
        for i, score in enumerate(scores)
    ]


PENALTIES = st.fixed_dictionaries(
    {},
    optional={
        "truncation_factor": st.sampled_from([0.0, 0.25, 1.0]),
        "length_penalty": st.fixed_dictionaries(
            {"target_tokens": st.integers(0, 30_000), "excess_only": st.booleans()}
        ),
        "overlong_penalty": st.just({"limit_tokens": 20_480, "buffer_tokens": 4096}),
        "kinds": st.just(["factual", "point", "answer"]),
        "format_weight": QUARTERS,
        "gate_fraction": QUARTERS,
    },
)


@given(
    mode=st.sampled_from([mode for mode in PROTOCOLS_FOR if mode != "ranking"]),  # ranking rewards a whole group
    rows=st.lists(st.tuples(st.integers(-4, 4), KINDS, st.none() | QUARTERS), min_size=1, max_size=5),
    policy=st.sampled_from(["null", "skip", "zero"]),
    options=st.none() | PENALTIES,
    format_ok=st.booleans(),
    stopped=st.booleans(),
)
def test_the_formula_of_an_explanation_evaluates_to_the_reward(
    mode: RewardMode,
    rows: list[tuple[int, str, float | None]],
    policy: FailurePolicy,
    options: dict[str, Any] | None,
    format_ok: bool,
    stopped: bool,
) -> None:
    if mode in NEEDS_NO_RUBRIC:
        rows, options = rows[:1], options and {n: v for n, v in options.items() if n != "kinds"}
    criteria = [
        Criterion.model_validate({"id": f"c{i}", "description": "x", "kind": kind, "weight": weight})
        for i, (weight, kind, _) in enumerate(rows)
    ]
    given_verdicts = verdicts([score for *_, score in rows])
    rules = RewardRules(reward=RewardOptions.model_validate({"mode": mode} | (options or {})), on_failure=policy)
    try:
        facts = ResponseFacts(format_ok, tokens=18_000, stopped=stopped)
        result = reward_of([] if mode in NEEDS_NO_RUBRIC else criteria, given_verdicts, rules, facts)
    except UnsuitableRubric:
        return
    status = result.outcome.status
    told = explain(RecordedReward(rules, result.reward, status, facts), criteria, given_verdicts)
    assert told.matches
    if status == "unscored":
        assert not told.formula
        assert "failed" in told.sentence
        return
    expression, _, value = told.formula.rpartition(" = ")
    computed = eval(re.sub(r" \[\w+\]", "", expression).replace("×", "*").replace("−", "-"), {"min": min, "max": max})
    assert computed == pytest.approx(result.reward)
    assert float(value) == pytest.approx(result.reward, rel=1e-3, abs=1e-3)


FACTS = ResponseFacts(format_ok=True)
CRITERIA = [Criterion(id="c0", description="x", weight=3), Criterion(id="c1", description="y")]


def rules_of(mode: RewardMode = "weighted_mean", **also: Any) -> RewardRules:
    return RewardRules.model_validate({"reward": {"mode": mode} | also.pop("reward", {}), **also})


def test_a_reward_with_unrecorded_options_is_not_explained_by_a_wrong_formula() -> None:
    told = explain(RecordedReward(rules_of(), 0.7, "scored", FACTS, complete=False), CRITERIA, verdicts([1.0, 0.0]))
    assert not told.matches
    assert "0.7" in told.sentence
    assert "not recorded" in told.sentence
    assert told.formula == "(3 × 1 [c0] + 1 × 0 [c1]) / (3 + 1) = 0.75"


@pytest.mark.parametrize(
    ("rules", "criteria", "said"), [(rules_of("points"), None, "not in the ledger"), (None, CRITERIA, "no reward")]
)
def test_a_reward_without_rules_or_rubric_says_so(
    rules: RewardRules | None, criteria: list[Criterion] | None, said: str
) -> None:
    assert said in explain(RecordedReward(rules, 1.0, "scored", FACTS), criteria, verdicts([1.0])).sentence


def test_an_explanation_says_if_the_ledger_shows_another_verdict_than_the_reward_used() -> None:
    told = explain(RecordedReward(rules_of(), 1.0, "scored", FACTS), CRITERIA, verdicts([1.0, 0.0]))
    assert not told.matches
    assert "a later one that differs" in told.sentence


def test_soft_rewards_and_missing_verdicts_are_explained() -> None:
    soft = [Verdict(criterion=f"c{i}", status="ok", score=1.0, probability=p) for i, p in enumerate((0.75, 0.5))]
    by_probability = rules_of(reward={"use": "probability"})
    told = explain(RecordedReward(by_probability, 0.6875, "scored", FACTS), CRITERIA, soft)
    assert told.formula == "(3 × 0.75 [c0] + 1 × 0.5 [c1]) / (3 + 1) = 0.6875"
    assert "probabilities of yes" in told.sentence
    unsure = [soft[0], Verdict(criterion="c1", status="uncertain", probability=0.5)]
    told = explain(RecordedReward(rules_of("points"), None, "unscored", FACTS), CRITERIA, unsure)
    assert "c1 is uncertain" in told.sentence
    told = explain(RecordedReward(rules_of(on_uncertain="skip"), 1.0, "partial", FACTS), CRITERIA, unsure)
    assert told.formula == "(3 × 1 [c0]) / (3) = 1"
    assert "left out, as the failure policy says" in told.sentence
    shadow = [CRITERIA[0], CRITERIA[1].model_copy(update={"shadow": True})]
    told = explain(RecordedReward(rules_of(), 1.0, "scored", FACTS), shadow, verdicts([1.0, 0.0]))
    assert told.formula == "(3 × 1 [c0]) / (3) = 1"
