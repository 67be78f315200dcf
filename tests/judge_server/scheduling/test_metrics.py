"""A judge's metrics: bounded labels whose series only grow, consistent sums, and the metrics page."""

import asyncio
from collections import Counter

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from judge_server.api.probes import metrics_page
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import Overloaded
from judge_server.judging.results import Caller, collect
from judge_server.ports import CallFailure, Reply
from judge_server.scheduling.metrics import NO_RUN_LABEL, OTHER_LABEL, RunTable
from judge_server.scheduling.queueing import DecayingRate
from judge_server.scoring.judge import Judge
from tests.hypothesis_examples import examples
from tests.judge_server.conftest import Serve
from tests.judge_server.support import GatedEngine, criteria, deadline_after, judge, plans, request

AB = criteria("Alpha.", "Beta.")


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def samples(page: str) -> dict[tuple[str, ...], float]:
    """Every sample of a page, by name and the values of its labels."""
    families = text_string_to_metric_families(page)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def page(of: Judge) -> dict[tuple[str, ...], float]:
    """The samples of a judge's page."""
    return samples(metrics_page({"default": of.metrics}).decode())


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1000), st.floats(0, 100)), max_size=80))
@settings(max_examples=examples(60))
def test_labels_are_bounded_series_only_grow_and_nothing_is_counted_twice(events: list[tuple[int, int, float]]) -> None:
    clock = Clock()
    table = RunTable(3, clock)
    before: dict[str, float] = {}
    gone = 0.0
    for run, tokens, seconds in events:
        clock.now += seconds
        table.add(f"run {run}", tokens, judgements=tokens)
        now = {label: row.counts["judgements"] for label, row, _ in table.rows()}
        assert len(now) <= 4
        assert all(now[label] >= count for label, count in before.items() if label in now)
        gone += sum(count for label, count in before.items() if label not in now)
        before = now
    assert sum(before.values()) + gone == sum(tokens for _, tokens, _ in events)
    shares = [share for _, _, share in table.rows()]
    assert not shares or sum(shares) == pytest.approx(1.0) or sum(shares) == 0.0


def test_the_mean_reward_of_a_run_weights_recent_rewards_more() -> None:
    clock = Clock()
    table = RunTable(1, clock)
    table.add("a", 10)
    assert [row.mean_reward for _, row, _ in table.rows()] == [None]
    table.reward("a", [0.0, 1.0])
    table.reward("b", [9.0])
    assert [row.mean_reward for _, row, _ in table.rows()] == [0.5]
    clock.now += 300.0
    table.reward("a", [-1.0])
    assert [row.mean_reward for _, row, _ in table.rows()] == [pytest.approx((0.5 - 1.0) / 2)]


def test_a_run_that_overtakes_the_least_active_one_takes_its_label() -> None:
    clock = Clock()
    table = RunTable(2, clock)
    for run in ("a", "b"):
        table.add(run, 100)
    table.add("c", 150, judgements=1)
    assert table.label_of("c") == OTHER_LABEL
    table.add("c", 100)
    assert {label for label, _, _ in table.rows()} in ({"a", "c", OTHER_LABEL}, {"b", "c", OTHER_LABEL})
    assert (table.label_of("c"), table.label_of("")) == ("c", OTHER_LABEL)


def test_the_number_of_tracked_runs_is_bounded() -> None:
    table = RunTable(2, Clock())
    for number in range(1000):
        table.add(f"run {number}", 1)
    assert len(table._candidates) <= 16


def test_requests_without_a_run_and_a_run_that_is_called_other_have_labels_too() -> None:
    table = RunTable(2, Clock())
    table.add("", 1, judgements=1)
    table.add(OTHER_LABEL, 1, judgements=1)
    assert {label for label, _, _ in table.rows()} == {NO_RUN_LABEL, OTHER_LABEL}


@given(st.floats(0.01, 1000), st.floats(0.5, 60))
@settings(max_examples=examples(40))
def test_a_decaying_rate_measures_a_steady_rate(per_second: float, half_life: float) -> None:
    clock = Clock()
    count = DecayingRate(half_life, clock)
    seconds = 6 * half_life
    steps = 400
    for _ in range(steps):
        clock.now += seconds / steps
        count.add(per_second * seconds / steps)
    assert count.per_second == pytest.approx(per_second, rel=0.1)
    clock.now += 40 * half_life
    assert count.per_second < per_second * 1e-6


async def test_verdicts_are_counted_by_outcome_and_tokens_by_run() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: Reply((0.9, 0.1), tokens_computed=7, tokens_reused=3)))
    for response in ("Yes.", "Yes.", "No."):
        await collect(made.judge(plans(made, response, of=AB), await deadline_after(), caller=Caller("llama")))
    seen = page(made)
    assert (seen["adjudge_judgements_total", "", "judged"], seen["adjudge_judgements_total", "", "cached"]) == (4, 2)
    assert (seen["adjudge_cache_lookups_total", "hit"], seen["adjudge_cache_lookups_total", "miss"]) == (2, 4)
    assert seen["adjudge_judge_calls_total",] == 4
    assert (seen["adjudge_prompt_tokens_total", "computed"], seen["adjudge_prompt_tokens_total", "reused"]) == (28, 12)
    assert seen["adjudge_run_prompt_tokens_computed_total", "llama"] == 28
    assert seen["adjudge_run_prompt_tokens_reused_total", "llama"] == 12
    assert seen["adjudge_run_judgements_total", "llama"] == 6
    assert seen["adjudge_run_share", "llama"] == pytest.approx(1.0, abs=1e-3)
    assert seen["adjudge_queue_seconds_count", "online"] == 2
    assert seen["adjudge_engine_seconds_count", "online"] == 2
    assert seen["adjudge_cache_seconds_count", "get"] == 3
    assert not [name for name, *_ in seen if name.endswith("_created")]


async def test_failures_are_counted_by_kind_and_joined_verdicts_as_joined() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: CallFailure("truncated_input", "too long")))
    await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))
    assert page(made)["adjudge_judgements_total", "truncated_input", "failed"] == 2
    engine = GatedEngine()
    made = await judge(engine)
    deadline = await deadline_after()
    two = [asyncio.create_task(collect(made.judge(plans(made, "Yes.", of=AB), deadline))) for _ in range(2)]
    await engine.busy()
    assert page(made)["adjudge_calls_at_engine",] == 2
    assert page(made)["adjudge_run_calls", OTHER_LABEL] == 2  # no request of this run has ended
    engine.release(2)
    await asyncio.gather(*two)
    seen = page(made)
    assert (seen["adjudge_judgements_total", "", "judged"], seen["adjudge_judgements_total", "", "joined"]) == (2, 2)
    assert seen["adjudge_calls_at_engine",] == seen["adjudge_calls_waiting",] == 0


async def test_refused_requests_and_their_calls_are_counted() -> None:
    engine = GatedEngine()
    made = await judge(engine, queue_calls=2)
    working = asyncio.create_task(collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after())))
    await engine.busy()
    with pytest.raises(Overloaded):
        await collect(made.judge(plans(made, "No.", of=AB), await deadline_after()))
    seen = page(made)
    assert (seen["adjudge_requests_shed_total",], seen["adjudge_calls_shed_total",]) == (1, 2)
    engine.release(2)
    await working


async def test_the_prometheus_page_agrees_with_the_usage_in_the_answers(serve: Serve) -> None:
    http = await serve()
    usage: Counter[str] = Counter()
    for run in ("a", "b", "b"):
        answer = await http.post("/v1/rewards", json=request("Yes.", "No.", run=run, priority="bulk"))
        usage.update(answer.json()["usage"])
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = samples(answer.text)
    assert seen["adjudge_judge_calls_total",] == usage["judge_calls"]
    assert seen["adjudge_prompt_tokens_total", "reused"] == usage["prompt_tokens_reused"] > 0
    assert seen["adjudge_judgements_total", "", "cached"] == usage["cached"] > 0
    assert seen["adjudge_queue_seconds_count", "bulk"] > 0


async def test_the_page_has_no_judge_metrics_while_the_judge_loads(serve: Serve) -> None:
    http: httpx2.AsyncClient = await serve(loaded=False)
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert {name for name, *_ in samples(answer.text)} == {"adjudge_chunks_in_work"}


@pytest.mark.parametrize("path", ["rewards", "verdicts", "comparisons"])
async def test_work_is_timed_by_priority_and_an_unknown_priority_is_refused(serve: Serve, path: str) -> None:
    http = await serve()
    body = request("Yes.")
    if path == "comparisons":
        body = {"pairs": [{"id": "p", "prompt": "Is 7 prime?", "a": "Yes.", "b": "No."}]}
    for priority, status in (("bulk", 200), ("urgent", 422)):
        assert (await http.post(f"/v1/{path}", json=body | {"priority": priority})).status_code == status
    seen = samples((await http.get("/metrics")).text)
    assert seen["adjudge_queue_seconds_count", "bulk"] > 0
    assert ("adjudge_queue_seconds_count", "online") not in seen


@pytest.mark.parametrize("names", [("default", "small"), ("small", "default")], ids=["default first", "default last"])
async def test_the_page_lists_all_judges_by_name_in_any_order(names: tuple[str, str]) -> None:
    judges = {name: await judge(ScriptedEngine()) for name in names}
    for name, count in (("default", 1), ("small", 2)):
        texts = [f"{name} {n}" for n in range(count)]
        await collect(judges[name].judge(plans(judges[name], *texts, of=AB), await deadline_after()))
    text = metrics_page({name: one.metrics for name, one in judges.items()}).decode()
    counted = [line for line in text.splitlines() if line.startswith("adjudge_judgements_total{")]
    of_small = [line for line in counted if 'judge="small"' in line]
    assert sum(float(line.split()[-1]) for line in of_small) == 4
    assert sum(float(line.split()[-1]) for line in counted) == 6
    assert text.count("# HELP adjudge_judgements_total") == text.count("# HELP process_resident_memory_bytes") == 1
    for one in judges.values():
        await one.close()
