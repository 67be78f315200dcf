"""Cascades and panels of scripted judges: which judges are asked, verdicts, failures, costs and caching."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from judge_server.engines.scripted import CAPABILITIES, ScriptedEngine, by_hash
from judge_server.errors import InvalidRequest, NotReady, Overloaded
from judge_server.judging.calibration import relative_probability
from judge_server.judging.combining import (
    Band,
    CascadeRule,
    CombinedConfig,
    DawidSkene,
    PanelRule,
    StoredBand,
    WeightedMean,
    combine_plans,
)
from judge_server.judging.plan import GroupPlanner, ResponsePlan
from judge_server.judging.prompts.fencing import fence
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import Caller, collect
from judge_server.judging.shown import GroupContext
from judge_server.ledger.rows import rows_of
from judge_server.ports import Batch, Call, CallFailure, Capabilities, JudgeResult, Reply
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.combined import CombinedJudge
from judge_server.scoring.judge import Judge
from judge_server.scoring.scorer import Scorer
from tests.judge_server.ledger.judged import SynchronousRecorder, score
from tests.judge_server.support import (
    GatedEngine,
    RecordingScript,
    advance_time,
    criteria,
    deadline_after,
    judge,
)
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Criterion, VerdictRequest, as_response

CRITERIA = criteria("Alpha.", "Beta.", "Gamma.", "Delta.")
SURE = {"Alpha": 0.95, "Beta": 0.05, "Gamma": 0.9, "Delta": 0.1}
BAND = CascadeRule(Band(0.3, 0.7))
BINARY = JudgingConfig("binary")
Outcome = Callable[[Batch, Call], Reply | CallFailure]


def saying(probabilities: Mapping[str, float | CallFailure]) -> Outcome:
    """A script that answers a question by the word of `probabilities` that it contains."""

    def outcome(batch: Batch, call: Call) -> Reply | CallFailure:
        said = next(value for word, value in probabilities.items() if word in call.question)
        if isinstance(said, CallFailure):
            return said
        return Reply((said * 0.9, (1 - said) * 0.9), tokens_computed=10, tokens_written=1)

    return outcome


def named(model: str, script: RecordingScript, capabilities: Capabilities = CAPABILITIES) -> ScriptedEngine:
    """An engine of this model, so that its fingerprint differs."""
    return ScriptedEngine(script, capabilities=capabilities, weights_digest=model)


class NamedJudges:
    """Named judges with their scripts."""

    def __init__(self, **says: Outcome | Mapping[str, float | CallFailure]) -> None:
        made = {name: said if callable(said) else saying(said) for name, said in says.items()}
        self.scripts = {name: RecordingScript(said) for name, said in made.items()}

    async def judges(self, cache: MemoryCache | None = None) -> dict[str, Judge]:
        """Start the judges."""
        shared = cache or MemoryCache()
        return {name: await judge(named(name, script), cache=shared) for name, script in self.scripts.items()}

    async def cascade(self, rule: CascadeRule = BAND) -> CombinedJudge:
        """A cascade of the judges."""
        return CombinedJudge(await self.judges(), "cascade", rule)

    async def panel(self, rule: PanelRule | None = None) -> CombinedJudge:
        """A panel of the judges, with equal weights unless given."""
        equal = PanelRule(WeightedMean((1.0,) * len(self.scripts)))
        return CombinedJudge(await self.judges(), "panel", rule or equal)

    def asked(self, name: str) -> set[str]:
        """The criteria that a judge was asked about."""
        return {word for word in SURE for question in self.scripts[name].asked if word in question}


def plans(
    made: CombinedJudge, *responses: str, of: list[Criterion] = CRITERIA, config: JudgingConfig = BINARY
) -> list[ResponsePlan]:
    """Plans of these responses."""
    prepared = made.prepared(config)
    assert isinstance(prepared, CombinedConfig)
    planners = [GroupPlanner(own, GroupContext("Is 7 prime?"), of) for own in prepared.members]
    contents = [judged_content(as_response(response), "strip") for response in responses]
    return [combine_plans(prepared, [planner.plan(content) for planner in planners]) for content in contents]


async def verdicts(made: CombinedJudge, *responses: str, of: list[Criterion] = CRITERIA) -> dict[str, object]:
    """The outcome of each criterion of the first response."""
    asked = plans(made, *(responses or ("Yes.",)), of=of)
    found = await collect(made.judge(asked, await deadline_after()))
    return {slot.criterion: found.by_digest[slot.digests[0]] for slot in asked[0].pending}


async def test_the_large_judge_is_asked_only_inside_the_band_and_in_one_batch() -> None:
    batches: list[int] = []

    def large(batch: Batch, call: Call) -> Reply | CallFailure:
        batches.append(len(batch.calls))
        return saying({"Beta": 0.8, "Delta": 0.2})(batch, call)

    members = NamedJudges(small=SURE | {"Beta": 0.6, "Delta": 0.7}, large=large)
    made = await members.cascade()
    asked = plans(made, "Yes.")
    found = await collect(made.judge(asked, await deadline_after()))
    said = [found.by_digest[slot.digests[0]] for slot in asked[0].pending]
    assert members.asked("large") == {"Beta", "Delta"}
    assert batches == [2, 2]
    assert [(one.score, one.probability) for one in said if isinstance(one, JudgeResult)] == [
        (1.0, pytest.approx(0.95)),
        (1.0, pytest.approx(0.8)),
        (1.0, pytest.approx(0.9)),
        (0.0, pytest.approx(0.2)),
    ]
    assert isinstance(said[3], JudgeResult)
    assert [(one.judge, one.score) for one in said[3].members] == [("small", 1.0), ("large", 0.0)]
    assert {
        name: (cost.verdicts, cost.costs.calls, cost.costs.tokens_computed) for name, cost in found.members.items()
    } == {
        "small": (4, 4, 40),
        "large": (2, 2, 20),
    }
    assert (found.costs.calls, found.costs.tokens_computed, found.compared, found.disagreed) == (6, 60, 2, 1)


async def test_verdicts_that_the_small_judge_made_alone_are_reused() -> None:
    members = NamedJudges(small=SURE, large={})
    made = await members.cascade()
    small = made.judges[0]
    alone = plans(made, "Yes.")
    await collect(small.judge([one.members[0] for one in alone], await deadline_after()))  # type: ignore[attr-defined]
    found = await collect(made.judge(alone, await deadline_after()))
    assert found.costs.calls == 0
    assert found.cached == {slot.digests[0] for slot in alone[0].pending}
    assert set(members.scripts["small"].asked.values()) == {1}


async def test_a_failing_large_judge_fails_only_the_verdicts_that_need_it() -> None:
    gone = CallFailure("engine", "gone")
    members = NamedJudges(small=SURE | {"Beta": 0.5}, large=dict.fromkeys(SURE, gone))
    said = await verdicts(await members.cascade())
    kinds = {name: one.kind if isinstance(one, CallFailure) else "ok" for name, one in said.items()}
    assert kinds == {"c0": "ok", "c1": "engine", "c2": "ok", "c3": "ok"}
    failed = said["c1"]
    assert isinstance(failed, CallFailure)
    assert failed.detail.startswith("'small' said 0.5")
    assert "'large' was asked, which failed: gone" in failed.detail


async def test_a_criterion_without_a_verdict_of_the_small_judge_goes_to_the_large_one() -> None:
    members = NamedJudges(small=SURE | {"Gamma": CallFailure("parse", "mumbled")}, large={"Gamma": 0.9})
    said = await verdicts(await members.cascade())
    gamma = said["c2"]
    assert isinstance(gamma, JudgeResult)
    assert [(one.judge, one.score, one.failure) for one in gamma.members] == [
        ("small", None, "parse"),
        ("large", 1.0, None),
    ]


async def test_a_hanging_large_judge_times_out_only_the_verdicts_that_need_it() -> None:
    members = NamedJudges(small=SURE | {"Alpha": 0.5}, large={})
    large = GatedEngine()
    judges = await members.judges() | {"large": await judge(large)}
    made = CombinedJudge(judges, "cascade", BAND)
    asked = plans(made, "Yes.")
    running = asyncio.create_task(collect(made.judge(asked, await deadline_after())))
    await large.busy()
    advance_time()
    found = await running
    said = [found.by_digest[slot.digests[0]] for slot in asked[0].pending]
    assert [one.kind if isinstance(one, CallFailure) else one.score for one in said] == ["timeout", 0.0, 1.0, 0.0]


class UnavailableExecutor(LocalExecutor):
    """An executor whose judge is lost: every submission raises `error`."""

    error: Exception = NotReady("no judge is available")

    def submit(self, *_: object, **__: object) -> object:  # type: ignore[override]
        """Raise `error`."""
        raise self.error


async def lost(name: str, error: Exception = UnavailableExecutor.error) -> Judge:
    """A judge that started with the service and is now lost."""
    executor = UnavailableExecutor(named(name, RecordingScript()))
    executor.error = error
    made = Judge(executor, MemoryCache())
    await made.start()
    return made


async def test_a_lost_judge_fails_the_verdicts_that_need_it_and_a_lost_small_judge_the_request() -> None:
    members = NamedJudges(small=SURE | {"Alpha": 0.5}, other=SURE)
    judges = await members.judges()
    made = CombinedJudge({"small": judges["small"], "large": await lost("large")}, "cascade", BAND)
    said = await verdicts(made)
    assert [one.kind if isinstance(one, CallFailure) else "ok" for one in said.values()] == ["engine", "ok", "ok", "ok"]
    with pytest.raises(NotReady, match="no judge is available"):
        await verdicts(CombinedJudge({"small": await lost("small"), "large": judges["other"]}, "cascade", BAND))
    two_of_three = CombinedJudge(
        {"a": judges["small"], "b": await lost("b"), "c": judges["other"]}, "panel", PanelRule(WeightedMean((1, 1, 1)))
    )
    said = await verdicts(two_of_three)
    assert {name: one.score for name, one in said.items() if isinstance(one, JudgeResult)} == {
        "c1": 0.0,
        "c2": 1.0,
        "c3": 0.0,
    }
    none = CombinedJudge({"a": await lost("a"), "b": await lost("b")}, "panel", PanelRule(WeightedMean((1, 1))))
    with pytest.raises(NotReady):
        await verdicts(none)


async def test_a_full_queue_of_a_member_refuses_the_request() -> None:
    judges = await NamedJudges(small=SURE | {"Alpha": 0.5}).judges()
    full = await lost("large", Overloaded("the queue is full", retry_after_s=3))
    with pytest.raises(Overloaded):
        await verdicts(CombinedJudge({"small": judges["small"], "large": full}, "cascade", BAND))


async def test_responses_complete_one_by_one_and_escalate_while_others_are_judged() -> None:
    small = GatedEngine(concurrent_batches=1)
    members = NamedJudges(large=dict.fromkeys(("Alpha",), 0.8))
    made = CombinedJudge({"small": await judge(small), **await members.judges()}, "cascade", CascadeRule(Band(0, 1)))
    judging = made.judge(plans(made, "Yes.", "No.", of=criteria("Alpha.")), await deadline_after())
    small.release(1)
    first = await asyncio.wait_for(anext(judging), 10)
    assert len(first.complete) == 1
    small.release(1)
    rest = [place async for judged in judging for place in judged.complete]
    assert sorted([*first.complete, *rest]) == [0, 1]


async def test_a_cancelled_request_leaves_no_calls_and_reports_its_cost() -> None:
    large = GatedEngine()
    members = NamedJudges(small=SURE | {"Alpha": 0.5})
    made = CombinedJudge({**await members.judges(), "large": await judge(large)}, "cascade", BAND)
    running = asyncio.create_task(collect(made.judge(plans(made, "Yes."), await deadline_after())))
    await large.busy()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    samples = [sample for family in made.metrics.families() for sample in family.samples]
    assert {one.labels["member"]: one.value for one in samples if one.name == "adjudge_member_calls_total"} == {
        "small": 4.0,
        "large": 0.0,
    }
    waiting, at_engine, *_ = made.judges[1].executor.admission.state()  # type: ignore[attr-defined]
    assert (waiting, at_engine) == (0, 0)


async def test_identical_calls_of_two_cascades_are_made_once() -> None:
    members = NamedJudges(small=SURE | {"Alpha": 0.5}, large={"Alpha": 0.8})
    made = await members.cascade()
    asked = [collect(made.judge(plans(made, "Yes."), await deadline_after())) for _ in range(3)]
    await asyncio.gather(*asked)
    assert {name: sum(script.asked.values()) for name, script in members.scripts.items()} == {"small": 4, "large": 1}


async def test_a_panel_weights_probabilities_and_counts_disagreements() -> None:
    members = NamedJudges(a={"Alpha": 0.9, "Beta": 0.2}, b={"Alpha": 0.4, "Beta": 0.1}, c={"Alpha": 0.6, "Beta": 0.3})
    made = await members.panel(PanelRule(WeightedMean((2, 1, 1))))
    asked = plans(made, "Yes.", of=CRITERIA[:2])
    found = await collect(made.judge(asked, await deadline_after()))
    said = [found.by_digest[slot.digests[0]] for slot in asked[0].pending]
    assert [(one.score, one.probability) for one in said if isinstance(one, JudgeResult)] == [
        (1.0, pytest.approx(0.7)),
        (0.0, pytest.approx(0.2)),
    ]
    assert (found.compared, found.disagreed) == (2, 1)


async def test_a_panel_decides_without_a_failed_judge_only_if_it_could_not_change_the_verdict() -> None:
    gone = CallFailure("engine", "gone")
    members = NamedJudges(a={"Alpha": 0.9, "Beta": 0.6}, b={"Alpha": gone, "Beta": gone}, c={"Alpha": 0.8, "Beta": 0.7})
    said = await verdicts(await members.panel(), of=CRITERIA[:2])
    alpha, beta = said["c0"], said["c1"]
    assert isinstance(alpha, JudgeResult)
    assert [one.judge for one in alpha.members] == ["a", "b", "c"]
    assert (alpha.score, alpha.probability) == (1.0, pytest.approx(0.85))
    assert isinstance(beta, CallFailure)
    assert beta.detail == "1 of 3 judges of the panel failed and could have turned the verdict; 'b': gone"


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.7, 1.0]), st.integers(0, 20)), min_size=1, max_size=4))
@example([(0.1, 1), (0.1, 10), (0.1, 19)])
def test_a_panel_without_failures_has_a_verdict_also_at_one_half(votes: list[tuple[float, int]]) -> None:
    outcomes = [JudgeResult(float(twentieths >= 10), twentieths / 20) for _, twentieths in votes]
    rule = PanelRule(WeightedMean(tuple(weight for weight, _ in votes)))
    verdict = rule.combine([f"judge {n}" for n in range(len(votes))], outcomes)
    assert isinstance(verdict, JudgeResult)
    mean = sum(weight * n for weight, n in votes) / sum(weight for weight, _ in votes) / 20
    assert verdict.probability == pytest.approx(mean)


async def test_dawid_skene_trusts_the_judge_that_errs_less() -> None:
    rule = PanelRule(DawidSkene(0.5, (0.95, 0.6, 0.6), (0.95, 0.6, 0.6)))
    members = NamedJudges(a={"Alpha": 0.1}, b={"Alpha": 0.9}, c={"Alpha": 0.9})
    (said,) = (await verdicts(await members.panel(rule), of=CRITERIA[:1])).values()
    odds = (0.05 / 0.95) * (0.6 / 0.4) ** 2
    assert isinstance(said, JudgeResult)
    assert (said.score, said.probability) == (0.0, pytest.approx(odds / (1 + odds)))


async def test_the_fingerprint_changes_with_a_member_the_band_or_the_weights() -> None:
    judges = await NamedJudges(a=by_hash, b=by_hash, c=by_hash).judges()
    changed = await judge(named("a", RecordingScript()), min_choice_mass=0.2)

    def fingerprint(first: Judge, rule: CascadeRule) -> str:
        return CombinedJudge({"a": first, "b": judges["b"]}, "cascade", rule).prepared(BINARY).fingerprint

    panels = [
        CombinedJudge(judges, "panel", PanelRule(WeightedMean(weights))).prepared(BINARY).fingerprint
        for weights in ((1, 1, 1), (2, 2, 2), (1, 1, 2))
    ]
    cascades = {
        fingerprint(judges["a"], BAND),
        fingerprint(changed, BAND),
        fingerprint(judges["c"], BAND),
        fingerprint(judges["a"], CascadeRule(Band(0.3, 0.8))),
    }
    assert len(cascades) == 4
    assert panels[0] == panels[1] != panels[2]
    swapped = CombinedJudge({"b": judges["b"], "a": judges["a"]}, "cascade", BAND).prepared(BINARY).fingerprint
    assert swapped not in cascades


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (JudgingConfig("graded"), "judging.protocol"),
        (JudgingConfig("likert"), "judging.protocol"),
        (JudgingConfig("checklist", "all"), "judging.protocol"),
        (JudgingConfig("binary", 4), "judging.criteria_per_call"),
    ],
)
async def test_judging_configs_without_probabilities_are_refused(config: JudgingConfig, field: str) -> None:
    made = await NamedJudges(small=by_hash, large=by_hash).cascade()
    with pytest.raises(InvalidRequest) as refused:
        made.prepared(config)
    assert refused.value.errors[0].field == field
    assert "small, large" in str(refused.value)


async def test_a_small_judge_without_probabilities_is_refused() -> None:
    plain = named("small", RecordingScript(), capabilities=replace(CAPABILITIES, logprobs=False))
    made = CombinedJudge({"small": await judge(plain), "large": await judge()}, "cascade", BAND)
    with pytest.raises(InvalidRequest, match="returns none"):
        made.prepared(BINARY)


async def test_a_stored_band_is_refused_for_changed_judges_or_other_options() -> None:
    members = NamedJudges(small=by_hash, large=by_hash)
    judges = await members.judges()
    made = CombinedJudge(judges, "cascade", None, reference="team@live")
    fingerprints = [one.prepared(BINARY).fingerprint for one in judges.values()]
    config = {"protocol": "binary", "per_call": 1, "rationale": False, "think_tokens": 0, "temperature": 0.0}
    stored = StoredBand(
        name="team",
        version=3,
        judges=(fingerprints[0], fingerprints[1]),
        models=("small", "large"),
        config=config | {"template": None},
        low=0.2,
        high=0.8,
        error=0.05,
        fitted_on="sha256:0",
        items=300,
    )
    made.stored_rule = stored
    assert made.prepared(BINARY).rule == CascadeRule(Band(0.2, 0.8))
    with pytest.raises(InvalidRequest, match="team@3 was fitted for other judging options"):
        made.prepared(JudgingConfig("stepwise"))
    made.stored_rule = stored.model_copy(update={"judges": (fingerprints[0], "sha256:other")})
    with pytest.raises(InvalidRequest, match=r"fitted for other judges: large has changed since.*adjudge cascade"):
        made.prepared(BINARY)


async def test_steps_come_from_the_judge_that_decides() -> None:
    made = await NamedJudges(small=by_hash, large=by_hash).cascade(CascadeRule(Band(0.0, 1.0)))
    text = "### Step 1: a\nx\n### Step 2: b\ny"
    stepwise = plans(made, text, config=JudgingConfig("stepwise"))
    found = await collect(made.judge(stepwise, await deadline_after(), caller=Caller("run")))
    (plan,) = stepwise
    of_large = await collect(made.judges[1].judge([plan.members[1]], await deadline_after()))  # type: ignore[attr-defined]
    large = {slot.criterion: of_large.by_digest[slot.digests[0]] for slot in plan.members[1].pending}  # type: ignore[attr-defined]
    for slot in plan.pending:
        said, expected = found.by_digest[slot.digests[0]], large[slot.criterion]
        assert isinstance(said, JudgeResult)
        assert isinstance(expected, JudgeResult)
        assert (said.score, said.step) == (expected.score, expected.step)


async def test_a_fresh_request_asks_every_member_again() -> None:
    members = NamedJudges(small=SURE | {"Beta": 0.6}, large={"Beta": 0.8})
    made = await members.cascade()
    asked = {
        "rubric": {"criteria": [one.model_dump(mode="json", exclude_defaults=True) for one in CRITERIA[:2]]},
        "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes."]}],
    }

    async def ask(fresh: bool) -> list[int]:
        request = VerdictRequest.model_validate(asked | {"fresh": fresh})
        await Scorer(made, None).verdicts(request, request_id="r", project_id="default")  # type: ignore[arg-type]
        return [sum(script.asked.values()) for script in members.scripts.values()]

    assert [await ask(fresh) for fresh in (False, False, True)] == [[2, 1], [2, 1], [4, 2]]


async def test_monitors_record_how_often_members_are_asked_and_disagree() -> None:
    members = NamedJudges(small=SURE | {"Beta": 0.6, "Gamma": 0.5}, large={"Beta": 0.2, "Gamma": 0.8})
    recorder = SynchronousRecorder()
    rubric = {"criteria": [one.model_dump(mode="json") for one in CRITERIA]}
    body = {"run": "r", "step": 1, "rubric": rubric, "groups": [{"id": "g", "prompt": "?", "responses": ["Yes."]}]}
    await score(Scorer(await members.cascade(), None, recorder), body)  # type: ignore[arg-type]  # rubrics are inline
    signals = rows_of(recorder.judged, keep_texts=True).signals
    told = {row.name: (row.pairs, row.x, row.y) for row in signals if row.signal == "members"}
    assert told[""] == (4, 2.0, 1.0)
    asked = [told[one.id] for one in CRITERIA]
    assert asked == [(1, 0.0, 0.0), (1, 1.0, 1.0), (1, 1.0, 0.0), (1, 0.0, 0.0)]


async def test_members_are_combined_by_their_contextually_calibrated_probabilities() -> None:
    given = SURE | {"Beta": 0.6}

    def leaning(batch: Batch, call: Call) -> Reply | CallFailure:
        empty = fence("") in batch.shared
        return saying(dict.fromkeys(given, 0.6) if empty else given)(batch, call)

    members = NamedJudges(small=leaning, large=SURE)
    made = await members.cascade()
    config = JudgingConfig("binary", contextual=True)
    asked = plans(made, "Yes.", config=config)
    found = await collect(made.judge(asked, await deadline_after()))
    said = {slot.criterion: found.by_digest[slot.digests[0]] for slot in asked[0].pending}
    assert members.asked("large") == {"Beta"}
    for criterion, outcome in said.items():
        assert isinstance(outcome, JudgeResult)
        assert outcome.members
        word = CRITERIA[int(criterion[1:])].description.rstrip(".")
        by_small, by_large = relative_probability(given[word], 0.6), relative_probability(SURE[word], SURE[word])
        expected = by_large if word == "Beta" else by_small
        assert outcome.probability == pytest.approx(expected)
    again = await collect(made.judge(plans(made, "Yes.", config=config), await deadline_after()))
    assert again.cached == {slot.digests[0] for slot in asked[0].pending}
    assert again.costs.calls == 0
