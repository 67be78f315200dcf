"""Parts of the console that need no service: explanations of rewards, ranges of axes, and sessions."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.api.console.charts import (
    Flag,
    Label,
    Mark,
    Point,
    axis_labels,
    curve,
    nice_range,
    round_steps,
    sparkline,
)
from judge_server.api.console.responses import RecordedReward, explain, read_text
from judge_server.api.console.sessions import SESSION_LIFETIME_S, SessionSigner, local_page
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


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.booleans())
def test_a_range_of_round_numbers_covers_its_values(one: float, other: float, whole: bool) -> None:
    low, high = min(one, other), max(one, other)
    first, last, ticks = nice_range(low, high, whole=whole)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert first - slack <= low <= high <= last + slack
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_ticks_of_steps_are_round_and_within_the_range(first: int, span: int) -> None:
    ticks = round_steps(first, first + span)
    assert ticks == [tick for tick in ticks if first <= tick <= first + span]
    assert min(2, span + 1) <= len(ticks) <= 6
    distances = {b - a for a, b in itertools.pairwise(ticks)}
    assert len(distances) <= 1
    for distance in distances:
        assert str(distance).rstrip("0") in ("1", "2", "5")
        assert all(tick % distance == 0 for tick in ticks)


@given(st.integers(1, 200), st.integers(2, 6))
def test_axis_labels_include_both_ends_and_are_evenly_spaced(count: int, most: int) -> None:
    names = [str(i) for i in range(count)]
    shown = [int(name) for name in axis_labels(names, most)]
    assert shown[0] == 0
    assert shown[-1] == count - 1
    assert len({b - a for a, b in itertools.pairwise(shown)}) <= 1


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=50))
def test_any_values_can_be_drawn(values: list[float | None]) -> None:
    assert "nan" not in sparkline(values, "x")
    if any(value is not None for value in values):
        marks = [Mark("<t>", "/a?b=1&c=2")] * len(values)
        points = [Point(10.0 * i, 10.0 * i, 10.0 * i + 10, value, 1.0) for i, value in enumerate(values)]
        flags = [Flag(5.0, "<1>", "critical", Mark("<t>", "/f"))]
        drawn = curve(points, marks, [Label(0.0, "<a>")], "<n>", beside=[("other", points[:1])], flags=flags)
        assert "<1>" not in drawn.flags
        assert "<t>" not in drawn.svg
        assert "<n>" not in drawn.svg
        assert drawn.svg.count('href="/a?b=1&amp;c=2"') == len(values)


def test_a_session_expires_and_cannot_be_altered() -> None:
    now = [1_000_000.0]
    signer = SessionSigner(b"secret", lambda: now[0])
    cookie = signer.begin("abcdefgh")
    key, id_, end, mac = cookie.split(".")
    assert signer.read(cookie) == ("abcdefgh", id_, 1_000_000 + SESSION_LIFETIME_S)
    for changed in (
        f"other.{id_}.{end}.{mac}",
        f"{key}.{'0' * 32}.{end}.{mac}",
        f"{key}.{id_}.{int(end) + 1}.{mac}",
        f"{key}.{end}.{mac}",
        f"{key}.{id_}.{end}.{mac[:-1]}0x",
        "",
        "...",
        cookie[:-1],
    ):
        assert signer.read(changed) is None
    assert SessionSigner(b"other").read(cookie) is None
    assert signer.read(signer.form_token(cookie)) is None
    now[0] += SESSION_LIFETIME_S
    assert signer.read(cookie) is None


def test_sessions_that_begin_at_once_are_different_ones() -> None:
    signer = SessionSigner(b"secret", lambda: 1_000_000.0)
    assert signer.begin("abcdefgh") != signer.begin("abcdefgh")


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.test/console/runs",
        "//evil.test",
        "/console",
        "/\\evil.test",
        "/v1/runs",
        "/console/sign-in?next=x",
        "/console/\n",
    ],
)
def test_signing_in_never_redirects_outside_the_console(path: str) -> None:
    assert local_page(path) == "/console/runs"


def test_signing_in_redirects_to_the_requested_page() -> None:
    assert local_page("/console/run?run=a%2Fb") == "/console/run?run=a%2Fb"


def test_a_long_text_and_a_conversation_are_shown_in_parts() -> None:
    assert read_text('"abcdef"', 4)[0] == ("", "abcd", 2)
    message = '[{"role":"assistant","content":"x","reasoning_content":"y","tool_calls":[{"id":"1"}]}]'
    assert [part.role for part in read_text(message, None)] == [
        "assistant, reasoning",
        "assistant",
        "assistant, tool calls",
    ]
    assert read_text(None, 4) == []
