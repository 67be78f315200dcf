"""Under contextual calibration a verdict is relative to the judge's answer about an empty response."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import TooLarge
from judge_server.judging.calibration import NEUTRAL, RelativeVerdict, StoredCalibration, relative_probability
from judge_server.judging.prompts.fencing import fence
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import collect
from judge_server.ports import Batch, Call, CallFailure, Capabilities, JudgeResult, Reply
from judge_server.scoring.recorded import recorded_page
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from rubric_store.ledger.rows import UseFilter
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.calibrations import CALIBRATION, DEFAULT, OF_PITFALLS, fitted
from tests.judge_server.conftest import Serve
from tests.judge_server.judging.test_calibration import remote
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score
from tests.judge_server.remote.judges import judges
from tests.judge_server.support import (
    CRITERIA,
    STEPPED,
    RecordingScript,
    deadline_after,
    group,
    judge,
    plan,
    request,
)
from trainer_client.wire import Criterion, RewardAnswer, Verdict

GIVEN, WITHOUT = 0.75, 0.6
RAW = relative_probability(GIVEN, WITHOUT)
CONTEXTUAL = {"contextual_calibration": True}
EMPTY = fence("")
BINARY = JudgingConfig("binary")

inner = st.floats(1e-6, 1 - 1e-6)


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def leaning(batch: Batch, call: Call) -> Reply:
    """A judge that leans towards yes, and more so about a response that is not empty."""
    yes = WITHOUT if EMPTY in batch.shared else GIVEN
    return Reply((yes / 2, (1 - yes) / 2), chosen="1")


def verdicts(answer: RewardAnswer) -> list[Verdict]:
    return [v for one in answer.groups for response in one.responses for v in response.verdicts]


@given(inner, inner)
def test_log_odds_are_subtracted(given_: float, without: float) -> None:
    found = relative_probability(given_, without)
    assert log_odds(min(max(found, 1e-15), 1 - 1e-15)) == pytest.approx(log_odds(given_) - log_odds(without), abs=1e-3)
    assert relative_probability(given_, given_) == 0.5
    assert found == pytest.approx(1 - relative_probability(1 - given_, 1 - without), abs=1e-9)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_order_of_responses_to_one_prompt_is_kept(one: float, other: float, without: float) -> None:
    low, high = (relative_probability(given_, without) for given_ in sorted((one, other)))
    assert 0 <= low <= high <= 1


async def test_a_verdict_is_relative_to_the_empty_response_and_then_calibrated(serve: Serve) -> None:
    made = await judge(ScriptedEngine(leaning))
    config = JudgingConfig("binary", contextual=True)
    made.stored_calibrations = [
        StoredCalibration(
            name="team",
            version=1,
            judge=made.prepared(config).uncalibrated,
            model="scripted",
            config=config.recorded(),
            method="platt",
            calibration=CALIBRATION,
        )
    ]
    scorer = Scorer(made, None, SynchronousRecorder())  # type: ignore[arg-type]
    for verdict in verdicts(await score(scorer, request(judging=CONTEXTUAL))):
        scaling = OF_PITFALLS if verdict.criterion == "pitfall" else DEFAULT
        assert verdict.raw_probability == pytest.approx(RAW)
        assert verdict.content_free_probability == pytest.approx(WITHOUT)
        assert verdict.probability == pytest.approx(scaling.calibrate(RAW))
        assert verdict.score == float(scaling.calibrate(RAW) >= 0.5)


async def test_responses_of_a_group_share_the_calls_about_the_empty_response(serve: Serve) -> None:
    script = RecordingScript(leaning)
    http = await serve(ScriptedEngine(script))
    body = request("Yes.", "No.", "Perhaps.", judging=CONTEXTUAL)
    first = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    assert set(script.asked.values()) == {3 + 1}
    assert first.usage.judge_calls == 4 * len(CRITERIA)
    again = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    assert again.usage.judge_calls == 0
    assert all(verdict.cached for verdict in verdicts(again))
    assert [v.probability for v in verdicts(again)] == [v.probability for v in verdicts(first)]
    more = request("Of course.", judging=CONTEXTUAL)
    assert (await http.post("/v1/rewards", json=more)).json()["usage"]["judge_calls"] == len(CRITERIA)


async def test_a_failed_verdict_on_the_empty_response_fails_the_verdict_and_is_asked_again(serve: Serve) -> None:
    healthy = False

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        if EMPTY in batch.shared and not healthy:
            return CallFailure("parse", "mumbling")
        return leaning(batch, call)

    http = await serve(ScriptedEngine(script))
    body = request(judging=CONTEXTUAL)
    failed = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    for verdict in verdicts(failed):
        assert verdict.failure is not None
        assert (verdict.status, verdict.failure.kind) == ("failed", "parse")
        assert "empty response, which failed: mumbling" in verdict.failure.detail
    assert failed.groups[0].responses[0].reward is None
    assert failed.usage.failed == len(CRITERIA)
    healthy = True
    scored = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    assert {v.status for v in verdicts(scored)} == {"ok"}
    assert scored.usage.judge_calls == len(CRITERIA)


def test_a_verdict_without_probabilities_fails() -> None:
    outcome = RelativeVerdict.of(b"a", b"b", DEFAULT).combine(
        [JudgeResult(1.0, 0.9, raw_probability=0.9), JudgeResult(1.0)]
    )
    assert isinstance(outcome, CallFailure)
    assert outcome.kind == "engine"


async def test_the_shipped_maps_hold_without_contextual_calibration_only() -> None:
    shipped = await judge(ScriptedEngine(leaning), calibrations=fitted())
    unknown = await judge(ScriptedEngine(leaning))
    on, off = [JudgingConfig("binary", contextual=asked) for asked in (True, False)]
    assert (shipped.prepared(on).calibration, shipped.prepared(off).calibration) == (NEUTRAL, CALIBRATION)
    assert shipped.prepared(on).fingerprint == unknown.prepared(on).fingerprint
    assert len({judge_.prepared(one).fingerprint for judge_ in (shipped, unknown) for one in (on, off)}) == 3


@pytest.mark.parametrize(
    "judging",
    [{"protocol": "graded"}, {"rationale": True}, {"criteria_per_call": 2}, {"think_tokens": 8}],
    ids=str,
)
async def test_contextual_calibration_is_refused_where_answers_cannot_be_compared(
    serve: Serve, judging: dict[str, Any]
) -> None:
    http = await serve(ScriptedEngine(leaning))
    answer = await http.post("/v1/verdicts", json=request(judging=CONTEXTUAL | judging))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "judging.contextual_calibration"


async def test_contextual_calibration_needs_a_judge_that_returns_probabilities(serve: Serve) -> None:
    http = await serve(ScriptedEngine(capabilities=Capabilities(False, False, False, False, False)))
    answer = await http.post("/v1/rewards", json=request(judging=CONTEXTUAL))
    assert answer.status_code == 422
    assert "gives no probabilities" in answer.json()["detail"]


async def test_steps_come_from_the_response_itself(serve: Serve) -> None:
    http = await serve(ScriptedEngine(leaning))
    body = request(STEPPED, reward={"mode": "stepwise"}, judging=CONTEXTUAL)
    answer = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    judged = [verdict for verdict in verdicts(answer) if verdict.method == "judge"]
    assert [verdict.step for verdict in judged] == [1] * len(judged)
    assert [verdict.raw_probability for verdict in judged] == [pytest.approx(RAW)] * len(judged)


async def test_each_turn_is_relative_to_the_empty_response(serve: Serve) -> None:
    script = RecordingScript(leaning)
    http = await serve(ScriptedEngine(script))
    turns = [
        {"role": "assistant", "content": "A."},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "B."},
    ]
    rubric = {"criteria": [{"id": "t", "description": "Is short.", "applies_to": "each_turn"}]}
    body = request(turns, rubric=rubric, judging=CONTEXTUAL)  # type: ignore[arg-type]
    answer = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    (verdict,) = verdicts(answer)
    assert [turn.probability for turn in verdict.turns] == [pytest.approx(RAW)] * 2
    assert (verdict.probability, verdict.content_free_probability) == (pytest.approx(RAW), pytest.approx(WITHOUT))
    assert answer.usage.judge_calls == 3
    again = RewardAnswer.model_validate_json((await http.post("/v1/rewards", json=body)).content)
    assert verdicts(again)[0].cached


async def test_an_empty_response_is_decided_without_a_call(serve: Serve) -> None:
    script = RecordingScript(leaning)
    http = await serve(ScriptedEngine(script))
    rubric = {"criteria": [{"id": "a", "description": "Is short."}]}
    answer = await http.post("/v1/rewards", json=request("", rubric=rubric, judging=CONTEXTUAL))
    assert answer.json()["usage"]["judge_calls"] == 0
    assert not script.asked


async def test_the_ledger_keeps_the_verdict_and_whether_it_was_cached(tmp_path: Path, new_sqlite: NewSQLite) -> None:
    ledger = SQLLedger(new_sqlite(tmp_path / "ledger.db"))
    scorer = Scorer(await judge(ScriptedEngine(leaning)), None, SynchronousRecorder(ledger))  # type: ignore[arg-type]
    answers = [await score(scorer, request(run=run, judging=CONTEXTUAL)) for run in ("first", "second")]
    for answer, run, known in zip(answers, ("first", "second"), (False, True), strict=True):
        page = await recorded_page(ledger, UseFilter(PROJECT, run), texts=False)
        kept = [one.verdict for one in page.verdicts]
        expected = [replace_content_free(verdict) for verdict in answer.groups[0].responses[0].verdicts]
        assert kept == expected
        assert {verdict.cached for verdict in kept} == {known}
    await ledger.close()


def replace_content_free(verdict: Verdict) -> Verdict:
    return verdict.model_copy(update={"content_free_probability": None})


async def test_a_judge_in_another_process_gives_the_same_verdicts() -> None:
    config, of = JudgingConfig("binary", contextual=True), [Criterion.model_validate(c) for c in CRITERIA]
    here = await judge(ScriptedEngine(leaning))
    async with judges(ScriptedEngine(leaning)) as served:
        api = await remote(served[0].url, fitted(weights=["other"]))
        found = []
        for made in (here, api):
            asked = plan(made.prepared(config), group(), "Yes.", of)
            outcomes = await collect(made.judge([asked], await deadline_after()))
            found.append([outcomes.by_digest[slot.digests[0]] for slot in asked.pending])
        await api.close()
    assert found[0] == found[1]
    assert [isinstance(one, JudgeResult) and one.raw_probability for one in found[0]] == [pytest.approx(RAW)] * len(of)


async def test_calls_about_empty_responses_count_towards_the_size_of_a_request(serve: Serve) -> None:
    made = await judge(ScriptedEngine(leaning), queue_calls=2 * len(CRITERIA))
    plain, contextual = request("Yes.", "No."), request("Yes.", "No.", judging=CONTEXTUAL)
    scorer = Scorer(made, None, SynchronousRecorder())  # type: ignore[arg-type]
    await score(scorer, plain)
    with pytest.raises(TooLarge, match=f"{3 * len(CRITERIA)} judge calls"):
        await score(scorer, contextual)


def test_a_verdict_without_contextual_calibration_omits_its_field() -> None:
    assert "content_free_probability" not in Verdict(criterion="a", status="ok").model_dump(mode="json")
