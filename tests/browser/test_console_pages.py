"""The console in a browser: its main path, accessibility, and the scripts that it must not run."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.service import HOSTILE

pytestmark = pytest.mark.browser

WIDE, NARROW = 1280, 400


@contextmanager
def opened(browser: Browser, width: int = WIDE, **options: Any) -> Iterator[Page]:
    """Open a page in its own context; at the end, check that it logged no error and requested no other host."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda asked: problems.append(asked.url) if not asked.url.startswith(("http://127.0.0.1:", "data:")) else None,
    )
    yield page
    context.close()
    assert problems == []


def visit_all(page: Page, address: str) -> Iterator[str]:
    """Open every page of the console, following links where possible; yield each path."""
    page.goto(f"{address}/console/runs")
    menu = page.locator("header nav a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    found = [path for path in dict.fromkeys(menu) if path.startswith("/console/")]
    run = f"/console/run?run={quote('demo/gamed', safe='')}"
    found += [
        run,
        f"{run}&around=40",
        f"{run}&with=demo/healthy&first=20",
        f"{run.replace('run?', 'run/audit?')}&against=demo/healthy",
        f"/console/run/audit?run={quote(HOSTILE[:60], safe='')}",
        "/console/responses?run=demo/gamed&first=50",
    ]
    found += ["/console/run?run=nobody", "/console/sign-in"]
    for run in ("demo/gamed", "by-steps", HOSTILE[:60]):
        page.goto(f"{address}/console/responses?run={quote(run)}")
        group = page.locator("ol.responses a").first.get_attribute("href")
        assert group is not None
        found += [group, group.replace("#", "&left=1&right=2&order=reward&rows=differing#")]
    page.goto(f"{address}{found[-2]}")
    found += [
        page.locator(f"a[href^='/console/{kind}?']").first.get_attribute("href") or "" for kind in ("rubric", "judge")
    ]
    for path in found:
        page.goto(address + path)
        yield path


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDE), ("dark", NARROW)])
def test_every_page_is_accessible_and_fits_the_screen(browser: Browser, address: str, scheme: Any, width: int) -> None:
    found: list[str] = []
    with opened_with_errors(browser, width, color_scheme=scheme) as page:
        for path in visit_all(page, address):
            for violation in Axe().run(page).response["violations"]:
                found += [f"{path}: {violation['id']} at {node['target']}" for node in violation["nodes"]]
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            found += [f"{path} is {overflow} pixels wider than the screen"] if overflow > 0 else []
    if found:
        pytest.fail("\n".join(found))


@contextmanager
def opened_with_errors(browser: Browser, width: int, **options: Any) -> Iterator[Page]:
    """Open a page that may also visit error pages, whose status the browser logs."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    yield context.new_page()
    context.close()


def follow(page: Page, link: Locator) -> None:
    """Click on a link or a form's button, and wait until the page that it leads to is loaded."""
    with page.expect_navigation():
        link.click()


def test_three_clicks_lead_to_the_gamed_criterion_and_its_examples(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/runs")
        follow(page, page.get_by_role("link", name="demo/gamed", exact=True))
        follow(page, page.get_by_role("group", name="alarms").get_by_role("link").first)
        rows = page.locator("table.changes tbody tr")
        expect(rows.first).to_contain_text("checked")
        follow(page, rows.first.get_by_role("link"))
        examples = page.locator("ol.responses li")
        assert examples.count() >= 3
        claiming = examples.filter(has_text="I have carefully checked every single step")
        assert claiming.count() >= 3
        follow(page, claiming.first.get_by_role("link"))
        expect(page.get_by_role("heading", name="Why this reward").first).to_be_visible()
        expect(page.locator("tr", has_text="The response checks its result")).to_be_visible()


def test_a_run_is_plotted_over_another_one(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/run?run=demo/gamed")
        assert page.locator("polyline.other").count() == 0
        page.get_by_label("over run").fill("demo/healthy")
        follow(page, page.get_by_role("button", name="Show"))
        expect(page.locator("polyline.other")).to_have_count(1)
        expect(page.locator(".heat td.other").first).to_have_text(re.compile(r"\d+%"))
        follow(page, page.get_by_role("link", name="demo/healthy"))
        expect(page.get_by_role("heading", level=1)).to_have_text("demo/healthy")


def test_a_bar_of_the_histogram_lists_its_responses(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/run?run=demo/gamed")
        bar = page.locator("section", has=page.locator("#histogram")).locator("svg a").last
        with page.expect_navigation():
            bar.click(position={"x": 5, "y": 190}) if bar.is_visible() else bar.dispatch_event("click")
        rewards = page.locator("ol.responses .reward").all_text_contents()
        assert rewards
        assert set(rewards) == {"1.000"}


def test_the_matrix_of_a_group_is_sorted_by_links_with_addresses(browser: Browser, address: str) -> None:
    with opened(browser, java_script_enabled=False) as page:
        page.goto(f"{address}/console/responses?run=demo/gamed&first=50&last=50")
        follow(page, page.locator("ol.responses a").first)
        follow(page, page.get_by_role("link", name="by reward"))
        rewards = [float(text) for text in page.locator("tr.rewards td").all_text_contents()]
        assert rewards == sorted(rewards, reverse=True)
        follow(page, page.get_by_role("link", name="differing first"))
        assert "order=reward" in page.url
        differs = page.locator(".matrix tbody tr:not(.rewards)").evaluate_all(
            "rows => rows.map(row => row.classList.contains('differs'))"
        )
        assert differs == sorted(differs, reverse=True)
        follow(page, page.get_by_role("link", name="unit", exact=True))
        marks = page.locator("tr", has_text="names its unit").locator(".mark").all_text_contents()
        assert marks == sorted(marks, key=lambda mark: "✗" in mark)


def test_two_responses_are_read_side_by_side(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/responses?run=by-steps")
        follow(page, page.locator("ol.responses a").first)
        page.get_by_label("Read response").select_option("1")
        page.get_by_label("beside").select_option("3")
        follow(page, page.get_by_role("button", name="Side by side"))
        expect(page.locator("section.answer")).to_have_count(2)
        boxes = [page.locator("section.answer").nth(i).bounding_box() for i in (0, 1)]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[0]["y"] == boxes[1]["y"]
        shown = [page.locator(".differing").nth(i).locator("bdi").all_text_contents() for i in (0, 1)]
        assert shown[0] == shown[1] != []
        follow(page, page.get_by_role("link", name="all responses"))
        expect(page.locator("section.answer")).to_have_count(3)


def test_steps_are_coloured_by_their_advantage(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/responses?run=by-steps")
        follow(page, page.locator("ol.responses a").first)
        first = page.locator("section.answer").first
        pieces = first.locator("pre .step")
        assert [text.split(":")[0] for text in pieces.all_text_contents()] == ["### Step 1", "### Step 2", "### Step 3"]
        assert first.locator("svg.strip rect").count() == 3
        listed = first.locator("ul.steps li").all_text_contents()
        assert re.search(r"step 1 delta (–|[+−]?\d)", " ".join(listed[0].split()))
        assert "advantage" in listed[0]


def test_markup_and_scripts_are_shown_as_text(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/responses?run={quote(HOSTILE[:60])}")
        follow(page, page.locator("ol.responses a").first)
        expect(page).to_have_title(re.compile("^Group"))
        assert page.locator("main img").count() == page.locator("main script").count() == 0
        shown = page.locator("section.answer pre").first.evaluate("node => node.textContent")
        assert shown.strip() == HOSTILE
        direction = page.locator("section.answer pre").first.evaluate("node => getComputedStyle(node).unicodeBidi")
        assert direction in ("isolate", "plaintext")


def test_no_script_runs_that_is_not_a_file_of_the_service(browser: Browser, address: str) -> None:
    with opened_with_errors(browser, WIDE) as page:
        refused: list[str] = []
        page.on("console", lambda said: refused.append(said.text) if "Content Security Policy" in said.text else None)
        page.goto(f"{address}/console/runs")
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))")
        page.evaluate("document.body.setAttribute('style', 'background: red')")
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.com/x'}))"
        )
        page.wait_for_timeout(50)
        assert page.evaluate("window.ran") is None
        assert len(refused) >= 2


def test_the_keyboard_reaches_the_content_and_the_bars(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/run?run=demo/gamed")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('svg.plot') !== null"):
                return
        raise AssertionError("the keyboard reaches no bar of the histogram")


@pytest.mark.parametrize(("scheme", "width"), [("light", WIDE), ("dark", NARROW)])
def test_a_rubric_is_measured_on_good_and_bad_responses(
    browser: Browser, address: str, scheme: Any, width: int
) -> None:
    because = {"method": "contains", "all_of": ["because"]}
    criteria = [{"id": "reason", "description": "Gives a reason.", "verification": because}]
    httpx2.post(f"{address}/v1/rubrics/math/reasons/versions", json={"criteria": criteria}).raise_for_status()
    with opened(browser, width, color_scheme=scheme) as page:
        page.goto(f"{address}/console/rubric?reference=math/reasons")
        follow(page, page.get_by_role("link", name="Does it tell good from bad?"))
        line = '{"prompt": "Is 7 prime?", "good": "Yes, because.", "bad": "Yes."}'
        page.get_by_label("Responses").fill("\n".join([line] * 3))
        assert Axe().run(page).violations_count == 0
        follow(page, page.get_by_role("button", name="Judge them"))
        expect(page.get_by_text("Good ranks above bad")).to_be_visible(timeout=120_000)
        expect(page.get_by_text("tells them apart")).to_be_attached()
        assert Axe().run(page).violations_count == 0
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


def test_a_run_with_a_critical_finding_is_marked_in_the_list(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/runs")
        gamed = page.locator("ul.runs li", has=page.get_by_role("link", name="demo/gamed", exact=True))
        expect(gamed.locator(".alarm")).to_contain_text("critical: shadow_divergence")
        healthy = page.locator("ul.runs li", has=page.get_by_role("link", name="demo/healthy", exact=True))
        expect(healthy.locator(".alarm.critical")).to_have_count(0)
        gamed.locator(".alarm").click()
        expect(page).to_have_url(re.compile("#monitors$"))


def test_the_matrix_scrolls_on_a_narrow_screen_beside_the_names_of_its_criteria(browser: Browser, address: str) -> None:
    with opened(browser, NARROW) as page:
        page.goto(f"{address}/console/responses?run=demo/gamed")
        page.locator("ol.responses a").first.click()
        matrix, name = page.locator(".matrix"), page.locator(".matrix tbody th").nth(1)
        page.set_viewport_size({"width": 320, "height": 900})
        before = name.bounding_box()
        matrix.evaluate("element => { element.scrollLeft = 1000 }")
        assert matrix.evaluate("element => element.scrollLeft") > 0
        after = name.bounding_box()
        assert before is not None
        assert after is not None
        assert after["x"] == before["x"]
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


def test_the_playground_has_an_example_to_try(browser: Browser, address: str) -> None:
    with opened(browser) as page:
        page.goto(f"{address}/console/playground")
        page.get_by_role("link", name="Fill in an example").click()
        page.get_by_role("button", name="Judge").click()
        expect(page.locator("ol.verdicts li")).to_have_count(4)
