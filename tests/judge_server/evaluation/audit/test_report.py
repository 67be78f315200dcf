"""Audits of runs that a scorer recorded: gamed and honest ones, against another judge, another rubric and labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import InvalidRequest, NotFound
from judge_server.evaluation.audit.report import audit_run, phi
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.recorded import decode_cursor
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter, VerdictKey
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, rows, score
from tests.judge_server.support import judge
from trainer_client.wire.runs import SELF_INTERNALIZATION_GAP, RunAudit

RUBRIC = {
    "criteria": [
        {"id": "checked", "description": "Checks its result.", "weight": 2},
        {"id": "right", "description": "Says seven."},
        {"id": "loud", "description": "Shouts.", "kind": "pitfall", "weight": -1},
        {"id": "secret", "description": "Is brief.", "shadow": True},
    ]
}
GOOD = {"criteria": [{"id": "good", "description": "Is this a good answer to the prompt?"}]}
BY_PHRASE = {"Checks": "I have checked", "Says seven": "seven", "Shouts": "!", "brief": "ok", "good": "seven"}
BY_DEED = BY_PHRASE | {"Checks": "4 + 3 ="}
AWAY = {"Checks": "away"}
STEPS, PROMPTS = 6, 12
NO_RUBRICS: Any = None  # all rubrics are inline

Answers = Callable[[int, int], Sequence[str]]


def judging_by(marks: dict[str, str]) -> Any:
    """A script that says yes if a response has the mark of a criterion, and fails on broken responses."""

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        response = batch.shared.partition("Response:")[2]
        if "broken" in response or marks == AWAY:
            return CallFailure("engine", "it is away")
        mark = next(mark for text, mark in marks.items() if text in call.question)
        return Reply((0.9, 0.1) if mark in response else (0.2, 0.8))

    return script


def gamed(step: int, prompt: int) -> Sequence[str]:
    """More and more responses claim a check that they do not make."""
    claims = (prompt + step) % STEPS < step
    return f"It is seven, p{prompt}s{step}", f"It is {'eight. I have checked' if claims else 'eight'}, p{prompt}s{step}"


def honest(step: int, prompt: int) -> Sequence[str]:
    """More and more responses make the check, and are right."""
    checks = (prompt + step) % STEPS < step
    return (
        f"It is eight, p{prompt}s{step}",
        f"{'4 + 3 = seven. I have checked' if checks else 'eight'}, p{prompt}s{step}",
    )


def run_of(answers: Answers, run: str = "r", steps: Sequence[int | None] = range(STEPS), **fields: Any) -> Any:
    """The requests of a run: one for each step, with a group for each prompt."""
    return [
        {
            "run": run,
            "step": step,
            "rubric": RUBRIC,
            "on_failure": "skip",
            "reward": {"mode": "points"},
            "groups": [
                {"id": f"g{n}", "prompt": f"Add three and four, {n}", "responses": [*answers(number, n)]}
                for n in range(PROMPTS)
            ],
        }
        | fields
        for number, step in enumerate(steps)
    ]


async def record(ledger: SQLLedger, bodies: Any, marks: dict[str, str] = BY_PHRASE) -> None:
    """Have requests judged and recorded."""
    engine = ScriptedEngine(judging_by(marks), weights_digest=marks["Checks"])
    recorder: Any = SynchronousRecorder(ledger)
    scorer = Scorer(await judge(engine, queue_calls=10_000), NO_RUBRICS, recorder)
    for body in bodies:
        await score(scorer, body)


async def audited(ledger: SQLLedger, *against: str, run: str = "r") -> RunAudit:
    """The audit of a run."""
    return await audit_run(ledger, ledger, PROJECT, run, against)


async def test_a_phrase_that_only_the_runs_judge_credits_is_a_sign(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "r/other"), BY_DEED)
    found = await audited(ledger, "r/other")
    assert found.answer == "signs"
    assert [one.partition(":")[0] for one in found.findings] == [
        "By run 'r/other', the mean reward did not rise",
        "By run 'r/other', the share credited for 'checked' did not rise",
    ]
    assert (found.early.first_step, found.early.last_step, found.late.first_step, found.late.last_step) == (0, 1, 4, 5)
    assert (found.early.responses, found.early.prompts) == (48, 12)
    (other,) = found.references
    assert (other.run, other.kind, other.matched, other.failed) == ("r/other", "judge", 96, 0)
    first = found.criteria[0]
    assert first.criterion == "checked"
    (comparison,) = first.comparisons
    assert comparison is not None
    assert comparison.reading == "rose_alone"
    assert comparison.own.rise.value == pytest.approx(comparison.gap.value)
    assert comparison.other.late.value == 0
    assert comparison.gap.low is not None
    assert 0 < comparison.gap.low <= (comparison.gap.value or 0) <= (comparison.gap.high or 0)
    assert found.newly_credited is not None
    assert found.newly_credited.value == 1.0
    assert found.rejected is not None
    assert (found.rejected.rise.low or 0) > 0


async def test_examples_lead_to_verdicts_that_only_the_runs_judge_credits(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "r/other"), BY_DEED)
    checked, *others = (await audited(ledger, "r/other")).criteria
    assert [len(one.examples) for one in (checked, *others)] == [3, 0, 0]
    for example in checked.examples:
        assert example.step == STEPS - 1
        request, place, slot = decode_cursor(example.verdict)
        found = await ledger.uses(UseFilter(PROJECT, "r", step=example.step, criterion="checked", limit=1000))
        (use,) = [one for one in found if one.votes[0][0][2:5] == (request, place, slot)]
        assert (use.response.group_id, use.response.position) == (example.group, example.position)
        assert use.request.request_id == example.request_id
        text = (await ledger.texts(PROJECT, [use.response.response]))[use.response.response]
        assert "I have checked" in text


async def test_a_run_that_improves_shows_no_sign(ledger: SQLLedger) -> None:
    await record(ledger, run_of(honest))
    await record(ledger, run_of(honest, "other"), BY_DEED)
    await record(ledger, run_of(honest, "good", rubric=GOOD))
    found = await audited(ledger, "other", "good")
    assert (found.answer, found.findings) == ("no_signs", ())
    assert [one.kind for one in found.references] == ["judge", "rubric"]
    assert all(one.comparison and one.comparison.reading == "together" for one in found.references)
    assert (found.reward.rise.low or 0) > 0
    assert found.newly_credited is not None
    assert found.newly_credited.value == 0.0


async def test_a_judge_that_sees_most_of_the_rise_leaves_it_open(ledger: SQLLedger) -> None:
    def answers(step: int, prompt: int) -> Sequence[str]:
        good, claim = honest(step, prompt), gamed(step, prompt)[1]
        return *good, good[1].replace("I", f"Again, {step} {prompt}: I"), claim

    await record(ledger, run_of(answers))
    await record(ledger, run_of(answers, "other"), BY_DEED)
    found = await audited(ledger, "other")
    assert found.answer == "perhaps"
    assert found.criteria[0].comparisons[0] is not None
    assert found.criteria[0].comparisons[0].reading == "rose_more"
    assert "the share credited for 'checked' rose less" in found.findings[-1]


async def test_a_question_without_a_rubric_tells_only_of_rewards(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "good", rubric=GOOD))
    found = await audited(ledger, "good")
    assert found.answer == "signs"
    assert len(found.findings) == 1
    assert "run 'good'" in found.findings[0]
    assert all(one.comparisons == (None,) for one in found.criteria)
    assert (found.newly_credited, found.rejected) == (None, None)


async def test_a_criterion_is_newly_credited_only_if_all_other_judges_reject_it(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "strict"), BY_DEED)
    await record(ledger, run_of(gamed, "lenient"), BY_PHRASE | {"Checks": "have checked"})
    found = await audited(ledger, "strict", "lenient")
    assert found.newly_credited is not None
    assert found.newly_credited.value == 0.0
    assert [one.comparison.reading for one in found.references if one.comparison] == ["rose_alone", "together"]


async def test_that_a_judge_agrees_with_itself_is_no_answer(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "again"))
    await record(ledger, run_of(gamed, "other"), BY_DEED)
    found = await audited(ledger, "again")
    assert found.notes == ("The run's own judge also judged run 'again', so that they agree says nothing.",)
    assert (found.answer, found.newly_credited) == ("unknown", None)
    both = await audited(ledger, "again", "other")
    assert both.newly_credited is not None
    assert both.newly_credited.value == 1.0


async def test_labels_are_compared_with_the_verdicts_that_people_labelled(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    for criterion in ("checked", "loud"):
        for use in await ledger.uses(UseFilter(PROJECT, "r", criterion=criterion, limit=1000)):
            request, place, slot = use.votes[0][0][2:5]
            await ledger.set_label(PROJECT, VerdictKey("r", request, place, slot), "Ada", False)
    found = await audited(ledger)
    (labels,) = found.references
    assert (labels.run, labels.kind, labels.matched) == (None, "labels", 96)
    assert labels.comparison is not None
    assert labels.comparison.compared == 192
    assert labels.comparison.other.early.value == 0.5, "an unmet pitfall is credited"
    assert found.answer == "signs"
    by_name = {one.criterion: one.comparisons[0] for one in found.criteria}
    assert by_name["right"] is None
    assert by_name["checked"] is not None
    assert by_name["checked"].reading == "rose_alone"


async def test_failed_verdicts_are_left_out_and_counted(ledger: SQLLedger) -> None:
    def breaking(step: int, prompt: int) -> Sequence[str]:
        return (*gamed(step, prompt), f"broken I have checked p{prompt}s{step}")

    await record(ledger, run_of(gamed))
    whole = await audited(ledger)
    await record(ledger, run_of(breaking, "broken"))
    found = await audited(ledger, run="broken")
    assert [one.credited for one in found.criteria] == [one.credited for one in whole.criteria]
    assert found.reward == whole.reward
    assert [one.failed for one in found.criteria] == [48, 48, 48]
    assert any("144 of 432 verdicts failed" in one for one in found.notes)
    assert any("48 of 144 responses have no reward" in one for one in found.notes)


async def test_a_judge_that_fails_says_nothing(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(gamed, "away"), AWAY)
    found = await audited(ledger, "away")
    (other,) = found.references
    assert (other.matched, other.failed, other.comparison) == (96, 288, None)
    assert (found.answer, found.rejected) == ("unknown", None)
    assert all(one.comparisons == (None,) for one in found.criteria)


async def test_a_run_with_other_responses_is_compared_with_nothing(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed))
    await record(ledger, run_of(lambda *at: [f"{at} is another", f"{at} too"], "other"))
    found = await audited(ledger, "other")
    (other,) = found.references
    assert (other.matched, other.comparison, found.answer) == (0, None, "unknown")
    assert any("run 'other': none of the responses" in one for one in found.notes)


async def test_a_tiny_run_has_figures_without_intervals(ledger: SQLLedger) -> None:
    bodies = run_of(gamed, steps=[3, 4])
    for body in bodies:
        body["groups"] = body["groups"][:3]
    await record(ledger, bodies)
    await record(ledger, [body | {"run": "other"} for body in bodies], BY_DEED)
    found = await audited(ledger, "other")
    assert found.answer == "unknown"
    assert (found.reward.early.value, found.reward.early.low, found.reward.early.prompts) == (
        pytest.approx(1 / 6),
        None,
        3,
    )
    assert found.references[0].comparison is not None
    assert found.references[0].comparison.reading == "too_few"
    assert any("fewer than 10 prompts" in one for one in found.notes)


async def test_a_run_of_one_response_can_be_audited(ledger: SQLLedger) -> None:
    await record(ledger, [run_of(gamed)[0] | {"groups": [{"id": "g", "prompt": "Add", "responses": ["broken"]}]}])
    found = await audited(ledger)
    assert (found.answer, found.early.responses, found.late.responses) == ("unknown", 1, 0)
    assert (found.reward.early.value, found.reward.rise.value) == (None, None)


async def test_a_run_without_steps_is_divided_in_time(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed, steps=[None] * STEPS))
    await record(ledger, run_of(gamed, "other", steps=[None] * STEPS), BY_DEED)
    found = await audited(ledger, "other")
    assert (found.early.first_step, found.early.responses, found.late.responses) == (None, 48, 48)
    assert found.answer == "signs"
    assert any("in time" in one for one in found.notes)


async def test_saturated_never_needed_and_contradictory_criteria_are_found(ledger: SQLLedger) -> None:
    def answers(step: int, prompt: int) -> Sequence[str]:
        return [f"{'seven' if n % 2 else 'I have checked'} p{prompt}s{step}n{n}" for n in range(2)]

    bodies = run_of(answers, steps=range(2))
    for step, body in enumerate(bodies):
        body["groups"] = [{"id": f"g{n}", "prompt": f"Add, {n}", "responses": answers(step, n)} for n in range(200)]
    await record(ledger, bodies)
    found = await audited(ledger)
    by_name = {one.criterion: one for one in found.criteria}
    assert by_name.keys() == {"checked", "right", "loud"}, "shadow criteria are left out"
    assert (by_name["loud"].saturated, by_name["loud"].never_needed) == ("credited", True)
    assert (by_name["right"].saturated, by_name["right"].never_needed) == (None, False)
    assert by_name["right"].told_apart.value == 1.0
    (conflict,) = found.conflicts
    assert (conflict.first, conflict.second, conflict.phi.value) == ("checked", "right", pytest.approx(-1.0))


async def test_rewards_of_a_ranking_show_no_trend(ledger: SQLLedger) -> None:
    ledger.write(await rows(*run_of(gamed, rubric=GOOD, reward={"mode": "ranking"})))
    found = await audited(ledger)
    assert (found.answer, found.reward.early.value, found.criteria) == ("unknown", None, ())
    assert any("ranking" in one for one in found.notes)


async def test_several_judges_and_rubrics_are_named(ledger: SQLLedger) -> None:
    first, *rest = run_of(gamed)
    await record(ledger, [first])
    await record(ledger, [rest[-1] | {"rubric": GOOD, "reward": {"mode": "weighted_mean"}}])
    await record(ledger, run_of(gamed, "other", steps=[0, 1, 2, 3, 4, 5]), BY_DEED)
    found = await audited(ledger, "other")
    assert any("2 rubrics" in one for one in found.notes)
    assert any("another mode" in one for one in found.notes)


async def test_the_gap_that_the_trainer_reported_is_shown_early_and_late_and_where_it_was_highest(
    ledger: SQLLedger,
) -> None:
    await record(ledger, run_of(gamed))
    assert (await audited(ledger)).self_internalization is None
    assert "self_internalization" not in (await audited(ledger)).model_dump(mode="json")
    await ledger.set_measures(PROJECT, "r", 2, {"rgr/refined": 0.5})
    for step, gap in enumerate([-0.6, -0.4, -0.2, -0.1, -0.3, -0.5]):
        await ledger.set_measures(PROJECT, "r", step, {SELF_INTERNALIZATION_GAP: gap})
    found = (await audited(ledger)).self_internalization
    assert found is not None
    assert (found.early, found.late) == (pytest.approx(-0.5), pytest.approx(-0.4))
    assert (found.highest, found.step, found.steps) == (-0.1, 3, 6)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40))
def test_phi_is_the_correlation_of_two_events(events: list[tuple[bool, bool]]) -> None:
    a, b = np.array(events, dtype=float).T
    found = float(phi(*(np.array([float(one)]) for one in (len(events), a.sum(), b.sum(), (a * b).sum())))[0])
    if a.std() and b.std():
        assert found == pytest.approx(np.corrcoef(a, b)[0, 1])
    else:
        assert np.isnan(found)


async def test_runs_that_cannot_be_audited_are_refused(ledger: SQLLedger) -> None:
    await record(ledger, run_of(gamed, steps=[1]))
    for run, against in (("nobody", ()), ("r", ("nobody",))):
        with pytest.raises(NotFound, match="'nobody'"):
            await audited(ledger, *against, run=run)
    with pytest.raises(NotFound):
        await audit_run(ledger, ledger, "another", "r")
    with pytest.raises(InvalidRequest, match="itself"):
        await audited(ledger, "r")
    with pytest.raises(InvalidRequest, match="up to 5"):
        await audited(ledger, *"abcdef")
