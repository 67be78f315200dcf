"""The console's rubric pages over HTTP: search, comparison, editing, publication, aliases, retirement and import."""

import csv
import html
import io
import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.api.console.rubrics import compare, version_tree
from judge_server.scoring.rubrics import diff_words
from tests.growth import assert_linear
from tests.judge_server.api.console.pages import HOSTILE, checked, links, page, sign_in, token_of
from tests.judge_server.api.recording import post
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.support import CRITERIA, criteria, request
from trainer_client.wire import Criterion, RubricContent, RubricVersion, VersionSummary
from trainer_client.wire.problems import findings_url

TEXT = "criteria:\n  - id: fact\n    weight: 3\n    description: States that 7 is a prime number.\n"


async def send(http: httpx2.AsyncClient, path: str, *, files: Any = None, **fields: Any) -> httpx2.Response:
    """Send a form with the token of a page."""
    token = token_of(await page(http, "rubrics"))
    return await http.post(f"/console/{path}", data={"token": token} | fields, files=files)


async def publish(http: httpx2.AsyncClient, name: str, given: list[dict[str, Any]], **also: Any) -> dict[str, Any]:
    """Publish over the API, and return the version."""
    answer = await http.post(f"/v1/rubrics/{name}/versions", json={"criteria": given} | also)
    assert answer.status_code in (200, 201), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refuse_the_first(*_: Any) -> tuple[int, str]:
    """Refuse the first pattern, in place of the workers that compile patterns, which start in a second."""
    return 0, "it is no regular expression"


def reworded(text: str) -> list[dict[str, Any]]:
    """The criteria with another description of the first."""
    return [CRITERIA[0] | {"description": text}, *CRITERIA[1:]]


async def test_rubrics_are_found_by_name_tag_and_words(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "team/primes", CRITERIA, tags=["math"])
    await publish(recorded, "other/polite", [{"id": "a", "description": "Thanks the reader."}])
    for query in ({"prefix": "team/"}, {"tag": "math"}, {"q": "sieve"}):
        text = await page(recorded, "rubrics", **query)
        assert links(text, "rubric") == ["/console/rubric?reference=team%2Fprimes"]
    assert "No rubric of this project matches" in await page(recorded, "rubrics", q="nothing")
    part = await recorded.get("/console/rubrics", params={"q": "sieve"}, headers={"HX-Request": "true"})
    assert "<html" not in part.text
    assert "team/primes" in part.text


async def test_a_version_shows_criteria_lint_lineage_and_pass_rates(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA, lineage={"author": "Ada"})
    await publish(recorded, "primes", reworded("States clearly that 7 is prime."), parent=1)
    await publish(recorded, "primes", reworded("Is good."), parent=1)
    for step in range(3):
        await post(recorded, request(f"Yes {step}.", f"No {step}.", run="r", step=step, rubric="primes@1"))
    text = await page(recorded, "rubric", reference="primes@1")
    assert all(html.escape(str(each["description"])) in text for each in CRITERIA)
    assert "by <bdi>Ada</bdi>" in text
    assert re.findall(r'<li class="(d\d)', text) == ["d0", "d1", "d0"]
    verdicts = (await recorded.get("/v1/verdicts", params={"run": "r", "criterion": "fact"})).json()["verdicts"]
    scores = [each["verdict"]["score"] for each in verdicts if each["verdict"]["score"] is not None]
    (csv_href,) = links(text, r"rubric/rates\.csv")
    rows = list(csv.DictReader(io.StringIO((await recorded.get(csv_href)).text)))
    (rate,) = [float(row["pass rate"]) for row in rows if (row["criterion"], row["version"]) == ("fact", "1")]
    assert rate == pytest.approx(sum(scores) / len(scores))
    assert f"{rate:.0%}".replace("%", " %") in text
    assert "/console/run?run=r" in text
    linted = await page(recorded, "rubric", reference="primes")
    assert "&#39;good&#39; means something different" in linted
    assert f'href="{findings_url("vague")}"' in linted
    for reference in ("primes@9", "nothing", "Not a reference"):
        answer = await recorded.get("/console/rubric", params={"reference": reference})
        assert answer.status_code in (404, 422)
        checked(answer)


async def test_two_versions_are_shown_side_by_side(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA)
    changed = [*reworded("States that 7 is a prime.")[:-1], {"id": "new", "description": "Cites Euclid."}]
    await publish(recorded, "primes", changed)
    text = await page(recorded, "rubric/compare", name="primes")
    assert "1 added, 1 removed, 1 reworded, 5 unchanged" in text
    assert "<ins>a " in text.replace("<ins>a</ins><ins> </ins>", "<ins>a ")
    assert "<del>Is polite.</del>" in text
    assert "0 unchanged" not in text
    backwards = await page(recorded, "rubric/compare", **{"name": "primes", "from": "2", "to": "1"})
    assert "<ins>Is polite.</ins>" in backwards


async def test_a_text_is_previewed_and_published(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA)
    editor = await page(recorded, "rubric/edit", reference="primes@1")
    text = html.unescape(editor[editor.index("<textarea") :].partition(">")[2].partition("</textarea>")[0]).strip()
    assert "these are the criteria of" in editor
    edited = text.replace("Is polite.", "Is it good?")
    preview = checked(await send(recorded, "rubric/preview", name="primes", parent="primes@1", text=edited))
    assert "<del>polite.</del>" in preview
    assert "means something different to each reader" in preview
    done = await send(recorded, "rubric/publish", name="primes", parent="primes@1", text=edited)
    assert (done.status_code, done.headers["Location"]) == (303, "/console/rubric?reference=primes%402&done=published")
    assert "This version is published" in checked(await recorded.get(done.headers["Location"]))
    version = (await recorded.get("/v1/rubrics/primes@2")).json()
    assert (version["parent"], version["criteria"][-1]["description"]) == (1, "Is it good?")
    again = await send(recorded, "rubric/publish", name="primes", parent="primes@1", text=edited)
    assert again.headers["Location"].endswith("done=unchanged")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("new", "criteria:\n  - id: a\n", "this field is required"),
        ("new", "nothing", "unknown format"),
        ("new", "", "unknown format"),
        ("Not A Name", TEXT, "name"),
        ("new", TEXT.replace("description", "verification: {method: regex, pattern: '('}\n    description"), "pattern"),
    ],
)
async def test_an_invalid_rubric_is_refused_with_the_error_beside_its_text(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, name: str, text: str, told: str
) -> None:
    monkeypatch.setattr("judge_server.scheduling.checker.Checker.first_unusable", refuse_the_first)
    answer = await send(recorded, "rubric/publish", name=name, parent="", text=text)
    assert answer.status_code == 422
    shown = checked(answer)
    assert told in shown
    assert text.strip() in html.unescape(shown)
    assert (await recorded.get("/v1/rubrics")).json()["rubrics"] == []


async def test_an_alias_moves_only_from_the_version_that_the_page_showed(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA)
    await publish(recorded, "primes", reworded("Another."))
    done = await send(recorded, "rubric/alias", reference="primes@1", alias="production")
    assert "The alias points to this version" in checked(await recorded.get(done.headers["Location"]))
    done = await send(recorded, "rubric/alias", reference="primes@2", alias="production", expected="1")
    assert done.status_code == 303
    late = await send(recorded, "rubric/alias", reference="primes@1", alias="production", expected="1", remove="1")
    assert late.status_code == 412
    checked(late)
    assert (await recorded.get("/v1/rubrics/primes/aliases")).json()["aliases"] == {"production": 2}
    gone = await send(recorded, "rubric/alias", reference="primes@2", alias="production", expected="2", remove="1")
    assert gone.status_code == 303
    assert (await recorded.get("/v1/rubrics/primes/aliases")).json()["aliases"] == {}
    assert (await send(recorded, "rubric/alias", reference="primes", alias="x")).status_code == 422


async def test_a_version_is_retired_with_a_reason_and_restored(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA)
    assert (await send(recorded, "rubric/retirement", reference="primes@1", reason=" ")).status_code == 422
    done = await send(recorded, "rubric/retirement", reference="primes@1", reason="<b>Rewards guessing.</b>")
    assert "&lt;b&gt;Rewards guessing.&lt;/b&gt;" in checked(await recorded.get(done.headers["Location"]))
    await send(recorded, "rubric/retirement", reference="primes@1", restore="1")
    assert (await recorded.get("/v1/rubrics/primes@1")).json()["retirement"] is None


async def test_a_file_with_one_rubric_opens_in_the_editor(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "sevens", CRITERIA)
    answer = await send(recorded, "rubrics/import", files={"file": ("Sevens.yaml", TEXT.encode())})
    shown = checked(answer)
    assert 'value="sevens"' in shown
    assert "6 removed" in shown
    assert (await recorded.get("/v1/rubrics/sevens")).json()["version"] == 1


async def test_a_file_with_several_rubrics_is_published_after_a_preview(recorded: httpx2.AsyncClient) -> None:
    rows = [{"name": f"set/{name}", "criteria": [{"id": "a", "description": f"Says {name}."}]} for name in "xy"]
    content = "\n".join(map(json.dumps, rows)).encode()
    listed = checked(await send(recorded, "rubrics/import", files={"file": ("set.jsonl", content)}))
    assert "Publish 2 rubrics" in listed
    assert (await recorded.get("/v1/rubrics")).json()["rubrics"] == []
    kept = html.unescape(listed.partition('name="content" hidden>')[2].partition("</textarea>")[0]).lstrip("\n")
    done = await send(recorded, "rubrics/import", content=kept, file_name="set.jsonl")
    assert "2 rubrics published" in checked(await recorded.get(done.headers["Location"]))
    refused = await send(recorded, "rubrics/import", files={"file": ("bad.jsonl", content + b"\n{}")})
    assert refused.status_code == 422
    assert "line 3" in checked(refused)
    assert (await send(recorded, "rubrics/import", files={"file": ("", b"")})).status_code == 422
    assert (await send(recorded, "rubrics/import", files={"file": ("a.txt", b"x" * 300_000)})).status_code == 413
    assert (await send(recorded, "rubrics/import", files={"file": ("a.txt", b"x" * 5_000_000)})).status_code == 413


ADDS, SUMS, BAD = (
    {"criterion": "Adds.", "points": 1},
    {"criterion": "Sums.", "points": 1, "annotator": 7},
    {"criterion": "Is kind."},
)


def lines(*rubrics: list[dict[str, Any]]) -> bytes:
    """A file with a rubric of these criteria in each line."""
    return "".join(json.dumps({"rubrics": one}) + "\n" for one in rubrics).encode()


async def imported(http: httpx2.AsyncClient, content: bytes, name: str = "data.jsonl") -> str:
    """The page that shows a file, as text without tags."""
    shown = checked(await send(http, "rubrics/import", files={"file": (name, content)}))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", shown[shown.index("<main") :])).split())


async def test_the_page_of_a_file_counts_its_rubrics_and_says_what_of_them_is_not_kept(
    recorded: httpx2.AsyncClient,
) -> None:
    shown = await imported(recorded, lines([ADDS], [SUMS], [ADDS]))
    assert "read kept changed refused 3 2 1 0" in shown
    assert "Not kept as the file has it line 2, rubrics[0].annotator: the field is not kept" in shown
    assert "data/line-1 1 criterion data/line-2 changed 1 criterion data/line-3 1 criterion" in shown
    refused = await imported(recorded, lines([ADDS], [SUMS], *[[BAD]] * 812))
    assert "read kept changed refused 814 0 0 814" in refused
    assert refused.count("this field is required") == 1
    assert "(812 lines; first: line 3, rubrics[0].points)" in refused
    assert "adjudge rubrics import FILE --skip-bad" in refused
    assert "Not kept" not in await imported(recorded, lines([ADDS], [ADDS]))


async def test_the_editor_says_what_of_a_file_is_not_kept(recorded: httpx2.AsyncClient) -> None:
    told = "Not kept as this text has it line 1, rubrics[0].annotator: the field is not kept"
    assert told in await imported(recorded, lines([SUMS]), "sums.json")
    assert "Not kept" not in await imported(recorded, lines([ADDS]), "adds.json")


async def test_a_page_shows_the_first_hundred_problems_of_a_file(recorded: httpx2.AsyncClient) -> None:
    many = SUMS | {f"field {chr(97 + n // 26)}{chr(97 + n % 26)}": 1 for n in range(149)}
    shown = await imported(recorded, lines([many]), "many.json")
    assert shown.count("the field is not kept") == 100
    assert "and 50 more" in shown


async def test_what_a_page_cannot_import_is_refused_with_the_command_that_can(recorded: httpx2.AsyncClient) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = io.BytesIO()
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"rubrics": [[ADDS]] * 2}), parquet)
    for name, content in (("many.jsonl", lines(*[[ADDS]] * 501)), ("two.parquet", parquet.getvalue())):
        refused = await send(recorded, "rubrics/import", files={"file": (name, content)})
        assert refused.status_code == 422
        assert "adjudge rubrics import FILE" in checked(refused)


async def test_a_text_of_several_rubrics_is_no_version(recorded: httpx2.AsyncClient) -> None:
    text = json.dumps([{"rubrics": [ADDS]}, {"rubrics": [SUMS]}])
    shown = checked(await send(recorded, "rubric/preview", name="x", parent="", text=text))
    assert "the text has 2 rubrics" in shown


async def test_hostile_rubrics_are_shown_as_text(recorded: httpx2.AsyncClient) -> None:
    hostile = HOSTILE[:1500]
    await publish(recorded, "evil", [{"id": "a", "description": hostile}], lineage={"author": hostile[:190]})
    await publish(recorded, "evil", [{"id": "a", "description": "Is calm. " + hostile}])
    shown = [
        await page(recorded, "rubric", reference="evil@1"),
        await page(recorded, "rubric/compare", name="evil"),
        await page(recorded, "rubric/edit", reference="evil"),
        checked(await send(recorded, "rubric/preview", name=hostile, parent="", text=hostile)),
        checked(await send(recorded, "rubrics/import", files={"file": (hostile[:60], hostile.encode())})),
    ]
    for text in shown:
        assert "&lt;script&gt;" in text
        assert "<script>" not in text


@pytest.mark.parametrize("path", ["rubric/publish", "rubric/alias", "rubric/retirement", "rubrics/import"])
async def test_a_form_without_the_token_of_the_page_is_refused(recorded: httpx2.AsyncClient, path: str) -> None:
    await page(recorded, "rubrics")
    for token in ("", "0" * 64):
        answer = await recorded.post(f"/console/{path}", data={"token": token, "name": "x", "text": TEXT})
        assert answer.status_code == 403
        checked(answer)
    assert (await recorded.get("/v1/rubrics")).json()["rubrics"] == []


async def test_pages_respect_scopes_and_projects(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("other")
    other = await keyed.key("rubrics:write", project_id="other")
    async with keyed.client(other) as http:
        await publish(http, "secret", CRITERIA)
        text = await page(http, "rubrics")
        assert "/console/rubric/edit" in text
        assert "Drop a file here" in text
    async with keyed.client() as http:
        await sign_in(http, await keyed.key("read"))
        text = await page(http, "rubrics")
        assert "secret" not in text
        assert "Drop a file here" not in text
        assert "Playground" not in text
        for path in ("rubric?reference=secret", "rubric/compare?name=secret", "rubric/rates.csv?reference=secret"):
            assert (await http.get(f"/console/{path}")).status_code == 404
        assert (await http.get("/console/rubric/edit")).status_code == 403
        for path in ("rubric/publish", "rubric/alias", "rubric/retirement", "rubrics/import"):
            assert (await send(http, path, name="mine", text=TEXT)).status_code == 403
        revoked = await http.get("/console/rubrics", headers={"Authorization": "Bearer adj_nothing", "HX-Request": "1"})
        assert revoked.status_code == 303
    async with keyed.client() as http:
        asked = {"HX-Request": "true", "HX-Current-URL": "http://adjudge.test/console/rubrics?q=x"}
        answer = await http.get("/console/rubrics", headers=asked)
        assert answer.headers["HX-Redirect"] == "/console/sign-in?next=%2Fconsole%2Frubrics%3Fq%3Dx"
    async with keyed.client(other) as http:
        done = await send(http, "rubric/publish", name="mine", parent="", text=TEXT)
        assert done.status_code == 303
    audit = (await keyed.tenants.audit("other", subject=None, limit=1)).entries
    assert audit[0].actor == f"key {other.split('_')[1]}"


# -- comparisons and version trees


def version(criteria: list[Criterion], number: int = 1) -> RubricVersion:
    content = RubricContent(criteria=criteria)
    made = {"name": "r", "version": number, "digest": content.digest, "created_at": "2026-01-01T00:00:00Z"}
    return RubricVersion.model_validate(made | {"criteria": content.criteria})


texts = st.lists(st.sampled_from(["a", "b", "c", " ", ". "]), min_size=1).map("".join).filter(str.strip)


@given(before=st.lists(texts, min_size=1, max_size=4), after=st.lists(texts, min_size=1, max_size=4), data=st.data())
def test_both_sides_of_a_comparison_are_the_compared_texts(
    before: list[str], after: list[str], data: st.DataObject
) -> None:
    old = version(criteria(*before))
    new = version(data.draw(st.permutations(criteria(*after))), 2)
    rows = compare(old, new).rows
    assert [row.after for row in rows if row.after] == list(new.criteria)
    assert {row.id: row.before for row in rows if row.before} == {one.id: one for one in old.criteria}
    for row in rows:
        for one, pieces in zip((row.before, row.after), row.words, strict=True):
            assert "".join(piece.text for piece in pieces) == (one.description if one else "")
        if row.before and row.after:
            same = ["".join(piece.text for piece in pieces if piece.same) for pieces in row.words]
            assert same[0] == same[1]
            assert bool(row.changes) >= (row.before != row.after)


@pytest.mark.parametrize(
    ("before", "after", "shared"),
    [
        ("States that 7 is prime.", "States clearly that 7 is prime.", "States that 7 is prime."),
        ("The answer is 12 km.", "The answer is 13 km.", "The answer is  km."),
        ("a b c d e", "a x c y e", "a  c  e"),
        ("one two", "three four", " "),
        ("a a a a", "a a", "a a"),
    ],
)
def test_words_that_two_texts_share_are_told_from_others(before: str, after: str, shared: str) -> None:
    for pieces, text in zip(diff_words(before, after), (before, after), strict=True):
        assert "".join(piece.text for piece in pieces) == text
        assert "".join(piece.text for piece in pieces if piece.same) == shared


REPEATED = {
    "one word": lambda n: ("a " * n, "b " + "a " * n + "b"),
    "two words": lambda n: ("a b " * n, "b a " * n),
    "halves": lambda n: ("a b " * n, "a " * n + "b " * n),
    "other words": lambda n: (" ".join(map(str, range(n))), " ".join(map(str, range(n, 0, -1)))),
    "every other word": lambda n: (" ".join(map(str, range(n))), " ".join(f"{k} x" for k in range(n))),
    "one long word": lambda n: ("a" * n, "a" * n + "b"),
    "marks": lambda n: ("(" * n + ")", ")" + "(" * n),
}


@pytest.mark.parametrize("texts", REPEATED)
def test_comparing_two_texts_takes_time_linear_in_them(texts: str) -> None:
    def work(size: int) -> Callable[[], object]:
        before, after = REPEATED[texts](size)
        return lambda: diff_words(before, after)

    assert_linear(work, 5_000)


def test_a_comparison_of_many_pieces_shows_texts_as_a_whole() -> None:
    before, after = [" ".join(f"{k} {word}" for k in range(1800)) for word in "xy"]
    (first, second) = compare(version(criteria(before, "Short.")), version(criteria(after, "Very short."), 2)).rows
    assert [len(side) for side in first.words] == [1, 1]
    assert [len(side) for side in second.words] == [2, 2]


@given(st.lists(st.integers(0, 30), max_size=12))
def test_the_version_tree_has_each_version_once_and_after_its_parent(parents: list[int]) -> None:
    versions = [
        VersionSummary.model_validate(
            {
                "version": n + 1, "digest": "d", "criteria_count": 1, "created_at": "2026-01-01T00:00:00Z",
                "parent": parent % n + 1 if n else None,
            }
        )
        for n, parent in enumerate(parents)
    ]  # fmt: skip
    nodes = version_tree(versions[::-1])
    order = [node.version.version for node in nodes]
    assert sorted(order) == [one.version for one in versions]
    assert all(node.version.parent is None or node.version.parent in order[:place] for place, node in enumerate(nodes))
    assert sum(node.depth == 0 and node.version.parent is None for node in nodes) == bool(versions)
