"""Verdicts whose probability lies in the uncertain band: they have no score, and a policy sets the reward."""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine
from judge_server.errors import InvalidRequest, JudgingFailed
from judge_server.judging.calibration import Calibration, CalibrationSet, FittedCalibration, ProbabilityMap
from judge_server.judging.questions import JudgingConfig
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scoring.recompute import recompute
from judge_server.scoring.recorded import recorded_page
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from rubric_store.ledger.rows import RunReportQuery, UseFilter
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score, scorer
from tests.judge_server.support import STEPPED, judge, request
from trainer_client.rewards import UnscoredCriteria, reward_outcome
from trainer_client.wire import ResponseReward, RewardAnswer, VerdictRequest
from trainer_client.wire.ledger import RecomputedGroup, RecomputeRequest

BAND = [0.4, 0.6]
CRITERIA = [
    {"id": "clear", "description": "Is clear.", "weight": 3},
    {"id": "doubtful", "description": "Is doubtful.", "weight": 1},
]
CHECKED = {"id": "checked", "description": "Says yes.", "verification": {"method": "contains", "any_of": ["Yes"]}}


def half(batch: Batch, call: Call) -> Reply | CallFailure:
    """Answer 0.5 to doubtful criteria, fail on broken ones, and answer 0.9 to the rest."""
    if "broken" in call.question:
        return CallFailure("truncated_input", "it is too long")
    yes = 0.5 if "doubtful" in call.question else 0.9
    return Reply(masses=(yes, 1 - yes), chosen="1")


def body(*criteria: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request with the band and these criteria."""
    return request(rubric={"criteria": list(criteria or CRITERIA)}, uncertain_band=BAND) | fields


async def answered(**fields: Any) -> RewardAnswer:
    """The answer of a judge with an uncertain verdict."""
    return await score(await scorer(SynchronousRecorder(), half), body(**fields))


async def only(**fields: Any) -> ResponseReward:
    """The only response of the answer."""
    return (await answered(**fields)).groups[0].responses[0]


async def test_a_verdict_in_the_band_is_uncertain_and_has_no_score() -> None:
    answer = await answered()
    (response,) = answer.groups[0].responses
    clear, doubtful = response.verdicts
    assert (clear.status, clear.score) == ("ok", 1.0)
    assert (doubtful.status, doubtful.score, doubtful.probability) == ("uncertain", None, 0.5)
    assert doubtful.failure is None
    assert (response.reward, response.status, response.policy_applied) == (None, "unscored", None)
    assert (answer.usage.uncertain, answer.usage.failed) == (1, 0)
    assert (answer.uncertain_band, answer.on_uncertain) == ((0.4, 0.6), "null")


async def test_without_a_band_the_answer_does_not_mention_uncertainty() -> None:
    answer = await answered(uncertain_band=None)
    assert answer.groups[0].responses[0].reward == 1.0
    assert "uncertain" not in answer.model_dump_json()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("null", (None, "unscored", None, 0)),
        ("zero", (0.0, "unscored", "zero", 0)),
        ("skip", (1.0, "partial", "skip", 1)),
    ],
)
async def test_the_policy_sets_the_reward_of_the_response(policy: str, expected: tuple[Any, ...]) -> None:
    response = await only(on_uncertain=policy)
    assert (response.reward, response.status, response.policy_applied, response.dropped) == expected


async def test_the_error_policy_fails_the_request_and_names_the_criterion() -> None:
    with pytest.raises(JudgingFailed, match=r"on_uncertain is 'error': the judge was uncertain about doubtful"):
        await answered(on_uncertain="error")


async def test_an_uncertain_verdict_that_cannot_change_the_reward_is_ignored() -> None:
    response = await only(reward={"mode": "gate", "gate_fraction": 0.5}, on_uncertain="error")
    assert (response.reward, response.status) == (1.0, "partial")


async def test_the_band_excludes_its_upper_end() -> None:
    statuses = [(await only(uncertain_band=band)).verdicts[1].status for band in ([0.5, 0.6], [0.4, 0.5], [0.5, 0.5])]
    assert statuses == ["uncertain", "ok", "ok"]


async def test_a_programs_verdict_is_never_uncertain() -> None:
    made = await scorer(SynchronousRecorder(), half)
    (response,) = (await score(made, body(CHECKED, uncertain_band=[0, 1]))).groups[0].responses
    assert (response.verdicts[0].status, response.reward) == ("ok", 1.0)


async def test_a_step_of_an_uncertain_verdict_has_no_delta() -> None:
    made = await scorer(SynchronousRecorder(), half)
    suggest = {"id": "s", "kind": "suggest", "description": "Is doubtful."}
    answer = {"id": "a", "kind": "answer", "description": "Is right."}
    asked = body(suggest, answer, reward={"mode": "stepwise"})
    asked["groups"][0]["responses"] = [STEPPED]
    (response,) = (await score(made, asked)).groups[0].responses
    assert [verdict.status for verdict in response.verdicts] == ["uncertain", "ok"]
    assert [step.delta for step in response.steps] == [None, None, None]
    assert response.status == "partial"


async def test_verdicts_without_rewards_are_uncertain_too() -> None:
    made = await judge(ScriptedEngine(half))
    asked = {name: value for name, value in body().items() if name in ("rubric", "groups", "uncertain_band")}
    scorer = Scorer(made, None)  # type: ignore[arg-type]  # the rubric is inline
    answer = await scorer.verdicts(VerdictRequest.model_validate(asked), request_id="r", project_id=PROJECT)
    assert [verdict.status for verdict in answer.groups[0].responses[0].verdicts] == ["ok", "uncertain"]
    assert answer.usage.uncertain == 1


async def test_metrics_count_uncertain_verdicts() -> None:
    made = await scorer(SynchronousRecorder(), half)
    await score(made, body())
    counted = {s.name: s.value for family in made.judge.metrics.families() for s in family.samples}
    assert counted["adjudge_uncertain_verdicts_total"] == 1


async def test_a_calibration_can_set_the_band_and_a_request_can_override_it() -> None:
    plain = await judge(ScriptedEngine(half))
    templates = plain.prepared(JudgingConfig("binary")).single_templates.digest
    band = Calibration("c", "d", 1, ProbabilityMap(slope=1.0, intercept=0.1), uncertain_band=(0.4, 0.6))
    fitted = FittedCalibration(
        weights=(plain.identity.weights_digest,), protocol="binary", templates=templates, calibration=band
    )
    made = Scorer(await judge(ScriptedEngine(half), calibrations=CalibrationSet(maps=(fitted,))), None)  # type: ignore[arg-type]
    answers = [await score(made, body(uncertain_band=own)) for own in (None, [0, 0])]
    assert [answer.groups[0].responses[0].verdicts[1].status for answer in answers] == ["uncertain", "ok"]
    assert answers[0].uncertain_band == (0.4, 0.6)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"uncertain_band": [0.6, 0.4]}, "write the lower end first"),
        ({"uncertain_band": [0.4, 1.5]}, "less than or equal to 1"),
        ({"judging": {"protocol": "graded"}}, "'graded' are grades"),
        ({"judging": {"criteria_per_call": 2}}, "leave out criteria_per_call"),
    ],
)
async def test_an_invalid_band_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        await answered(**fields)


async def test_a_judge_without_probabilities_cannot_be_uncertain() -> None:
    blind = ScriptedEngine(half, capabilities=dataclasses.replace(CAPABILITIES, logprobs=False))
    made = Scorer(await judge(blind), None)  # type: ignore[arg-type]  # rubrics are inline
    with pytest.raises(InvalidRequest, match=r"uncertain_band: .* gives no probabilities"):
        await score(made, body())


async def test_the_ledger_records_uncertain_verdicts(ledger: SQLLedger) -> None:
    made = await scorer(SynchronousRecorder(ledger), half)
    broken = {"id": "broken", "description": "Is broken."}
    await score(made, body(*CRITERIA, broken, run="r", step=1, on_failure="skip", on_uncertain="skip"))
    pages = [
        await recorded_page(ledger, UseFilter(PROJECT, "r", status=status), texts=False)  # type: ignore[arg-type]
        for status in ("ok", "uncertain", "failed", None)
    ]
    assert [[v.verdict.criterion for v in page.verdicts] for page in pages[:3]] == [
        ["clear"],
        ["doubtful"],
        ["broken"],
    ]
    assert [v.verdict.status for v in pages[3].verdicts] == ["ok", "uncertain", "failed"]
    doubtful = pages[1].verdicts[0].verdict
    assert (doubtful.score, doubtful.probability) == (None, 0.5)
    report = await ledger.run(RunReportQuery(PROJECT, "r"))
    assert report is not None
    assert (report.run.verdicts, report.run.failed, report.run.uncertain) == (3, 1, 1)
    assert {c.criterion: (c.uncertain, c.pass_rate) for c in report.criteria} == {
        "clear": (0, 1.0),
        "doubtful": (1, None),
        "broken": (0, None),
    }
    assert report.steps[0].uncertain == 1
    for rules, reward in (
        ({}, 1.0),
        ({"on_uncertain": "null"}, None),
        ({"uncertain_band": [0, 0]}, 1.0),
        ({"uncertain_band": [0, 0.95], "on_uncertain": "zero"}, 0.0),
    ):
        asked = RecomputeRequest.model_validate({"run": "r", "on_failure": "skip", **rules})
        parts = [part async for part in recompute(ledger, asked, project_id=PROJECT)]
        (again,) = [part.responses[0] for part in parts if isinstance(part, RecomputedGroup)]
        assert again.reward == reward


MISSING = st.sampled_from(["ok", "failed", "uncertain"])


@given(
    kinds=st.lists(MISSING, min_size=1, max_size=5),
    on_failure=st.sampled_from(["null", "zero", "skip"]),
    on_uncertain=st.sampled_from(["null", "zero", "skip"]),
)
def test_equal_policies_treat_failed_and_uncertain_verdicts_alike(
    kinds: list[str], on_failure: Any, on_uncertain: Any
) -> None:
    criteria = [{"id": str(n), "weight": n + 1} for n in range(len(kinds))]
    scores = [1.0 if kind == "ok" else None for kind in kinds]
    uncertain = [kind == "uncertain" for kind in kinds]
    outcome = reward_outcome(
        criteria, scores, "weighted_mean", on_failure, on_uncertain=on_uncertain, uncertain=uncertain
    )
    alike = reward_outcome(criteria, scores, "weighted_mean", on_failure)
    if on_failure == on_uncertain or not any(uncertain):
        assert outcome == alike
    if "null" in {on_failure for kind in kinds if kind == "failed"} | {
        on_uncertain for kind in kinds if kind == "uncertain"
    }:
        assert outcome.reward is None


@given(st.permutations(["ok", "failed", "uncertain"]))
def test_the_strictest_policy_wins(kinds: list[str]) -> None:
    criteria = [{"id": kind} for kind in kinds]
    scores = [1.0 if kind == "ok" else None for kind in kinds]
    uncertain = [kind == "uncertain" for kind in kinds]
    for on_failure, on_uncertain in itertools.product(("null", "error", "zero", "skip"), repeat=2):
        policies: Any = {"on_failure": on_failure, "on_uncertain": on_uncertain, "uncertain": uncertain}
        if "error" in (on_failure, on_uncertain):
            with pytest.raises(UnscoredCriteria) as caught:
                reward_outcome(criteria, scores, "weighted_mean", **policies)
            named = [k for k, p in (("failed", on_failure), ("uncertain", on_uncertain)) if p == "error"]
            assert [*caught.value.criteria, *caught.value.uncertain] == named
            continue
        outcome = reward_outcome(criteria, scores, "weighted_mean", **policies)
        expected = (
            None if "null" in (on_failure, on_uncertain) else 0.0 if "zero" in (on_failure, on_uncertain) else 1.0
        )
        assert outcome.reward == expected
