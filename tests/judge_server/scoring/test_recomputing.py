"""Recomputing gives what judging under those rules would have given, and asks no judge."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.engines.scripted import always, by_hash
from judge_server.errors import InvalidRequest, JudgingFailed, NotFound, RubricRefused
from judge_server.ledger.rows import rows_of
from judge_server.ports import CallFailure, Reply
from judge_server.scoring.recompute import recompute
from judge_server.scoring.recorded import recorded_page
from rubric_store import SQLLedger, migrations
from rubric_store.ledger.rows import UseFilter
from tests.hypothesis_examples import examples
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score, scorer, some_fail
from tests.judge_server.support import CRITERIA, STEPPED, request
from trainer_client.wire import NOT_LINEAR, PROTOCOLS_FOR, YES_NO_PROTOCOLS, RewardRequest
from trainer_client.wire.base import MIN_MAGNITUDE
from trainer_client.wire.ledger import RecomputedGroup, RecomputeRequest, RecomputeSummary

RUNS = itertools.count()
TEXTS = [STEPPED, "No.", "### Step 1: guess\nYes.", "<think>Hm.</think>So \\boxed{no}", "Yes."]
PENALTIES = [
    {},
    {"length_penalty": {"target_tokens": 100}},
    {"overlong_penalty": {"limit_tokens": 120, "buffer_tokens": 60}, "truncation_factor": 0.5},
]
MODES = [
    "weighted_mean",
    "factual_override",
    "points",
    "clipped_points",
    "absolute_points",
    "partial_credit",
    "stepwise",
    "graded_mean",
    "gate",
    "likert",
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLLedger]:
    url = f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    migrations.upgrade(url)
    opened = SQLLedger(url)
    yield opened
    asyncio.run(opened.close())


async def recomputed(ledger: SQLLedger, **rules: Any) -> tuple[list[RecomputedGroup], RecomputeSummary]:
    """The groups and the summary of a run under other rules."""
    wanted = RecomputeRequest.model_validate(rules)
    _, *groups, summary = [part async for part in recompute(ledger, wanted, project_id=PROJECT)]
    return groups, summary  # type: ignore[return-value]


async def judged(ledger: SQLLedger, *bodies: dict[str, Any], script: Any = some_fail) -> str:
    """Record a run of these requests in the ledger and return its name."""
    run = f"run-{next(RUNS)}"
    made = await scorer(SynchronousRecorder(ledger), script)
    for number, body in enumerate(bodies):
        await score(made, body | {"run": run}, f"req_{number}")
    return run


def facts(response: Any) -> dict[str, Any]:
    """What recomputing and judging must agree on."""
    return response.model_dump(include={"reward", "unpenalised", "status", "policy_applied", "dropped", "steps"})


def suited(criteria: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """The criteria that a mode takes."""
    return [c for c in criteria if mode in ("stepwise", "graded_mean", "likert") or c["kind"] != "pitfall"]


SHARE = st.just(0.0) | st.floats(MIN_MAGNITUDE, 1)

DOUBTS = st.fixed_dictionaries(
    {},
    optional={
        "uncertain_band": st.tuples(st.floats(0, 0.5), st.floats(0.5, 1)),
        "on_uncertain": st.sampled_from(["null", "zero", "skip"]),
    },
)

RULES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "format_weight": SHARE,
        "gate_fraction": SHARE,
    }
)


@settings(max_examples=examples(25))
@given(
    judged_as=st.sampled_from(MODES),
    rules=RULES,
    penalty=st.sampled_from(PENALTIES),
    on_failure=st.sampled_from(["null", "zero", "zero_unparseable", "skip"]),
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4),
    weights=st.lists(st.integers(1, 5), min_size=7, max_size=7),
    votes=st.sampled_from([1, 1, 3]),
    data=st.data(),
)
def test_recomputing_gives_what_judging_would_have_given(
    ledger: SQLLedger,
    judged_as: str,
    rules: dict[str, Any],
    penalty: dict[str, Any],
    on_failure: str,
    texts: list[str],
    weights: list[int],
    votes: int,
    data: st.DataObject,
) -> None:
    usable = [p for p in PROTOCOLS_FOR[judged_as] if p in PROTOCOLS_FOR[rules["mode"]]]  # type: ignore[index]
    if not usable:
        rules, usable = rules | {"mode": judged_as}, list(PROTOCOLS_FOR[judged_as])  # type: ignore[index]
    protocol = data.draw(st.sampled_from(usable))
    doubts: dict[str, Any] = {}
    if protocol in YES_NO_PROTOCOLS:
        doubts = data.draw(DOUBTS)
    if rules["mode"] not in NOT_LINEAR and protocol in YES_NO_PROTOCOLS:
        rules = rules | {"use": data.draw(st.sampled_from(["verdict", "probability"]))}
    criteria = suited(suited(CRITERIA, judged_as), rules["mode"])
    reweighted = [c | {"weight": w} for c, w in zip(criteria, weights, strict=False)]
    if protocol == "checklist":  # its question says what each criterion is worth, so other weights ask another question
        reweighted = criteria
    responses = [{"text": f"{text} {n}", "tokens": 50 * n, "stopped": n % 2 == 0} for n, text in enumerate(texts)]
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": responses, "ground_truth": "yes"}
    body = {"groups": [group], "judging": {"protocol": protocol, "votes": votes, "rationale": votes > 1}}

    async def compare() -> None:
        recorder = SynchronousRecorder(ledger)
        made = await scorer(recorder, some_fail)
        run = f"run-{next(RUNS)}"
        await score(made, body | {"run": run, "rubric": {"criteria": criteria}, "reward": {"mode": judged_as}})
        other = {"rubric": {"criteria": reweighted}, "reward": rules | penalty, "on_failure": on_failure, **doubts}
        judging = await score(made, body | other | {"run": f"{run}-other"})
        (again,), summary = await recomputed(
            ledger,
            run=run,
            reward=rules | penalty,
            on_failure=on_failure,
            **doubts,
            weights={c["id"]: c.get("weight", 1) for c in reweighted},
        )
        assert [facts(r) for r in again.responses] == [facts(r) for r in judging.groups[0].responses]
        assert summary.missing == 0
        (as_recorded,), _ = await recomputed(ledger, run=f"{run}-other")
        assert [facts(r) for r in as_recorded.responses] == [facts(r) for r in judging.groups[0].responses]

    asyncio.run(compare())


async def test_a_run_is_returned_group_by_group_in_the_order_of_judging(ledger: SQLLedger) -> None:
    groups = [{"id": name, "prompt": "?", "responses": ["a", "b"]} for name in "xy"]
    run = await judged(ledger, request(groups=groups, step=1), request("c", step=2))
    again, summary = await recomputed(ledger, run=run, reward={"mode": "weighted_mean"}, on_failure="skip")
    assert [(g.request_id, g.step, g.id, [r.position for r in g.responses]) for g in again] == [
        ("req_0", 1, "x", [0, 1]),
        ("req_0", 1, "y", [0, 1]),
        ("req_1", 2, "g", [0]),
    ]
    assert (summary.requests, summary.responses, summary.verdicts) == (2, 5, 35)
    rewards = [r.reward for g in again for r in g.responses if r.reward is not None]
    assert summary.mean_reward == pytest.approx(sum(rewards) / len(rewards))
    assert summary.scored + summary.partial + summary.unscored == 5


async def test_part_of_a_run_is_selected_by_its_steps(ledger: SQLLedger) -> None:
    run = await judged(ledger, *(request(str(n), step=n) for n in range(4)))
    again, _ = await recomputed(ledger, run=run, first_step=1, last_step=2)
    assert [group.step for group in again] == [1, 2]


async def test_a_run_judged_by_outcome_can_change_only_its_penalty(ledger: SQLLedger) -> None:
    response = {"text": "\\boxed{7}", "tokens": 3000, "stopped": True}
    group = {"id": "g", "prompt": "?", "responses": [response], "ground_truth": "7"}
    run = await judged(ledger, {"reward": {"mode": "outcome"}, "groups": [group]})
    (again,), _ = await recomputed(ledger, run=run, reward={"mode": "outcome", "length_penalty": {}})
    assert (again.responses[0].reward, again.responses[0].unpenalised) == (pytest.approx(0.9), 1.0)
    with pytest.raises(InvalidRequest, match=r"judged as 'outcome', which cannot feed mode 'points'; use 'outcome'"):
        await recomputed(ledger, run=run, reward={"mode": "points"})


async def test_budgets_change_what_steps_are_worth(ledger: SQLLedger) -> None:
    body = request(STEPPED, reward={"mode": "stepwise"}, judging={"protocol": "stepwise"})
    run = await judged(ledger, body, script=always(True))
    one, _ = await recomputed(ledger, run=run, reward={"mode": "stepwise"})
    two, _ = await recomputed(
        ledger, run=run, reward={"mode": "stepwise"}, budgets={"suggest": 1.6, "pitfall": -2.0, "bonus": 2.0}
    )
    deltas = [[step.delta for step in groups[0].responses[0].steps] for groups in (one, two)]
    assert any(deltas[0])
    assert deltas[1] == [None if delta is None else pytest.approx(2 * delta) for delta in deltas[0]]


async def test_verdicts_that_cannot_feed_a_mode_are_refused_with_the_modes_they_can_feed(ledger: SQLLedger) -> None:
    run = await judged(ledger, request(judging={"protocol": "graded"}))
    with pytest.raises(InvalidRequest, match=r"'graded', which cannot feed mode 'points'; use 'weighted_mean' or"):
        await recomputed(ledger, run=run, reward={"mode": "points"})


async def test_a_run_of_two_protocols_is_recomputed_one_protocol_at_a_time(ledger: SQLLedger) -> None:
    likert = request(reward={"mode": "likert"})
    run = await judged(ledger, request(), likert)
    with pytest.raises(InvalidRequest, match=r"'binary' and 'likert'.*part of the run by protocol"):
        await recomputed(ledger, run=run, reward={"mode": "weighted_mean"})
    groups, summary = await recomputed(ledger, run=run)
    assert (len(groups), summary.mode, summary.on_failure) == (2, None, "null")
    groups, _ = await recomputed(ledger, run=run, reward={"mode": "likert"}, protocol="likert")
    assert [group.request_id for group in groups] == ["req_1"]


async def test_a_rubric_that_cannot_feed_the_mode_is_refused(ledger: SQLLedger) -> None:
    run = await judged(ledger, request())
    with pytest.raises(RubricRefused, match=r"rubric sha256:.*pitfall"):
        await recomputed(ledger, run=run, reward={"mode": "gate"})
    with pytest.raises(RubricRefused, match="negative"):
        await recomputed(ledger, run=run, weights={"point": -1})


async def test_a_weight_for_an_unknown_criterion_is_refused(ledger: SQLLedger) -> None:
    run = await judged(ledger, request())
    with pytest.raises(InvalidRequest, match=r"no rubric of run .* has a criterion 'typo'"):
        await recomputed(ledger, run=run, weights={"typo": 1, "point": 2})


async def test_a_penalty_that_needs_a_missing_field_names_the_response(ledger: SQLLedger) -> None:
    run = await judged(ledger, request("Yes.", "No."))
    with pytest.raises(InvalidRequest, match=r"response 0 of group 'g' in request req_0: .*needs tokens"):
        await recomputed(ledger, run=run, reward={"mode": "weighted_mean", "length_penalty": {}}, on_failure="skip")
    ranked = await judged(ledger, request("Yes.", "No.", reward={"mode": "ranking"}))
    with pytest.raises(InvalidRequest, match=r"group 'g' in request .*needs tokens"):
        await recomputed(ledger, run=ranked, reward={"length_penalty": {}})


async def test_with_on_failure_error_a_failed_verdict_aborts_recomputing(ledger: SQLLedger) -> None:
    run = await judged(ledger, request(*"abcdefgh"))
    with pytest.raises(JudgingFailed, match=r"response \d of group 'g'.*no score for"):
        await recomputed(ledger, run=run, on_failure="error")


async def test_a_run_without_records_is_unknown(ledger: SQLLedger) -> None:
    run = await judged(ledger, request(step=3))
    for wanted in ({"run": "no-such-run"}, {"run": run, "first_step": 4}, {"run": run, "protocol": "likert"}):
        with pytest.raises(NotFound, match="has no record of run"):
            await recomputed(ledger, **wanted)


async def test_a_verdict_missing_from_the_ledger_fails_and_is_counted_as_missing(ledger: SQLLedger) -> None:
    kept = SynchronousRecorder()
    made = await scorer(kept)
    run = f"run-{next(RUNS)}"
    await score(made, request("Something that nobody has said.", run=run))
    rows = rows_of(kept.judged, keep_texts=True)
    ledger.write(rows._replace(verdicts=rows.verdicts[1:]))
    (group,), summary = await recomputed(ledger, run=run)
    assert (group.responses[0].reward, group.responses[0].status, summary.missing) == (None, "unscored", 1)
    (group,), _ = await recomputed(ledger, run=run, on_failure="skip")
    assert (group.responses[0].status, group.responses[0].dropped) == ("partial", 1)


LONG = {"id": "g", "prompt": "?", "responses": [{"text": "Yes.", "tokens": 3000, "stopped": True}]}
PENALISED = {"mode": "points", "length_penalty": {"coefficient": 1e-4, "target_tokens": 2000}}


async def test_only_the_rules_that_are_given_change(ledger: SQLLedger) -> None:
    criteria = [{"id": "a", "description": "x", "weight": 2}, {"id": "b", "description": "y", "kind": "bonus"}]
    body = {"rubric": {"criteria": criteria}, "groups": [LONG], "reward": PENALISED}
    run = await judged(ledger, body, script=always(True))

    async def reward(**rules: Any) -> tuple[float | None, float | None]:
        (group,), _ = await recomputed(ledger, run=run, **rules)
        return group.responses[0].reward, group.responses[0].unpenalised

    assert await reward() == (pytest.approx(0.9), 1.0)
    assert await reward(reward={"mode": "gate"}) == (pytest.approx(0.9), 1.0)
    assert await reward(reward={"kinds": ["bonus"], "length_penalty": None}) == (1.0, None)
    run = await judged(ledger, body | {"reward": {"kinds": ["bonus"]}}, script=always(True))
    with pytest.raises(InvalidRequest, match=r"other reward options .*'likert' rewards the whole response"):
        await reward(reward={"mode": "likert"})


async def test_a_run_of_an_older_version_has_the_default_rules(ledger: SQLLedger) -> None:
    kept = SynchronousRecorder()
    run = f"run-{next(RUNS)}"
    await score(await scorer(kept, always(True)), request(run=run, groups=[LONG], reward={"truncation_factor": 0.5}))
    rows = rows_of(kept.judged, keep_texts=True)
    assert [row.reward_rules for row in rows.requests] == ['{"reward":{"truncation_factor":0.5}}']
    for unknown in (None, '{"reward":{"mode":"of_a_later_release"}}'):
        again = [row._replace(run=f"{run}{unknown}", reward_rules=unknown) for row in rows.requests]
        ledger.write(
            rows._replace(
                requests=again,
                responses=[row._replace(run=f"{run}{unknown}") for row in rows.responses],
                uses=[row._replace(run=f"{run}{unknown}") for row in rows.uses],
                signals=[],
            )
        )
        _, summary = await recomputed(ledger, run=f"{run}{unknown}")
        assert (summary.mode, summary.on_failure, summary.scored) == ("weighted_mean", "null", 1)


async def test_a_recorded_error_policy_does_not_abort_recomputing(ledger: SQLLedger) -> None:
    made = await scorer(SynchronousRecorder(ledger), some_fail)
    run = f"run-{next(RUNS)}"
    with pytest.raises(JudgingFailed):
        await score(made, request(*"abcdefgh", run=run, on_failure="error"))
    (group,), summary = await recomputed(ledger, run=run)
    assert (summary.on_failure, len(group.responses)) == ("null", 8)
    assert {response.reward is None for response in group.responses if response.status == "unscored"} == {True}


async def test_a_request_that_is_refused_and_then_answered_under_one_key_is_recorded_as_both(ledger: SQLLedger) -> None:
    failures = [CallFailure("truncated_input", "it is too long")] * len(CRITERIA)
    made = await scorer(SynchronousRecorder(ledger), lambda *asked: failures.pop() if failures else by_hash(*asked))
    run = f"run-{next(RUNS)}"
    asked = RewardRequest.model_validate(request("a", run=run, on_failure="error"))
    with pytest.raises(JudgingFailed):
        await made.score(asked, request_id="req_1", project_id=PROJECT, record_id=bytes(16))
    failures.clear()
    answer = await made.score(asked, request_id="req_2", project_id=PROJECT, record_id=bytes(16))
    groups, summary = await recomputed(ledger, run=run)
    assert (summary.requests, summary.scored, summary.unscored) == (2, 1, 1)
    assert {one.request_id: one.responses[0].reward for one in groups} == {
        "req_1": None,
        "req_2": answer.groups[0].responses[0].reward,
    }


@pytest.mark.parametrize("rule", [{"reward": {"use": "probability"}}, {"uncertain_band": [0.0, 0.001]}])
async def test_a_verdict_without_the_probability_that_is_needed_fails_in_the_ledger_too(
    ledger: SQLLedger, rule: dict[str, Any]
) -> None:
    made = await scorer(
        SynchronousRecorder(ledger),
        lambda batch, call: Reply(text="yes") if "Is polite" in call.question else by_hash(batch, call),
    )
    run = f"run-{next(RUNS)}"
    criteria = [{"id": "a", "description": "Says yes."}, {"id": "b", "description": "Is polite."}]
    answer = await score(made, request("Yes.", rubric={"criteria": criteria}, run=run, **rule))
    (response,) = answer.groups[0].responses
    assert ([one.status for one in response.verdicts], answer.usage.failed) == (["ok", "failed"], 1)
    page = await recorded_page(ledger, UseFilter(PROJECT, run), texts=False)
    assert [one.verdict for one in page.verdicts] == list(response.verdicts)
    (group,), _ = await recomputed(ledger, run=run)
    assert (group.responses[0].reward, group.responses[0].status) == (None, "unscored")


async def test_a_failed_verdict_stays_failed_although_a_later_request_got_a_verdict(ledger: SQLLedger) -> None:
    run = await judged(ledger, request(*"abcdefgh"))
    before, _ = await recomputed(ledger, run=run)
    assert "unscored" in {response.status for group in before for response in group.responses}
    await judged(ledger, request(*"abcdefgh"), script=always(True))
    again, _ = await recomputed(ledger, run=run)
    assert again == before
