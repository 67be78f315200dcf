"""Labels in the console and over REST: set, changed, removed and downloaded, and the scopes this takes."""

import html
import json
import re
from typing import Any

import httpx2
import pytest

from judge_server.api.console.labels import RunLabels
from judge_server.scoring.recorded import decode_cursor, encode_cursor
from rubric_store.ledger.rows import VerdictKey
from tests.judge_server.api.console.pages import HOSTILE, checked, judged, links, page, token_of
from tests.judge_server.api.recording import post, verdicts
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.support import request

LABELLED_BY_JUDGE = ("ok", "uncertain")


def forms(text: str) -> list[dict[str, str]]:
    """The fields of each label form on a page."""
    found = re.findall(r'<form class="label".*?</form>', text, re.DOTALL)
    return [
        {name: html.unescape(value) for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)}
        for form in found
    ]


def pressed(text: str) -> list[str]:
    """The buttons that are pressed."""
    return re.findall(r'value="(yes|no)" aria-pressed="true"', text)


async def label(http: httpx2.AsyncClient, form: dict[str, str], met: str, **headers: str) -> httpx2.Response:
    """Send a label form with one of its buttons."""
    return await http.post("/console/labels", data=form | {"met": met}, headers=headers)


async def group_page(http: httpx2.AsyncClient, run: str = "r") -> tuple[str, str]:
    """The address of a group and its page."""
    listed = await page(http, "responses", run=run)
    href = links(listed, "group")[0].partition("#")[0]
    return href, checked(await http.get(href))


async def test_a_verdict_is_labelled_where_it_is_shown(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, steps=1)
    href, text = await group_page(recorded)
    by_judge = [one for one in await verdicts(recorded, run="r") if one["verdict"]["method"] == "judge"]
    assert len(forms(text)) == len(by_judge)
    form = next(one for one in forms(text) if decode_cursor(one["verdict"])[1:] == (1, 2))
    answer = await label(recorded, form, "no")
    back, _, anchor = answer.headers["Location"].partition("#")
    assert (answer.status_code, back) == (303, href)
    assert f'id="{anchor}"' in text
    text = checked(await recorded.get(href))
    assert pressed(text) == ["no"]
    changed = await label(recorded, form, "yes", **{"HX-Request": "true"})
    assert pressed(changed.text) == ["yes"]
    assert forms(changed.text)[0]["token"]
    assert "<html" not in changed.text
    verdict = next(
        one["verdict"] for one in by_judge if one["response"] == 1 and one["verdict"]["criterion"] == "suggest"
    )
    if verdict["score"] is not None:
        assert f"you {'agree' if verdict['score'] == 1.0 else 'disagree'} with the judge" in changed.text
    taken_back = await label(recorded, form, "", **{"HX-Request": "true"})
    assert pressed(taken_back.text) == []
    assert pressed(checked(await recorded.get(href))) == []


async def test_labels_of_groups_that_share_an_id_keep_their_prompts(recorded: httpx2.AsyncClient) -> None:
    rubric = {"criteria": [{"id": "fact", "description": "Is right."}]}
    groups = [{"id": "same", "prompt": text, "responses": [f"{text} Yes."]} for text in ("One?", "Two?")]
    await post(recorded, request(run="r", rubric=rubric, groups=groups))
    labels = [{"verdict": one["id"], "met": True} for one in await verdicts(recorded, run="r")]
    assert (await recorded.put("/v1/labels", json={"run": "r", "labels": labels})).status_code == 200
    rows = [json.loads(line) for line in (await recorded.get("/v1/labels", params={"run": "r"})).text.splitlines()]
    assert [(row["prompt"], row["responses"]) for row in rows] == [("One?", ["One? Yes."]), ("Two?", ["Two? Yes."])]


async def test_the_queue_offers_verdict_after_verdict_until_none_is_left(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, steps=1)
    assert links(await page(recorded, "labels"), "labels/queue") == ["/console/labels/queue?run=r"]
    offered = {
        (one["response"], one["verdict"]["criterion"]): one["verdict"]["probability"]
        for one in await verdicts(recorded, run="r")
        if one["verdict"]["method"] == "judge" and one["verdict"]["status"] in LABELLED_BY_JUDGE
    }
    address, seen = "/console/labels/queue?run=r", []
    while forms(text := checked(await recorded.get(address))):
        (form,) = forms(text)
        criterion = re.search(r"criterion <bdi>(\w+)</bdi>", text)
        assert criterion is not None
        seen.append((criterion[1], offered[decode_cursor(form["verdict"])[1], criterion[1]]))
        answer = await label(recorded, form, "yes")
        address = answer.headers["Location"]
        assert len(seen) <= len(offered)
    assert len(seen) == len(offered)
    assert len({name for name, _ in seen[:4]}) >= 3, "the queue stays with one criterion"
    doubts = [abs(probability - 0.5) for _, probability in seen]
    assert doubts[0] == min(doubts)  # before there are labels
    assert "Nothing left here" in text
    assert "Take back" in text


async def test_the_last_label_of_the_queue_can_be_undone_and_a_verdict_skipped(
    recorded: httpx2.AsyncClient,
) -> None:
    await judged(recorded, steps=1)
    first = await page(recorded, "labels/queue", run="r")
    (form,) = forms(first)
    after = checked(await recorded.get((await label(recorded, form, "no")).headers["Location"]))
    assert "Labelled: not met" in after
    assert re.search(r"of 1 label on \w+; \d+ more would halve the interval", re.sub("<.*?>", "", after))
    undo = re.search(r'<form class="undo".*?</form>', after, re.DOTALL)
    assert undo is not None
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', undo[0]))
    back = await label(recorded, {name: html.unescape(value) for name, value in fields.items()}, "")
    again = checked(await recorded.get(back.headers["Location"]))
    assert forms(again)[0]["verdict"] == form["verdict"]
    assert "Labelled:" not in again
    (skip,) = [href for href in links(again, "labels/queue") if "at=1" in href]
    skipped = checked(await recorded.get(skip))
    assert forms(skipped)[0]["verdict"] != form["verdict"]
    assert "2 of " in skipped


async def test_the_queue_hides_the_verdict_of_the_judge_at_first(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, steps=1)
    text = await page(recorded, "labels/queue", run="r")
    open_part = re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)
    assert 'class="mark' in text
    assert 'class="mark' not in open_part
    assert "probability 0" not in open_part


async def test_filters_choose_what_is_offered(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, steps=2)
    text = await page(recorded, "labels/queue", run="r", criterion="fact", first=1)
    assert "<bdi>fact</bdi>" in text
    (form,) = forms(text)
    assert "criterion=fact" in form["next"]
    assert "first=1" in form["next"]
    assert "No verdict to label" in await page(recorded, "labels/queue", run="r", first=7)
    refused = await recorded.get("/console/labels/queue?run=r&why=mood")
    assert refused.status_code == 422
    assert (await recorded.get("/console/labels/queue?run=none")).status_code == 404


async def test_the_labels_of_a_run_are_a_data_set_and_show_where_the_judge_differs(
    recorded: httpx2.AsyncClient,
) -> None:
    await judged(recorded, steps=1)
    assert "No verdict of this run is labelled" in await page(recorded, "labels", run="r")
    _, text = await group_page(recorded)
    judged_now = {
        (one["response"], one["verdict"]["criterion"]): one["verdict"]["score"]
        for one in await verdicts(recorded, run="r")
    }
    differing = 0
    for form in forms(text)[:6]:
        await label(recorded, form, "yes")
    lines = [json.loads(line) for line in (await recorded.get("/v1/labels", params={"run": "r"})).text.splitlines()]
    assert [row["labels"] for row in lines] == [[dict.fromkeys(row["labels"][0], True) for row in lines]]
    assert lines[0]["responses"] == ["Yes 0."]
    for name in lines[0]["labels"][0]:
        differing += judged_now[0, name] == 0.0
    shown = await page(recorded, "labels", run="r")
    assert shown.count("people: met") == differing
    assert "adjudge calibrate run:r --judge default" in shown
    assert "adjudge probe fit" not in shown
    assert "without a key" in shown
    file = await recorded.get(links(shown, r"labels\.jsonl")[0])
    assert [json.loads(line) for line in file.text.splitlines()] == lines
    assert "attachment" in file.headers["Content-Disposition"]


async def test_the_queue_shows_hostile_text_as_text(recorded: httpx2.AsyncClient) -> None:
    criteria = [{"id": "c", "description": HOSTILE}]
    body = request(HOSTILE, run=HOSTILE[:200], step=1, rubric={"criteria": criteria})
    await post(recorded, body)
    run = HOSTILE[:200]
    text = await page(recorded, "labels/queue", run=run)
    if forms(text):  # the scripted engine may fail on it
        assert "<script>alert" not in text
        (form,) = forms(text)
        assert form["run"] == run
        assert (await label(recorded, form, "yes")).status_code == 303
    checked(await recorded.get("/console/labels"))
    checked(await recorded.get("/console/labels", params={"run": run}))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"verdict": "zz"}, 422),
        ({"met": "maybe"}, 422),
        ({"verdict": encode_cursor(VerdictKey("r", b"x" * 16, 0, 77))}, 404),
        ({"run": "other"}, 404),
        ({"token": "wrong"}, 403),
    ],
)
async def test_a_bad_form_is_refused(recorded: httpx2.AsyncClient, fields: dict[str, str], status: int) -> None:
    await judged(recorded, steps=1)
    form = forms((await group_page(recorded))[1])[0]
    answer = await recorded.post("/console/labels", data=form | {"met": "yes"} | fields)
    assert answer.status_code == status
    checked(answer)
    assert (await recorded.get("/v1/labels?run=r")).text == ""


# -- keys


async def judged_by(keyed: KeyedService, key: str) -> None:
    """Judge a group with a key, and wait until the ledger has it."""
    async with keyed.client(key) as http:
        body: dict[str, Any] = request("Yes 0.", "No 0.", run="r", step=0, on_failure="skip")
        assert (await http.post("/v1/rewards", json=body)).status_code == 200
    await keyed.recorded()


async def test_two_people_label_independently_and_their_agreement_is_shown(keyed: KeyedService) -> None:
    ada, bob = await keyed.key("labels:write", "score"), await keyed.key("labels:write")
    await judged_by(keyed, ada)
    async with keyed.client(ada) as http:
        _, text = await group_page(http)
        for number, form in enumerate(forms(text)):
            assert (await label(http, form, "yes" if number % 2 else "no")).status_code == 303
    async with keyed.client(bob) as http:
        _, text = await group_page(http)
        assert pressed(text) == []
        assert "others:" not in text
        for number, form in enumerate(forms(text)):
            answer = await label(http, form, "no" if number % 4 == 0 else "yes", **{"HX-Request": "true"})
            assert "others: " in answer.text
        n = len(forms(text))
        shown = await page(http, "labels", run="r")
    people = [f"key {key.split('_')[1]}" for key in (ada, bob)]
    row = next(row for row in re.findall(r"<tr>.*?</tr>", shown) if all(person in row for person in people))
    agreed = sum((number % 2 == 0) == (number % 4 == 0) for number in range(n))
    assert f"<td>{n}</td><td>{100 * agreed / n:.0f}%</td>" in row
    async with keyed.client(bob) as http:
        for person, wanted in zip(people, (True, True), strict=True):
            lines = (await http.get("/v1/labels", params={"run": "r", "labeller": person})).text.splitlines()
            assert bool(lines) is wanted
        assert (await http.get("/v1/labels", params={"run": "r", "labeller": "key none"})).text == ""


async def test_a_read_only_key_sees_labels_but_cannot_label(keyed: KeyedService) -> None:
    reader, person = await keyed.key("read"), await keyed.key("labels:write", "score")
    await judged_by(keyed, person)
    async with keyed.client(person) as http:
        form = forms((await group_page(http))[1])[0]
        await label(http, form, "yes")
    async with keyed.client(reader) as http:
        assert forms((await group_page(http))[1]) == []
        listed = await page(http, "labels")
        assert "adjudge keys create --scope labels:write" in listed
        assert "1 labelled verdict" in await page(http, "labels", run="r")
        assert (await label(http, form, "no")).status_code == 403
        assert (await http.get("/console/labels/queue?run=r")).status_code == 403


async def test_labels_of_another_project_cannot_be_seen_or_changed(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("other")
    mine, other = await keyed.key("labels:write"), await keyed.key("labels:write", "score", project_id="other")
    await judged_by(keyed, other)
    async with keyed.client(other) as http:
        form = forms((await group_page(http))[1])[0]
        await label(http, form, "yes")
        assert (await http.get("/v1/labels?run=r")).text != ""
    async with keyed.client(mine) as http:
        token = token_of(await page(http, "labels"))
        assert (await label(http, form | {"token": token}, "no")).status_code == 404
        assert (await http.get("/v1/labels?run=r")).text == ""
        assert (await http.get("/console/labels.jsonl?run=r")).text == ""
        assert (await http.get("/console/labels/queue?run=r")).status_code == 404
        assert "?run=r" not in await page(http, "labels")


@pytest.mark.parametrize(("labelled", "offered"), [(15, False), (16, True)])
def test_a_probe_is_offered_from_sixteen_labels_on(labelled: int, offered: bool) -> None:
    shown = RunLabels("a run", labelled, ("ada",), (), (), (), 0, None)
    assert ("adjudge probe fit 'run:a run' --judge" in shown.commands) == offered
