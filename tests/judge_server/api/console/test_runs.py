"""A run's page with changes at a step and a second run, and a group's page with its sort orders and pairs."""

import itertools
import re
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.api.console.charts import signed
from judge_server.api.console.groups import HeatStep, segments
from judge_server.api.console.responses import TextPart
from judge_server.api.console.run_charts import StepAxis, read_changes
from rubric_store import RubricStore
from rubric_store.ledger.rows import CriterionBucket, RunCharts, StepBucket
from tests.judge_server import support
from tests.judge_server.api.console.pages import checked, judged, links, page
from tests.judge_server.api.recording import post, recording
from tests.judge_server.support import CRITERIA, STEPPED, request


def bucket(step: int, reward: float = 0.5, last: int | None = None) -> StepBucket:
    """The figures of a step with ten responses."""
    return StepBucket(step, step if last is None else last, 1, 10, 0, 0, reward, 20, 0, 20, 0, 0, 0, {}, None)


def test_changes_at_a_step_are_the_rates_after_it_minus_those_before() -> None:
    steps = (bucket(3, 0.2), bucket(4, 0.4), bucket(5, 0.9))
    passed = {"gamed": (1, 3, 9), "same": (5, 5, 5), "lost": (8, 8, 6)}
    criteria = tuple(
        [CriterionBucket(name, i, 10, 0, n) for name, counts in passed.items() for i, n in enumerate(counts)]
    )
    found = read_changes("r", 5, RunCharts(steps, criteria, (), ()))
    assert found is not None
    assert (found.before, found.after) == ("3–4", "5")
    assert found.rewards == (pytest.approx(0.3), 0.9)
    assert [(one.criterion, one.change) for one in found.criteria] == [
        ("gamed", pytest.approx(0.7)), ("lost", pytest.approx(-0.2)), ("same", 0.0),
    ]  # fmt: skip
    gamed, lost, _ = found.criteria
    assert "outcome=passed" in gamed.href
    assert "outcome=not+passed" in lost.href
    assert read_changes("r", 6, RunCharts(steps, criteria, (), ())) is None
    assert read_changes("r", 3, RunCharts(steps, criteria, (), ())) is None


@given(st.integers(0, 10**6), st.integers(0, 500))
def test_a_label_of_an_axis_stands_below_the_middle_of_its_step(first: int, more: int) -> None:
    axis = StepAxis(first, first + more)
    for label in axis.labels:
        assert label.x == pytest.approx((axis.x(int(label.text)) + axis.x(int(label.text) + 1)) / 2)
        assert 0 < label.x < 1000


def test_columns_of_a_curve_touch_and_cover_the_axis() -> None:
    steps = (bucket(0), bucket(10), bucket(20, last=29))
    points = StepAxis(0, 29).points(steps)
    assert [round(point.left) for point in points] == [0, 333, 667]
    assert [round(point.right) for point in points] == [333, 667, 1000]
    assert all(point.left <= point.x <= point.right for point in points)


async def test_a_run_links_to_its_page_in_the_tracker_whatever_its_name(store: RubricStore, tmp_path: Path) -> None:
    name = 'math/7b "Ä"?&#'
    judge = await support.judge()
    async with recording(store, tmp_path, "http://tracker.test/?a=1&runs={run}", default=judge) as http:
        await judged(http, name)
        shown = (await http.get("/console/run", params={"run": name})).text
    assert 'href="http://tracker.test/?a=1&amp;runs=math%2F7b%20%22%C3%84%22%3F%26%23"' in shown


async def test_another_run_is_drawn_over_a_run(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, "one", steps=2)
    await judged(recorded, "two", steps=4)
    alone = await page(recorded, "run", run="one")
    both = await page(recorded, "run", run="one", **{"with": "two"})
    assert alone.count("<polyline") + 1 == both.count("<polyline")
    (swapped,) = [href for href in links(both, "run") if "with=one" in href]
    assert "steps 0 to 3" in checked(await recorded.get(swapped))
    answer = await recorded.get("/console/run", params={"run": "one", "with": "nobody"})
    assert answer.status_code == 404
    assert "nobody" in checked(answer)


async def test_the_page_of_a_run_shows_what_changed_at_a_step(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, steps=4)
    text = await page(recorded, "run", run="r", around=2)
    table = text[text.index('<table class="changes">') :]
    assert all(f"<bdi>{criterion['id']}</bdi>" in table for criterion in CRITERIA)
    (href,) = {href for href in links(table, "responses") if "criterion=fact&" in href}
    assert "first=3&last=3" in href
    assert (await recorded.get(href)).status_code == 200
    assert "nothing to compare" in await page(recorded, "run", run="r", around=400)


def cells(text: str, name: str) -> list[str]:
    """The outcomes in a row of the matrix, from left to right."""
    (row,) = re.findall(rf"<tr[^>]*><th[^>]*>(?:<a[^>]*>)?<bdi>{name}</bdi>.*?</tr>", text, re.DOTALL)
    return re.findall(r'class="mark (\w+)(?: close)?"', row)


async def group_page(http: httpx2.AsyncClient, run: str, **params: str) -> str:
    """The page of the first group of a run."""
    listed = await page(http, "responses", run=run)
    href = httpx2.URL(links(listed, "group")[0].partition("#")[0])
    return checked(await http.get(href.copy_merge_params(params)))


async def test_a_group_is_sorted_by_reward_criterion_and_difference(recorded: httpx2.AsyncClient) -> None:
    body = request(*[f"Answer {n}." for n in range(6)], run="r", on_failure="skip")
    answer = (await post(recorded, body)).json()["groups"][0]["responses"]
    by_reward = await group_page(recorded, "r", order="reward")
    shown = re.findall(r'<a href="#why-(\d+)">', by_reward)
    rewards = [answer[int(number) - 1]["reward"] for number in shown]
    assert rewards == sorted(rewards, reverse=True)
    by_process = cells(await group_page(recorded, "r", order="c1"), "process")
    assert by_process == sorted(by_process, key=["yes", "no", "failed"].index)
    differing = await group_page(recorded, "r", rows="differing")
    rows = re.findall(r'<tr(| class="differs")><th scope="row"><a', differing)
    assert rows == sorted(rows, reverse=True)
    assert await group_page(recorded, "r", order="c99", rows="x") == await group_page(
        recorded, "r", order="c98", rows="y"
    )


async def test_two_responses_are_shown_side_by_side(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("One.", "Two.", "Three.", run="r"))
    text = await group_page(recorded, "r", left="3", right="1")
    assert re.findall(r">Response (\d)", text) == ["3", "1"]
    left, right = re.findall(r'<ul class="differing".*?</ul>', text, re.DOTALL)
    names = [re.findall("<bdi>(.*?)</bdi>", side) for side in (left, right)]
    assert names[0] == names[1]
    marked = re.findall(r'<tr class="differs"><th scope="row"><a[^>]*><bdi>(.*?)</bdi>', text)
    assert marked == names[0]
    assert len(re.findall(r">Response \d", await group_page(recorded, "r", left="1", right="1"))) == 3


@pytest.mark.parametrize("use", ["verdict", "probability"])
async def test_steps_show_the_deltas_of_the_answer(recorded: httpx2.AsyncClient, use: str) -> None:
    body = request(STEPPED, "No steps.", run="r", reward={"mode": "stepwise", "use": use}, on_failure="zero")
    steps = (await post(recorded, body)).json()["groups"][0]["responses"][0]["steps"]
    text = await group_page(recorded, "r")
    told = re.findall(r'step (\d) <span class="soft">delta</span> (\S+)', text)
    assert told == [
        (str(step["number"]), "–" if step["delta"] is None else signed(step["delta"]))
        for step in steps
        if step["number"]
    ]
    assert text.count('<span class="soft">advantage</span>') == 2
    assert "### Step 2: conclude" in re.sub("<[^>]*>", "", text)


async def test_responses_sent_one_by_one_are_shown_as_a_group(recorded: httpx2.AsyncClient) -> None:
    for text in ("One.", "Two.", "Three."):
        await post(recorded, request(text, run="r", step=1))
    await post(recorded, request("Of another step.", run="r", step=2))
    other = request("Of another prompt.", run="r", step=1)
    other["groups"][0]["prompt"] = "Is 8 prime?"
    await post(recorded, other)
    text = await group_page(recorded, "r")
    assert re.findall(r">Response (\d)", text) == ["1", "2", "3"]
    assert all(said in text for said in ("One.", "Two.", "Three.", "in a request of its own"))
    assert "Of another" not in text


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=6, unique=True))
def test_segments_of_a_text_join_to_the_text(text: str, cuts: list[int]) -> None:
    steps = [
        HeatStep(number, start, end, 0.0, None, "z")
        for number, (start, end) in enumerate(itertools.pairwise(sorted(cuts)), 1)
    ]
    assert "".join(one.text for one in segments(TextPart("", text), steps)) == text


async def test_responses_that_were_sent_one_by_one_are_told_apart_by_their_requests(
    recorded: httpx2.AsyncClient,
) -> None:
    sent = [await post(recorded, request(f"Yes {n}.", run="r", step=0)) for n in range(2)]
    shown = await page(recorded, "responses", run="r")
    for answer in sent:
        assert shown.count(f'request <span class="code">{answer.json()["request_id"]}</span>') == 1
    await judged(recorded, "three", steps=1)
    assert 'request <span class="code">' not in await page(recorded, "responses", run="three")
