"""A probability is calibrated by the map fitted for this judge, protocol and wording, and by no other."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import InvalidRequest
from judge_server.judging.calibration import NEUTRAL, UNSCALED, CalibrationSet, ProbabilityMap, builtin_calibrations
from judge_server.judging.plan import GroupPlanner
from judge_server.judging.preparation import Preparer, judge_fingerprint
from judge_server.judging.prompts import PromptForm, PromptTemplates
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.replies import read_yes_no
from judge_server.judging.results import collect
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch, Call, JudgeResult, Reply, TokenChoice
from judge_server.remote.executor import JudgeClient, RemoteExecutor
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from judge_server.scoring.recorded import recorded_page
from judge_server.scoring.scorer import Scorer
from judge_server.scoring.verdicts import verdict_of
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.calibrations import CALIBRATION, DEFAULT, OF_PITFALLS, SCRIPTED, fitted
from tests.judge_server.conftest import Serve
from tests.judge_server.judging.test_protocols import BINARY, STEPWISE, masses
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score
from tests.judge_server.remote.judges import TOKEN, judges
from tests.judge_server.support import CRITERIA, STEPPED, deadline_after, group, judge, plan, request
from trainer_client.text.thinking import JudgedContent
from trainer_client.wire import Criterion, RewardAnswer
from trainer_client.wire.criteria import CriterionKind

probabilities = st.floats(0.0, 1.0)
scalings = st.builds(ProbabilityMap, st.floats(0.01, 20.0), st.floats(-20.0, 20.0))

RAW = 0.75
BENT, BENT_OF_PITFALLS = DEFAULT.calibrate(RAW), OF_PITFALLS.calibrate(RAW)


def three_quarters(_batch: Batch, call: Call) -> Reply:
    """Put three quarters of the mass on yes."""
    return Reply((0.375, 0.125), chosen=None if call.answer == BINARY else "1")


@given(probabilities)
def test_the_neutral_map_returns_its_input(raw: float) -> None:
    assert ProbabilityMap(1.0, 0.0).calibrate(raw) == raw
    assert NEUTRAL.scaling_for(Criterion(id="a", description="x")).calibrate(raw) == raw


@given(scalings, probabilities, probabilities)
def test_a_map_keeps_the_order_and_the_range_of_probabilities(
    scaling: ProbabilityMap, one: float, other: float
) -> None:
    low, high = (scaling.calibrate(raw) for raw in sorted((one, other)))
    assert 0.0 <= low <= high + 1e-12
    assert high <= 1.0


@given(scalings, st.floats(1e-6, 1 - 1e-6))
def test_a_map_with_the_opposite_intercept_mirrors_the_probability_of_no(scaling: ProbabilityMap, raw: float) -> None:
    mirrored = ProbabilityMap(scaling.slope, -scaling.intercept)
    assert mirrored.calibrate(1.0 - raw) == pytest.approx(1.0 - scaling.calibrate(raw), abs=1e-7)


@given(scalings, st.floats(0.001, 0.999))
def test_a_map_is_a_line_in_log_odds(scaling: ProbabilityMap, raw: float) -> None:
    expected = 1 / (1 + math.exp(-(scaling.slope * math.log(raw / (1 - raw)) + scaling.intercept)))
    assert scaling.calibrate(raw) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("slope", "intercept"), [(0, 0), (-1, 0), (math.nan, 0), (math.inf, 0), (1, math.nan)])
def test_a_map_that_would_not_keep_the_order_is_refused(slope: float, intercept: float) -> None:
    with pytest.raises(ValueError, match=r"above 0|finite"):
        ProbabilityMap(slope, intercept)


@given(scalings, masses)
def test_a_calibrated_probability_of_one_half_decides_and_the_raw_one_is_kept(
    scaling: ProbabilityMap, pair: tuple[float, float]
) -> None:
    finding = read_yes_no(BINARY, Reply(pair), scaling)
    assert isinstance(finding, JudgeResult)
    assert finding.raw_probability == pytest.approx(pair[0] / sum(pair))
    assert finding.probability == scaling.calibrate(finding.raw_probability)
    assert finding.score == float(finding.probability >= 0.5)


def test_a_verdict_flipped_by_calibration_keeps_the_step_that_the_judge_named() -> None:
    for reply in (Reply((0.6, 0.3), "2"), Reply((0.6, 0.3), text="yes, step 2")):
        finding = read_yes_no(STEPWISE, reply, ProbabilityMap(1.0, -3.0))
        assert isinstance(finding, JudgeResult)
        assert (finding.score, finding.step) == (0.0, 2)


def test_a_verdict_without_probabilities_is_not_calibrated() -> None:
    assert read_yes_no(BINARY, Reply(text="Yes."), ProbabilityMap(1.0, -3.0)) == JudgeResult(1.0)


async def test_a_map_applies_to_the_judge_it_was_fitted_for() -> None:
    assert (await judge(calibrations=fitted())).prepared(JudgingConfig("binary")).calibration == CALIBRATION
    stepwise = await judge(calibrations=fitted(protocol="stepwise"))
    assert stepwise.prepared(JudgingConfig("stepwise")).calibration == CALIBRATION


@pytest.mark.parametrize("changed", [{"weights": ["other"]}, {"protocol": "stepwise"}, {"templates": "other"}], ids=str)
async def test_a_map_applies_to_no_other_weights_protocol_or_wording(changed: dict[str, Any]) -> None:
    made = (await judge(calibrations=fitted(**changed))).prepared(JudgingConfig("binary"))
    assert made.calibration is NEUTRAL
    assert made.fingerprint == (await judge()).prepared(JudgingConfig("binary")).fingerprint


@pytest.mark.parametrize(
    "config",
    [
        JudgingConfig("binary", rationale=True),
        JudgingConfig("binary", think_tokens=10),
        JudgingConfig("binary", per_call=2),
        JudgingConfig("binary", per_call="all"),
        JudgingConfig("graded"),
        JudgingConfig("likert"),
        JudgingConfig("comparison"),
    ],
    ids=str,
)
async def test_a_map_applies_to_no_other_judging_config(config: JudgingConfig) -> None:
    assert (await judge(calibrations=fitted())).prepared(config).calibration is NEUTRAL


async def test_the_fingerprint_changes_with_min_choice_mass_where_probabilities_are_read() -> None:
    one, other = [await judge(min_choice_mass=least) for least in (0.01, 0.02)]
    for protocol in ("binary", "stepwise", "graded", "likert"):
        assert one.prepared(JudgingConfig(protocol)).fingerprint != other.prepared(JudgingConfig(protocol)).fingerprint
    written = JudgingConfig("checklist", "all")
    assert one.prepared(written).fingerprint == other.prepared(written).fingerprint
    assert one.prepared(JudgingConfig("binary")).min_choice_mass == 0.01


async def test_the_fingerprint_changes_only_with_the_numbers_of_a_map() -> None:
    identity = (await judge()).identity

    def fingerprint(**changed: Any) -> str:
        return judge_fingerprint(identity, ("t",), JudgingConfig("binary"), replace(CALIBRATION, **changed))

    plain = judge_fingerprint(identity, ("t",), JudgingConfig("binary"))
    assert plain == fingerprint(default=UNSCALED, by_kind={})
    others = {
        fingerprint(),
        fingerprint(default=ProbabilityMap(2.0, -1.5)),
        fingerprint(default=UNSCALED),
        fingerprint(by_kind={}),
        fingerprint(by_kind={"bonus": OF_PITFALLS}),
    }
    assert len(others | {plain}) == 6
    assert fingerprint(name="v2", fitted_on="sha256:1", items=7) == fingerprint()


async def test_criteria_of_two_kinds_with_the_same_wording_are_separate_calls() -> None:
    pitfall = {"bonus": OF_PITFALLS}
    prepared = (await judge(calibrations=fitted(calibration=replace(CALIBRATION, by_kind=pitfall)))).prepared(
        JudgingConfig("binary")
    )
    of = [Criterion(id="a", description="x"), Criterion(id="b", description="x", kind="bonus")]
    first, second = plan(prepared, group(), "Yes.", of).planned_calls
    assert first.question.call == second.question.call
    assert first.digests != second.digests
    assert (first.question.scaling, second.question.scaling) == (DEFAULT, OF_PITFALLS)


def calibrated(answer: RewardAnswer) -> dict[str, tuple[float | None, ...]]:
    """Score, probability and raw probability by criterion."""
    verdicts = [v for response in answer.groups[0].responses for v in response.verdicts]
    return {v.criterion: (v.score, v.probability, v.raw_probability) for v in verdicts}


@pytest.mark.parametrize("protocol", ["binary", "stepwise"])
async def test_an_answer_has_both_calibrated_and_raw_probabilities(serve: Serve, protocol: str) -> None:
    http = await serve(ScriptedEngine(three_quarters), calibrations=fitted(protocol=protocol))
    answer = await http.post("/v1/rewards", json=request(STEPPED, judging={"protocol": protocol}))
    found = calibrated(RewardAnswer.model_validate_json(answer.content))
    assert found.pop("pitfall") == (1.0, BENT_OF_PITFALLS, RAW)
    assert set(found.values()) == {(1.0, BENT, RAW)}
    assert BENT_OF_PITFALLS != BENT != RAW


async def test_calibration_flips_a_score_where_the_calibrated_probability_is_below_one_half(serve: Serve) -> None:
    turned = replace(CALIBRATION, default=ProbabilityMap(1.0, -2.0), by_kind={})
    http = await serve(ScriptedEngine(three_quarters), calibrations=fitted(calibration=turned))
    answer = await http.post("/v1/rewards", json=request())
    body = RewardAnswer.model_validate_json(answer.content)
    assert {score for score, _, _ in calibrated(body).values()} == {0.0}
    assert body.groups[0].responses[0].reward == 0.0


async def test_comparisons_are_not_calibrated(serve: Serve) -> None:
    http = await serve(ScriptedEngine(three_quarters), calibrations=fitted())
    pair = {"id": "p", "prompt": "?", "a": "one", "b": "two"}
    answer = (await http.post("/v1/comparisons", json={"pairs": [pair], "rubric": {"criteria": CRITERIA}})).json()
    assert [order["probability"] for order in answer["pairs"][0]["orders"]] == [RAW, 1 - RAW]


async def test_the_ledger_keeps_both_probabilities(tmp_path: Path, new_sqlite: NewSQLite) -> None:
    ledger = SQLLedger(new_sqlite(tmp_path / "ledger.db"))
    made = await judge(ScriptedEngine(three_quarters), calibrations=fitted())
    answer = await score(Scorer(made, None, SynchronousRecorder(ledger)), request(run="r"))  # type: ignore[arg-type]
    page = await recorded_page(ledger, UseFilter(PROJECT, "r"), texts=False)
    assert [kept.verdict for kept in page.verdicts] == list(answer.groups[0].responses[0].verdicts)
    assert {kept.verdict.raw_probability for kept in page.verdicts} == {RAW}
    await ledger.close()


async def test_a_judge_in_another_process_uses_the_maps_of_the_api() -> None:
    async with judges(ScriptedEngine(three_quarters)) as served:
        api = await remote(served[0].url, fitted())
        asked = plan(
            api.prepared(JudgingConfig("binary")), group(), "Yes.", [Criterion.model_validate(c) for c in CRITERIA]
        )
        outcomes = await collect(api.judge([asked], await deadline_after()))
        found = {slot.criterion: outcomes.by_digest[slot.digests[0]] for slot in asked.pending}
        await api.close()
    pitfall = found.pop("pitfall")
    assert isinstance(pitfall, JudgeResult)
    assert (pitfall.probability, pitfall.raw_probability) == (BENT_OF_PITFALLS, RAW)
    assert {(f.probability, f.raw_probability) for f in found.values() if isinstance(f, JudgeResult)} == {(BENT, RAW)}


async def remote(url: str, calibrations: CalibrationSet) -> Judge:
    """A started judge of an API server in front of one judge process."""
    made = Judge(
        RemoteExecutor([JudgeClient(url, TOKEN)], PoolRules(interval_s=0.05)),
        MemoryCache(),
        preparer=Preparer(calibrations=calibrations),
    )
    await made.start()
    return made


ENTRY: dict[str, Any] = {
    "weights": ["0123"],
    "protocol": "binary",
    "templates": "4567",
    "calibration": {
        "name": "2026-11-v1",
        "fitted_on": "sha256:89ab",
        "items": 1200,
        "default": {"slope": 1.2, "intercept": -0.4},
        "by_kind": {"pitfall": {"slope": 0.9, "intercept": -1.1}},
    },
}


def test_a_file_of_maps_is_read() -> None:
    (one,) = CalibrationSet.model_validate_json(json.dumps({"maps": [ENTRY]})).maps
    assert one.calibration.default == ProbabilityMap(1.2, -0.4)
    assert one.calibration.by_kind == {"pitfall": ProbabilityMap(0.9, -1.1)}


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY | {"weights": []},
        ENTRY | {"protocol": "graded"},
        ENTRY | {"note": "more"},
        ENTRY | {"calibration": ENTRY["calibration"] | {"items": 0}},
        ENTRY | {"calibration": ENTRY["calibration"] | {"fitted_on": ""}},
        ENTRY | {"calibration": ENTRY["calibration"] | {"default": {"slope": -1, "intercept": 0}}},
        ENTRY | {"calibration": ENTRY["calibration"] | {"default": {"slope": 1, "intercept": 0, "scale": 2}}},
        ENTRY | {"calibration": ENTRY["calibration"] | {"by_kind": {"trap": {"slope": 1, "intercept": 0}}}},
    ],
    ids=["weights", "protocol", "more", "items", "data", "slope", "unknown", "kind"],
)
def test_an_invalid_file_of_maps_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CalibrationSet.model_validate_json(json.dumps({"maps": [entry]}))


def test_two_maps_for_one_judge_are_refused() -> None:
    with pytest.raises(ValidationError, match="remove one"):
        CalibrationSet.model_validate({"maps": [ENTRY, ENTRY | {"weights": ["9", "0123"]}]})


def stale(calibrations: CalibrationSet) -> list[str]:
    """Problems with maps that were fitted for templates other than the shipped ones."""
    shipped = {p: PromptTemplates(PromptForm(p)).digest for p in ("binary", "stepwise")}  # type: ignore[arg-type]
    return [
        f"the calibration {one.calibration.name} of {one.protocol} was fitted for the templates {one.templates}, and "
        f"{shipped[one.protocol]} are shipped: refit it with them, or take it out of prompts/calibrations.json"
        for one in calibrations.maps
        if one.templates != shipped[one.protocol]
    ]


def test_every_shipped_map_was_fitted_for_the_shipped_templates() -> None:
    assert not stale(builtin_calibrations()), "\n".join(stale(builtin_calibrations()))


UNFIT = CalibrationSet.model_validate(
    {
        "unfit": [
            {
                "weights": ["other", SCRIPTED],
                "protocol": "checklist",
                "reason": "gives full points to everything",
                "instead": "graded",
            }
        ]
    }
)


async def test_a_judge_refuses_a_protocol_that_it_is_unfit_for_and_names_an_alternative() -> None:
    unfit = Judge(LocalExecutor(ScriptedEngine()), MemoryCache(), preparer=Preparer(calibrations=UNFIT))
    await unfit.start()
    assert unfit.prepared(JudgingConfig("graded")).config.protocol == "graded"
    with pytest.raises(InvalidRequest, match="gives full points to everything") as refused:
        unfit.prepared(JudgingConfig("checklist", per_call="all"))
    assert "use graded, or a stronger judge" in str(refused.value)
    assert [error.field for error in refused.value.errors] == ["judging.protocol"]
    await unfit.close()


def test_no_shipped_judge_is_referred_to_a_protocol_that_it_is_also_unfit_for() -> None:
    shipped = builtin_calibrations()
    for one in shipped.unfit:
        assert all(shipped.why_unfit(weights, one.instead) is None for weights in one.weights)


@pytest.mark.parametrize(("kinds", "asked_about"), [([], set()), (["pitfall"], {"point"})])
async def test_a_step_blind_judge_is_not_asked_for_steps_and_judges_the_whole_response(
    kinds: list[CriterionKind], asked_about: set[CriterionKind]
) -> None:
    entry = {"weights": [SCRIPTED], "kinds": kinds, "reason": "names the last one"}

    def script(_batch: Batch, call: Call) -> Reply:
        assert isinstance(call.answer, TokenChoice)
        return Reply((0.6, 0.2), chosen="2" if call.answer.then is not None else None)

    service = Judge(
        LocalExecutor(ScriptedEngine(script)),
        MemoryCache(),
        preparer=Preparer(calibrations=CalibrationSet.model_validate({"step_blind": [entry]})),
    )
    await service.start()
    both: tuple[CriterionKind, ...] = ("point", "pitfall")
    criteria = tuple(Criterion(id=kind, kind=kind, description="Counts.") for kind in both)
    planner = GroupPlanner(service.prepared(JudgingConfig("stepwise")), GroupContext("Count."), criteria)
    made = planner.plan(JudgedContent("### Step 1: one\n### Step 2: two", 0, None))
    outcomes = await collect(service.judge([made], await deadline_after()))
    steps = {slot.criterion: verdict_of(slot, outcomes).step for slot in made.pending}
    await service.close()
    assert steps == {kind: 2 if kind in asked_about else 0 for kind in both}
    assert [step.number for step in made.steps] == [1, 2]
