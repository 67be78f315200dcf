"""`POST /v1/rewards` with the mode `ranking`: comparisons of pairs, failures, deadlines and position bias."""

import asyncio
import itertools
import json
import re
from time import process_time
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.combining import Band, CascadeRule
from judge_server.judging.results import Outcomes
from judge_server.ports import Batch, Call, CallFailure, JudgeResult, Reply
from judge_server.scheduling.time_sharing import TimeSlicer
from judge_server.scoring.combined import CombinedJudge
from judge_server.scoring.planner import AskedGroups
from judge_server.scoring.ranking import plan_tournaments
from judge_server.scoring.recompute import recompute
from judge_server.scoring.rubrics import resolve_rubrics
from judge_server.scoring.scorer import Scorer
from rubric_store import SQLLedger
from tests.judge_server import support
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.ledger.judged import PROJECT, SynchronousRecorder, score, scorer
from tests.judge_server.support import CRITERIA, GatedEngine, advance_time, request
from trainer_client.ranking import PairVerdict, rank
from trainer_client.wire import ComparisonAnswer, RewardAnswer, RewardEvent, RewardRequest
from trainer_client.wire.ledger import RecomputeRequest

TEXTS = ["It is q3.", "It is q1.", "It is q2.", "It is q5.", "It is q4."]
RUNS = itertools.count()


def sides(batch: Batch) -> tuple[int, int]:
    """The qualities of the responses shown as A and as B."""
    a, _, b = batch.shared.partition("Response A:")[2].partition("Response B:")
    return tuple(int(re.search(r"q(\d)", text)[1]) for text in (a, b))  # type: ignore[index, return-value]


def by_quality(batch: Batch, call: Call) -> Reply | CallFailure:
    """Prefer the response of higher quality in either position."""
    a, b = sides(batch)
    return Reply((0.7, 0.2)) if a > b else Reply((0.2, 0.7))


def failing_for(quality: int, kind: Any = "truncated_input") -> Any:
    """As `by_quality`, but comparisons with one response fail."""
    return lambda batch, call: CallFailure(kind, "no") if quality in sides(batch) else by_quality(batch, call)


def ranking(*texts: str, **options: Any) -> dict[str, Any]:
    """A request to rank one group."""
    fields = {name: options.pop(name) for name in ("on_failure", "judging", "deadline_s", "run") if name in options}
    return request(*(texts or TEXTS), reward={"mode": "ranking", **options}, **fields)


def found(answer: RewardAnswer) -> list[float | None]:
    return [response.reward for response in answer.groups[0].responses]


def as_verdicts(answer: RewardAnswer) -> list[PairVerdict]:
    """The comparisons of the first group, from its verdicts."""
    return [
        PairVerdict(place, int(verdict.criterion.removeprefix("beats_")), verdict.score, verdict.score)
        for place, response in enumerate(answer.groups[0].responses)
        for verdict in response.verdicts
    ]


@pytest.mark.parametrize(("schedule", "pairs"), [("all_pairs", 10), ("swiss", 6), ("pivot", 4)])
async def test_each_pair_is_asked_in_both_orders_and_rewards_follow_from_the_verdicts(
    serve: Serve, schedule: str, pairs: int
) -> None:
    answer = await rewards(await serve(ScriptedEngine(by_quality)), ranking(schedule=schedule))
    told = answer.groups[0].ranking
    assert told is not None
    assert told.model_dump() == {
        "schedule": schedule, "pairs": pairs, "failed": 0, "inconsistent": 0, "first_preferred": 0.5,
    }  # fmt: skip
    assert answer.usage.judge_calls == 2 * pairs
    assert answer.judge is not None
    assert answer.judge.protocol == "comparison"
    assert found(answer) == [outcome.reward for outcome in rank(5, as_verdicts(answer))]
    assert {response.status for response in answer.groups[0].responses} == {"scored"}


async def test_soft_wins_are_probabilities(serve: Serve) -> None:
    http = await serve(ScriptedEngine(by_quality))
    hard, soft = found(await rewards(http, ranking())), found(await rewards(http, ranking(use="probability")))
    assert sorted(range(5), key=lambda place: soft[place] or 0.0) == [1, 2, 0, 4, 3]
    assert max(soft) < max(hard)  # type: ignore[type-var]


async def test_the_stream_contains_what_the_whole_answer_contains(serve: Serve) -> None:
    http = await serve(ScriptedEngine(by_quality))
    sent = ranking(schedule="swiss")
    sent["groups"] = [sent["groups"][0] | {"id": name, "prompt": name} for name in "xyz"]
    sent["groups"][1]["responses"] = TEXTS[:2]
    whole = await rewards(http, sent)
    answer = await http.post("/v1/rewards", json=sent, headers={"Accept": "application/x-ndjson"})
    *groups, last = [RewardEvent.model_validate_json(line) for line in answer.content.splitlines()]
    assert last.summary is not None
    assert last.summary.mode == "ranking"
    streamed = {line.group.id: line.group for line in groups if line.group is not None}
    assert next(iter(streamed)) == "y"  # two responses need one round
    for group in whole.groups:
        assert streamed[group.id].ranking == group.ranking
        assert [one.reward for one in streamed[group.id].responses] == [one.reward for one in group.responses]


async def test_comparisons_are_cached_and_shared_with_the_comparisons_route(serve: Serve) -> None:
    http = await serve(ScriptedEngine(by_quality))
    first, again = await rewards(http, ranking()), await rewards(http, ranking())
    assert (first.usage.judge_calls, again.usage.judge_calls, again.usage.cached) == (20, 0, 20)
    pair = {"id": "p", "prompt": "Is 7 prime?", "a": TEXTS[0], "b": TEXTS[1]}
    asked = await http.post("/v1/comparisons", json={"pairs": [pair], "rubric": {"criteria": CRITERIA}})
    assert ComparisonAnswer.model_validate_json(asked.content).usage.judge_calls == 0


async def test_a_shadow_criterion_is_not_shown(serve: Serve) -> None:
    seen: list[str] = []

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        seen.append(call.question)
        return by_hash(batch, call)

    criteria = [*CRITERIA, {"id": "hidden", "description": "Says please.", "shadow": True}]
    await rewards(await serve(ScriptedEngine(script)), ranking("a b", "c d") | {"rubric": {"criteria": criteria}})
    assert "Is polite." in seen[0]
    assert "Says please." not in seen[0]


async def test_an_empty_response_loses_without_a_call(serve: Serve) -> None:
    answer = await rewards(await serve(ScriptedEngine(by_quality)), ranking("It is q1.", "", "It is q2.", "..."))
    first, empty, second, dots = answer.groups[0].responses
    assert answer.usage.judge_calls == 2
    assert [verdict.method for verdict in empty.verdicts] == ["no_content"] * 3
    assert empty.reward == pytest.approx(dots.reward)
    assert (second.reward or 0) > (first.reward or 0) > 0.5 > (empty.reward or 0)
    shown = ranking("It is q1.", "It is q0", judging={"defences": []})
    assert (await rewards(await serve(ScriptedEngine(by_quality)), shown)).usage.judge_calls == 2


class TestFailures:
    async def test_a_failed_comparison_is_not_a_loss_and_the_policy_decides(self, serve: Serve) -> None:
        http = await serve(ScriptedEngine(failing_for(5)))
        answer = await rewards(http, ranking())
        unscored = answer.groups[0].responses[3]
        assert (unscored.reward, unscored.status) == (None, "unscored")
        others = [reward for place, reward in enumerate(found(answer)) if place != 3]
        alone = found(await rewards(http, ranking(*[text for text in TEXTS if "q5" not in text])))
        assert others == pytest.approx(alone)
        assert [one.status for one in answer.groups[0].responses if one.reward is not None] == ["partial"] * 4
        told = answer.groups[0].ranking
        assert told is not None
        assert (told.failed, told.first_preferred) == (4, 0.5)
        assert found(await rewards(http, ranking(on_failure="zero")))[3] == 0.0

    async def test_under_the_error_policy_the_problem_counts_failed_verdicts(self, serve: Serve) -> None:
        http = await serve(ScriptedEngine(failing_for(5)))
        problem = (await http.post("/v1/rewards", json=ranking(on_failure="error"))).json()
        assert "8 of 20 verdicts failed (8 truncated_input)" in problem["detail"]

    async def test_a_failed_response_is_the_only_unscored_one_under_the_pivot_schedule(self, serve: Serve) -> None:
        answer = await rewards(await serve(ScriptedEngine(by_quality)), ranking(schedule="pivot"))
        degrees = [len(response.verdicts) for response in answer.groups[0].responses]
        other = TEXTS[degrees.index(1)]
        http = await serve(ScriptedEngine(failing_for(int(other[-2]))))
        statuses = [one.status for one in (await rewards(http, ranking(schedule="pivot"))).groups[0].responses]
        assert statuses.count("unscored") == 1
        assert statuses[TEXTS.index(other)] == "unscored"

    async def test_at_the_deadline_comparisons_of_later_rounds_time_out_too(self, serve: Serve) -> None:
        engine = GatedEngine()
        http = await serve(engine)
        asking = asyncio.create_task(rewards(http, ranking(schedule="swiss", deadline_s=30.0)))
        await engine.busy()
        advance_time(60.0)
        engine.release(100)
        answer = await asking
        assert found(answer) == [None] * 5
        told = answer.groups[0].ranking
        assert told is not None
        assert told.pairs == 6
        assert told.failed > 0
        kinds = {
            verdict.failure.kind for one in answer.groups[0].responses for verdict in one.verdicts if verdict.failure
        }
        assert kinds == {"timeout"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (ranking("alone"), "groups.0 has 1 responses: send 2 to 512 in one group"),
        (ranking(rounds=2), "schedule 'all_pairs' has one round; leave out rounds"),
        (ranking(judging={"votes": 3}), "leave out judging.votes"),
        (ranking(judging={"truncate": True}), "leave out judging.truncate"),
        (ranking(judging={"protocol": "binary"}), "it compares pairs; leave out judging.protocol"),
        (ranking(kinds=["factual"]), "leave out kinds"),
        (ranking() | {"uncertain_band": [0.4, 0.6]}, "leave out uncertain_band"),
        (ranking() | {"run": "r", "gold": {"judge": "default"}}, "leave out gold"),
        (ranking() | {"dropout": {"keep": 0.5}}, "leave out dropout"),
        (request("x", reward={"mode": "points", "schedule": "swiss"}), "compares no pairs; leave out schedule"),
    ],
)
async def test_options_that_ranking_does_not_support_are_refused_with_the_remedy(
    http: httpx2.AsyncClient, body: dict[str, Any], message: str
) -> None:
    assert message in json.dumps(checked_problem(await http.post("/v1/rewards", json=body)))


async def test_the_number_of_comparisons_is_bounded_before_anything_is_planned(serve: Serve) -> None:
    http = await serve(ScriptedEngine(by_quality), queue_calls=100)
    texts = [f"It is q1, number {number}." for number in range(30)]
    problem = (await http.post("/v1/rewards", json=ranking(*texts))).json()
    assert "makes 870 comparisons" in problem["detail"]
    assert "schedule 'swiss' or 'pivot'" in problem["detail"]
    assert (await rewards(http, ranking(*texts, schedule="pivot"))).usage.judge_calls == 58


@pytest.mark.parametrize("schedule", ["all_pairs", "swiss", "pivot"])
@pytest.mark.parametrize("on_failure", ["null", "zero", "skip"])
async def test_recomputing_repeats_the_answered_rewards(ledger: SQLLedger, schedule: str, on_failure: str) -> None:
    run = f"ranked-{next(RUNS)}"
    made = await scorer(SynchronousRecorder(ledger), failing_for(2))
    sent = ranking(schedule=schedule, on_failure=on_failure, run=run)
    sent["groups"] = [*sent["groups"], sent["groups"][0] | {"responses": TEXTS[:3]}]  # the same id, sent in parts
    answer = await score(made, sent)
    wanted = RecomputeRequest.model_validate({"run": run})
    _, *groups, _ = [part async for part in recompute(ledger, wanted, project_id=PROJECT)]
    kept = {"reward", "unpenalised", "status", "policy_applied", "dropped"}
    assert [[one.model_dump(include=kept) for one in group.responses] for group in groups] == [  # type: ignore[union-attr]
        [one.model_dump(include=kept) for one in group.responses] for group in answer.groups
    ]
    soft = RecomputeRequest.model_validate({"run": run, "reward": {"use": "probability"}})
    again = await score(made, sent | {"reward": sent["reward"] | {"use": "probability"}, "run": f"{run}-soft"})
    _, *groups, _ = [part async for part in recompute(ledger, soft, project_id=PROJECT)]
    assert [one.reward for one in groups[0].responses] == found(again)  # type: ignore[union-attr]


async def test_a_cascade_ranks_too() -> None:
    small = await support.judge(ScriptedEngine(lambda batch, call: Reply((0.5, 0.5)), weights_digest="small"))
    large = await support.judge(ScriptedEngine(by_quality, weights_digest="large"))
    cascade = CombinedJudge({"small": small, "large": large}, "cascade", CascadeRule(Band(0.3, 0.7)))
    answer = await score(Scorer(cascade, None), ranking(schedule="swiss"))  # type: ignore[arg-type]
    assert answer.judge is not None
    assert [(one.judge, one.usage.verdicts) for one in answer.judge.members] == [("small", 12), ("large", 12)]
    assert answer.usage.judge_calls == 24
    plain = await score(Scorer(large, None), ranking(schedule="swiss"))  # type: ignore[arg-type]
    assert found(answer) == found(plain)


async def test_ending_a_round_takes_a_small_part_of_the_time_of_planning_it() -> None:
    """Planning is sliced, and the end of a round is not: work on all pairs for each response would hold up others."""
    judge, deadline = await support.judge(queue_calls=10_000), await support.deadline_after()
    asked = RewardRequest.model_validate(ranking(*map(str, range(100))))
    prepared = judge.prepared_for(asked.judging, "comparison")
    rubrics = await resolve_rubrics(None, asked, PROJECT, deadline)  # type: ignore[arg-type]  # rubrics are inline
    (one,) = await plan_tournaments(judge, prepared, asked, AskedGroups.of(asked), rubrics, deadline)
    began = process_time()
    plans = await one.next_round(TimeSlicer())
    planned = process_time()
    outcomes = Outcomes({digest: JudgeResult(1.0, 0.7) for plan in plans for digest in plan.digests})
    judged = process_time()
    group = one.end_round(outcomes)
    assert process_time() - judged < (planned - began) / 4
    assert group is not None
    assert [[each.criterion for each in response.plan.pending] for response in group.responses] == [
        [f"beats_{other}" for other in range(100) if other != place] for place in range(100)
    ]
