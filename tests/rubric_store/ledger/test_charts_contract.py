"""The contract of chart figures: they follow from the rows, whichever database stores them."""

from datetime import timedelta
from statistics import fmean, pvariance
from typing import Any

import pytest

from judge_server.ports import LedgerReader
from rubric_store import SQLLedger
from rubric_store.ledger.rows import (
    CriterionBucket,
    JudgeUse,
    LedgerRows,
    MeasureBucket,
    ResponseFilter,
    RubricRate,
    RubricUse,
    RunChartQuery,
    VerdictOutcome,
)
from tests.rubric_store.ledger_rows import AT, PROJECT, RUBRIC, digest, request, request_key, rewarded, verdict

WHOLE = RunChartQuery(PROJECT, "run", criterion_ids=("c0", "c1"))


def judged(number: int, step: int | None, *rewards: float | None, groups: str = "", run: str = "run") -> LedgerRows:
    """A request with a response per reward, each with its own two verdicts."""
    names = [[f"{number}.{i}.{j}" for j in range(2)] for i in range(len(rewards))]
    return rewarded(request(number, names, step=step, run=run), *rewards, groups=groups)


async def test_steps_are_divided_into_buckets_and_summed(ledger: SQLLedger) -> None:
    read: LedgerReader = ledger
    for step in range(10):
        ledger.write(judged(step + 1, step * 3, step / 10, 0.0))
    ledger.write(judged(20, None, 1.0))
    found = await read.run_charts(WHOLE._replace(buckets=4))
    assert [(each.first, each.last, each.requests) for each in found.steps] == [
        (0, 6, 3),
        (9, 12, 2),
        (15, 18, 2),
        (21, 27, 3),
    ]
    assert [each.mean_reward for each in found.steps] == [
        pytest.approx(fmean(r for step in part for r in (step / 10, 0.0)))
        for part in ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))
    ]
    assert [each.tokens_computed for each in found.steps] == [90, 60, 60, 90]
    part = await read.run_charts(WHOLE._replace(first=3, last=9))
    assert [(each.first, each.requests) for each in part.steps] == [(3, 1), (6, 1), (9, 1)]
    assert sum(each.responses for each in part.bins) == 6


async def test_the_spread_is_computed_within_groups(ledger: SQLLedger) -> None:
    rewards = {"a": [0.0, 1.0], "b": [0.5, 0.5], "c": [0.25, 0.5], "d": [1.0]}
    given = [(name, value) for name, values in rewards.items() for value in values]
    ledger.write(judged(1, 4, *[value for _, value in given], groups="".join(name for name, _ in given)))
    (step,) = (await ledger.run_charts(WHOLE)).steps
    assert step.spread is not None
    assert (step.spread.groups, step.spread.flat) == (3, 1)
    pooled = sum(2 * pvariance(rewards[name]) for name in "abc") / 6
    assert step.spread.deviation == pytest.approx(pooled**0.5)
    ledger.write(judged(2, 5, 0.25, None))
    assert (await ledger.run_charts(WHOLE)).steps[1].spread is None


@pytest.mark.parametrize(
    ("rewards", "low", "high"),
    [
        ([0.0, 0.15, 0.3, 0.999, 1.0], 0.0, 1.0),
        ([-0.5, 0.3], -1.0, 1.0),
        ([3.0, 3.0], 3.0, 6.0),
        ([-7.3, 0.1, 2.2], -7.3, 2.2),
    ],
)
async def test_a_bin_counts_the_responses_that_its_link_selects(
    ledger: SQLLedger, rewards: list[float], low: float, high: float
) -> None:
    ledger.write(judged(1, 1, *rewards, None))
    bins = (await ledger.run_charts(WHOLE)).bins
    assert (bins[0].low, bins[-1].high, len(bins)) == (low, high, 20)
    assert sum(each.responses for each in bins) == len(rewards)
    for each in bins:
        linked = ResponseFilter(PROJECT, "run", low=each.low, high=each.high, includes_high=each is bins[-1])
        assert len(await ledger.responses(linked)) == each.responses


async def test_pass_rates_and_failures_are_by_bucket(ledger: SQLLedger) -> None:
    rows = request(1, [["a", "b"], ["c", "x"]], failed=["x"], step=1)
    ledger.write(rows._replace(verdicts=[verdict(n, score=float(n != "b")) for n in "abc"]))
    ledger.write(request(2, [["d", "e"]], step=900))
    found = await ledger.run_charts(WHOLE._replace(buckets=2))
    assert found.criteria == (
        CriterionBucket("c0", 0, 2, 0, 2),
        CriterionBucket("c0", 1, 1, 0, 1),
        CriterionBucket("c1", 0, 2, 1, 0),
        CriterionBucket("c1", 1, 1, 0, 1),
    )
    assert [each.failures for each in found.steps] == [{"timeout": 1}, {}]
    assert (await ledger.run_charts(WHOLE._replace(criterion_ids=()))).criteria == ()


async def test_the_judges_of_a_run_are_listed_with_their_steps(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1, 0.5))
    ledger.write(judged(2, 6, 0.5))
    other = judged(3, None, 0.5)
    ledger.write(other._replace(requests=[other.requests[0]._replace(fingerprint="sha256:g")]))
    assert (await ledger.run_charts(WHOLE)).judges == (
        JudgeUse("sha256:f", "m", "binary", "weighted_mean", 1, 2, 1, 6),
        JudgeUse("sha256:g", "m", "binary", "weighted_mean", 1, 1, None, None),
    )


async def test_a_missing_run_or_one_of_another_project_has_no_figures(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1, 0.5))
    for query in (WHOLE._replace(run="other"), WHOLE._replace(project_id="p2")):
        found = await ledger.run_charts(query)
        assert (found.steps, found.criteria, found.bins, found.judges) == ((), (), (), ())
    assert await ledger.responses(ResponseFilter("p2", "run")) == []
    assert await ledger.run_curves("p2", ["run"], 10) == {}


async def test_curves_of_several_runs_are_read_together(ledger: SQLLedger) -> None:
    last = 2**63 - 1
    for number, (run, step, reward) in enumerate(
        [
            ("a", 0, 0.0),
            ("a", 1, 1.0),
            ("a", 5, 0.5),
            ("b", last, None),
            ("c", 0, 0.25),
            ("c", last, 0.75),
            ("d", None, 1.0),
        ]
    ):
        ledger.write(judged(number + 1, step, reward, run=run))
    curves = await ledger.run_curves(PROJECT, ["a", "b", "c", "d"], 3)
    assert curves == {"a": (0.5, 0.5), "b": (None,), "c": (0.25, 0.75)}


async def test_runs_are_found_by_a_part_of_their_names(ledger: SQLLedger) -> None:
    for number, run in enumerate(("team/Llama-1", "team/llama-2", "other", "50%_off")):
        ledger.write(judged(number + 1, 1, 0.5, run=run))

    async def found(text: str) -> set[str | None]:
        return {run.run for run in (await ledger.runs(PROJECT, text=text)).runs}

    assert await found("LLAMA") == {"team/Llama-1", "team/llama-2"}
    assert await found("%_") == {"50%_off"}
    assert await found("nothing") == set()
    first = await ledger.runs(PROJECT, text="llama", limit=1)
    rest = await ledger.runs(PROJECT, text="llama", after=first.next_cursor)
    assert (len(rest.runs), rest.next_cursor) == (1, None)


async def test_responses_are_paged_with_all_their_votes(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b"], ["c", "x"]], votes=2, failed=["x"], step=3))
    ledger.write(judged(2, 4, 0.75, None, groups="gh"))
    whole = ResponseFilter(PROJECT, "run")
    first = await ledger.responses(whole._replace(limit=3))
    assert [(each.request.request_id, each.response.place) for each in first] == [
        ("req_1", 0),
        ("req_1", 1),
        ("req_2", 0),
    ]
    assert [(use.vote, use.failure, row and row.score) for use, row in first[1].votes] == [
        (0, None, 1.0),
        (1, "timeout", None),
    ]
    rest = await ledger.responses(whole._replace(after=(request_key(2), 0)))
    assert [each.response.place for each in rest] == [1]
    for chosen, count in (
        ({"first": 4}, 2),
        ({"last": 3}, 2),
        ({"low": 0.6}, 1),
        ({"status": "unscored"}, 1),
        ({"request": request_key(2)}, 2),
        ({"request": request_key(2), "group_id": "h"}, 1),
    ):
        assert len(await ledger.responses(whole._replace(**chosen))) == count


async def test_pass_rates_of_rubrics_are_those_of_the_latest_runs_that_used_them(ledger: SQLLedger) -> None:
    def judged_by(rubric: bytes, number: int, run: str, score: float) -> LedgerRows:
        rows = judged(number, 1, 1.0, 0.0, run=run)
        responses = [row._replace(rubric=rubric) for row in rows.responses]
        requests = [row._replace(created_at=AT + timedelta(minutes=number)) for row in rows.requests]
        verdicts = [row._replace(score=score) for row in rows.verdicts]
        return rows._replace(responses=responses, requests=requests, verdicts=verdicts)

    one, two = digest("one"), digest("two")
    ledger.write(judged_by(one, 1, "old", 1.0))
    ledger.write(judged_by(two, 2, "between", 1.0))
    ledger.write(judged_by(digest("other"), 3, "foreign", 1.0))
    ledger.write(judged_by(one, 4, "new", 0.0))
    rates = [RubricRate(one, "c0", 2, 0, 0), RubricRate(one, "c1", 2, 0, 0)]
    assert await ledger.rubric_use(PROJECT, [one], 1) == RubricUse(("new",), tuple(rates))
    both = await ledger.rubric_use(PROJECT, [one, two], 10)
    assert both.runs == ("new", "between", "old")
    assert {(rate.rubric, rate.criterion): (rate.given, rate.passed) for rate in both.rates} == {
        (one, "c0"): (4, 2),
        (one, "c1"): (4, 2),
        (two, "c0"): (2, 2),
        (two, "c1"): (2, 2),
    }
    assert await ledger.rubric_use("another", [one], 10) == RubricUse((), ())


async def test_reported_measures_are_averaged_by_bucket_and_purged_with_the_run(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1, 0.5))
    for step in range(6):
        await ledger.set_measures(PROJECT, "run", step, {"rgr/refined": 0.0, "b": 1.0})
        await ledger.set_measures(PROJECT, "run", step, {"rgr/refined": step / 8})
    await ledger.set_measures(PROJECT, "other", 0, {"rgr/refined": 1.0})
    await ledger.set_measures("p2", "run", 0, {"rgr/refined": 1.0})
    found = (await ledger.run_charts(WHOLE._replace(buckets=2, first=1))).measures
    assert found == (
        MeasureBucket("b", 1, 3, 3, 1.0),
        MeasureBucket("b", 4, 5, 2, 1.0),
        MeasureBucket("rgr/refined", 1, 3, 3, 2 / 8),
        MeasureBucket("rgr/refined", 4, 5, 2, 4.5 / 8),
    )
    ledger.purge(PROJECT, run="run")
    assert (await ledger.run_charts(WHOLE)).measures == ()
    assert len((await ledger.run_charts(WHOLE._replace(run="other"))).measures) == 1


async def test_without_the_distribution_no_figures_are_computed_from_responses(ledger: SQLLedger) -> None:
    ledger.write(judged(1, 1, 0.5, 1.0))
    whole, plain = await ledger.run_charts(WHOLE), await ledger.run_charts(WHOLE._replace(distribution=False))
    assert (plain.bins, plain.judges, plain.criteria) == ((), (), whole.criteria)
    assert [one._replace(spread=None) for one in whole.steps] == list(plain.steps)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (None, [1, 2, 3, 4]),
        ("passed", [1]),
        ("not passed", [2]),
        ("failed", [3]),
        ("uncertain", [4]),
        ("left out", [5]),
    ],
)
async def test_responses_are_found_by_the_verdict_on_a_criterion(
    ledger: SQLLedger, outcome: VerdictOutcome | None, expected: list[int]
) -> None:
    def one(number: int, **changed: Any) -> LedgerRows:
        return request(number, [[f"{number}.0", f"{number}.1"]], step=number, **changed)

    ledger.write(one(1))
    zero = one(2)
    ledger.write(zero._replace(verdicts=[row._replace(score=0.0) for row in zero.verdicts]))
    ledger.write(one(3, failed=["3.0"]))
    for number, kind in ((4, "uncertain"), (5, "left_out")):
        rows = one(number)
        uses = [row._replace(failure=kind) if row.slot == 0 else row for row in rows.uses]
        rules = [row._replace(reward_rules='{"dropout":{"keep":0.5}}') for row in rows.requests]
        ledger.write(rows._replace(uses=uses, requests=rules))
    wanted = ResponseFilter(PROJECT, "run", criterion="c0", outcome=outcome)
    found = await ledger.responses(wanted)
    if outcome is None:  # a page omits responses not judged by the criterion
        found = [one for one in found if one.request.step != 5]
    assert [one.request.step for one in found] == expected
    assert await ledger.responses(wanted._replace(criterion="c7")) == []
    assert await ledger.responses(wanted._replace(first=6, last=9)) == []
    assert await ledger.responses(wanted._replace(after=(request_key(9), 0))) == []


async def test_responses_are_selected_by_rubric_and_by_key_with_or_without_votes(ledger: SQLLedger) -> None:
    ledger.write(request(1, [["a", "b"], ["c"]]))
    ledger.write(request(2, [["d"], ["e"]]))
    everything = await ledger.responses(ResponseFilter(PROJECT, "run"))
    assert await ledger.responses(ResponseFilter(PROJECT, "run", rubric=RUBRIC)) == everything
    assert await ledger.responses(ResponseFilter(PROJECT, "run", rubric=digest("another"))) == []
    keys = ((request_key(2), 1), (request_key(1), 0), (request_key(3), 0))
    wanted = ResponseFilter(PROJECT, "run", keys=keys, limit=1)
    assert await ledger.responses(wanted) == [everything[0], everything[3]]
    assert await ledger.responses(wanted._replace(with_votes=False)) == [
        one._replace(votes=[]) for one in (everything[0], everything[3])
    ]
