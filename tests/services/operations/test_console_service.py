"""The console's pages about the service: labels that evaluate a judge, operations, judges, the ledger, and keys."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import httpx2
import pytest

from judge_server.auth.keys import CACHE_TTL_S, make_key
from rubric_store import TenantStore
from tests.fixtures.clocks import SetForwardClock
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.console.pages import checked, links, token_of
from tests.judge_server.api.console.test_labels import forms, label
from tests.services.operations.in_process import serving_within

CRITERIA = [{"id": "right", "description": "Is right."}, {"id": "brief", "description": "Is brief.", "weight": 2}]
GROUPS = [{"id": f"g{n}", "prompt": f"{n}?", "responses": [f"r{n}-{k}" for k in range(4)]} for n in range(3)]


class Served:
    """A service in this process that requires keys, whose clock is `clock`."""

    def __init__(self, transport: httpx2.ASGITransport, tenants: TenantStore, clock: SetForwardClock) -> None:
        self._transport, self.tenants, self.clock = transport, tenants, clock

    async def client(self, *scopes: str, project: str = "default", named: str = "") -> httpx2.AsyncClient:
        """Return a client with a new key."""
        made = make_key()
        await self.tenants.add_key(project, made.id, made.digest, scopes=scopes, label=named)
        headers = {"Authorization": f"Bearer {made.text}"}
        return httpx2.AsyncClient(transport=self._transport, base_url="http://localhost", headers=headers)

    def with_key(self, text: str) -> httpx2.AsyncClient:
        """Return a client with this key."""
        headers = {"Authorization": f"Bearer {text}"}
        return httpx2.AsyncClient(transport=self._transport, base_url="http://localhost", headers=headers)


@pytest.fixture
async def served(data_dir: Path, new_sqlite: NewSQLite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A service that requires keys; its engine answers by hash."""
    url = new_sqlite(data_dir / "adjudge.db")
    monkeypatch.setenv("ADJUDGE_KEYS", "required")
    tenants, clock = TenantStore(url), SetForwardClock()
    async with serving_within(clock=clock) as transport:
        yield Served(transport, tenants, clock)
    await tenants.close()


async def judged(http: httpx2.AsyncClient, run: str = "r") -> None:
    """Judge groups, and wait until the ledger has them."""
    body = {"rubric": {"criteria": CRITERIA}, "groups": GROUPS, "run": run, "step": 3}
    answer = await http.post("/v1/rewards", json=body)
    assert answer.status_code == 200, answer.text
    async with asyncio.timeout(30):
        while (await http.get("/v1/ledger")).json()["waiting"]:  # noqa: ASYNC110 (another thread writes)
            await asyncio.sleep(0.01)


async def test_labels_evaluate_the_judge_and_the_judges_page_shows_the_result(served: Served) -> None:
    async with await served.client("score", "labels:write", named="Ada") as http:
        await judged(http)
        address = "/console/labels/queue?run=r"
        for number in range(20):
            (form,) = forms(checked(await http.get(address)))
            address = (await label(http, form, "yes" if number % 3 else "no")).headers["Location"]
        text = checked(await http.get("/console/labels?run=r"))
        assert "<bdi>the judge</bdi> and <bdi>Ada</bdi>" in text
        begun = await http.post("/console/labels/evaluate", data={"token": token_of(text), "run": "r"})
        assert begun.status_code == 303, begun.text
        operation = begun.headers["Location"]
        async with asyncio.timeout(60):
            while 'hx-trigger="every 2s"' in (text := checked(await http.get(operation))):  # noqa: ASYNC110 (a page)
                await asyncio.sleep(0.05)
        assert ">20</td>" in text  # verdicts
        assert "Does a probability mean what it says?" in text
        numbers = await http.get(links(text, r"operation/reliability\.csv")[0])
        counts = [int(line.split(",")[1]) for line in numbers.text.splitlines()[1:]]
        assert sum(counts) == 20
        listed = checked(await http.get("/console/operations"))
        assert operation in links(listed, "operation")
        assert "hx-trigger" not in listed
        judges = checked(await http.get("/console/judges"))
        assert operation in links(judges, "operation")
        assert 'class="plot square"' in judges


async def test_labels_written_over_rest_belong_to_the_key_and_can_be_read_back(served: Served) -> None:
    async with await served.client("score", "labels:write", named="Ada") as http:
        await judged(http)
        found = (await http.get("/v1/verdicts", params={"run": "r", "criterion": "right"})).json()["verdicts"]
        given = [{"verdict": one["id"], "met": place % 2 == 0} for place, one in enumerate(found)]
        stored = await http.put("/v1/labels", json={"run": "r", "labels": given})
        assert (stored.status_code, stored.json()["stored"]) == (200, 12), stored.text
        again = await http.put("/v1/labels", json={"run": "r", "labels": [given[0] | {"met": None}]})
        assert again.json() == stored.json() | {"stored": 0, "removed": 1}
        rows = [json.loads(line) for line in (await http.get("/v1/labels", params={"run": "r"})).text.splitlines()]
        labels = {row["responses"][place]: said for row in rows for place, said in enumerate(row["labels"]) if said}
        texts = [GROUPS[int(one["group"][1:])]["responses"][one["response"]] for one in found]
        assert labels == {text: {"right": place % 2 == 0} for place, text in enumerate(texts) if place}
        assert "<bdi>Ada</bdi>" in checked(await http.get("/console/labels?run=r"))
        unknown = [given[1] | {"met": True}, {"verdict": "A" * 31 + "=", "met": True}]
        refused = await http.put("/v1/labels", json={"run": "r", "labels": unknown})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "labels.1.verdict"
        other = await http.put("/v1/labels", json={"run": "other", "labels": given})
        assert (other.status_code, other.json()["title"]) == (404, "Unknown verdict")
    async with await served.client("score") as http:
        assert (await http.put("/v1/labels", json={"run": "r", "labels": given})).status_code == 403


async def test_a_rubrics_page_measures_how_well_it_separates_good_from_bad(served: Served) -> None:
    contains = {"method": "contains", "all_of": ["because"]}
    criteria = [{"id": "reason", "description": "Gives a reason.", "verification": contains}]
    pairs = '{"prompt": "Is 7 prime?", "good": "Yes, because.", "bad": "Yes."}\n' * 3
    async with await served.client("score", "rubrics:write") as http:
        answer = await http.post("/v1/rubrics/math/reasons/versions", json={"criteria": criteria})
        assert answer.status_code == 201, answer.text
        page = checked(await http.get("/console/rubric?reference=math/reasons"))
        (address,) = links(page, "rubric/discriminate")
        text = checked(await http.get(address))
        filled = {"token": token_of(text), "reference": "math/reasons@1"}
        refused = await http.post("/console/rubric/discriminate", data=filled | {"pairs": pairs + "{"})
        assert refused.status_code == 422
        assert "line 4" in refused.text
        assert "because" in refused.text  # the pasted text is kept
        assert (await http.post("/console/rubric/discriminate", data=filled)).status_code == 422
        begun = await http.post("/console/rubric/discriminate", data=filled, files={"file": ("p.jsonl", pairs)})
        assert begun.status_code == 303, begun.text
        operation = begun.headers["Location"]
        async with asyncio.timeout(60):
            while 'hx-trigger="every 2s"' in (text := checked(await http.get(operation))):  # noqa: ASYNC110 (a page)
                await asyncio.sleep(0.05)
        assert "Good ranks above bad <b>1.00</b> of the time, 95% interval 1.00 to 1.00." in text
        assert "tells them apart" in text
        numbers = await http.get(links(text, r"operation/separation\.csv")[0])
        row = "math/reasons@1,reason,1.0,0.0,1.0,6,0,0.205"
        assert numbers.text.splitlines()[1].startswith(row)
        assert numbers.text.splitlines()[1].endswith(",Gives a reason.")
        assert operation in links(checked(await http.get(address)), "operation")
    async with await served.client("read") as http:
        assert not links(checked(await http.get("/console/rubric?reference=math/reasons")), "rubric/discriminate")
        assert (await http.get(address)).status_code == 403


async def test_empty_pages_show_the_command_to_run_next(served: Served) -> None:
    async with await served.client("score") as http:
        for path, command in (
            ("operations", "adjudge operations submit"),
            ("judges", "adjudge operations submit evaluate_judge"),
            ("ledger", "examples/quickstart.py"),
        ):
            assert command in checked(await http.get(f"/console/{path}"))


async def test_an_operation_can_be_cancelled_and_belongs_to_its_project(served: Served) -> None:
    await served.tenants.create_project("other")
    async with await served.client("score") as http:
        body = {"kind": "score", "rubric": {"criteria": CRITERIA}, "groups": GROUPS}
        id_ = (await http.post("/v1/operations", json=body)).json()["id"]
        text = checked(await http.get("/console/operation", params={"id": id_}))
        form = {"token": token_of(text), "id": id_, "do": "cancel"}
        assert (await http.post("/console/operation", data=form)).status_code == 303
        state = (await http.get(f"/v1/operations/{id_}")).json()["state"]
        assert state in ("cancelled", "done")
        assert (await http.post("/console/operation", data=form | {"do": "wait"})).status_code == 422
    async with await served.client("score", project="other") as http:
        assert id_ not in checked(await http.get("/console/operations"))
        assert (await http.get("/console/operation", params={"id": id_})).status_code == 404
        token = token_of(checked(await http.get("/console/operations")))
        assert (await http.post("/console/operation", data=form | {"token": token})).status_code == 404
    async with await served.client("read") as http:
        token = token_of(checked(await http.get("/console/operations")))
        assert (await http.post("/console/operation", data=form | {"token": token})).status_code == 403


async def test_totals_of_judges_require_a_key_for_all_projects(served: Served) -> None:
    async with await served.client("score") as http:
        await judged(http)
        text = checked(await http.get("/console/judges"))
        assert "ready" in text
        assert "24 judged" not in text
    async with await served.client("read", "metrics") as http:
        assert "24 judged" in checked(await http.get("/console/judges"))


async def test_the_ledger_is_filtered_and_paginated(served: Served) -> None:
    async with await served.client("score") as http:
        await judged(http)
        first = await http.get("/console/ledger")
        assert first.headers["Location"] == "/console/ledger?run=r"
        rows = {
            (one["group"], one["response"], one["verdict"]["criterion"]): one["verdict"]
            for one in (await http.get("/v1/verdicts", params={"run": "r", "limit": 500})).json()["verdicts"]
        }

        async def shown(**filters: str) -> int:
            text = checked(await http.get("/console/ledger", params={"run": "r"} | filters))
            return len(links(text, "group"))

        passed = sum(one["score"] == 1.0 for one in rows.values())
        assert await shown() == len(rows) == 24
        assert await shown(criterion="right") == 12
        assert (await shown(outcome="passed"), await shown(outcome="not passed")) == (passed, 24 - passed)
        assert (await shown(outcome="failed"), await shown(failure="timeout"), await shown(step="4")) == (0, 0, 0)
        assert await shown(step="3", criterion="brief", outcome="passed") <= 12
        for wrong in ({"outcome": "maybe"}, {"failure": "mood"}, {"step": "x"}, {"after": "x"}):
            assert (await http.get("/console/ledger", params={"run": "r"} | wrong)).status_code == 422
        assert (await http.get("/console/ledger?run=none")).status_code == 404
        for _ in range(3):
            await judged(http, run="long")
        text, seen = checked(await http.get("/console/ledger?run=long")), 0
        while True:
            seen += len(links(text, "group"))
            following = re.search(r'href="([^"]+)" rel="next"', text)
            if following is None:
                break
            text = checked(await http.get(html.unescape(following[1])))
        assert seen == 72


# -- keys


async def test_an_administrator_creates_a_key_that_works_until_it_is_revoked(served: Served) -> None:
    async with await served.client("admin") as http:
        token = token_of(checked(await http.get("/console/keys")))
        fields = {"token": token, "label": "<b>Bob</b>", "scope": ["read", "labels:write"], "days": "30"}
        text = checked(await http.post("/console/keys", data=fields))
        (key,) = re.findall(r"adj_[a-z2-7]{16}_[\w-]{43}", text)
        assert "&lt;b&gt;Bob&lt;/b&gt;" in text
        assert key not in checked(await http.get("/console/keys"))
        async with served.with_key(key) as bob:
            assert (await bob.get("/console/labels")).status_code == 200
            assert (await bob.get("/console/keys")).status_code == 403
        id_ = key.split("_")[1]
        assert f"key.created</td><td><bdi>{id_}" in checked(await http.get(f"/console/keys?subject={id_}"))
        assert (await http.post("/console/keys/revoke", data={"token": token, "id": id_})).status_code == 303
        assert "revoked" in checked(await http.get("/console/keys"))
        served.clock.ahead_s = CACHE_TTL_S
        async with served.with_key(key) as bob:
            assert (await bob.get("/v1/runs")).status_code == 401


async def test_keys_over_rest_are_listed_created_and_revoked(served: Served) -> None:
    async with await served.client("admin", named="root") as http:
        made = await http.post("/v1/keys", json={"scopes": ["score"], "label": "trainer"})
        assert made.status_code == 201
        key = made.json()
        assert key["key"].startswith(f"adj_{key['id']}_")
        assert datetime.fromisoformat(key["created_at"]).tzinfo is not None
        listed = (await http.get("/v1/keys")).json()["keys"]
        assert [(one["label"], one["scopes"]) for one in listed] == [("root", ["admin"]), ("trainer", ["score"])]
        assert key["key"] not in (await http.get("/v1/keys")).text
        revoked = await http.delete(f"/v1/keys/{key['id']}")
        assert revoked.json()["revoked_at"] is not None
        (entry, *_) = (await http.get("/v1/audit")).json()["entries"]
        assert (entry["action"], entry["actor"]) == ("key.revoked", f"key {listed[0]['id']}")
        for wrong, status in (
            ({"scopes": ["metrics"]}, 403),
            ({"scopes": []}, 422),
            ({"scopes": ["root"]}, 422),
            ({"scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}, 422),
            ({"scopes": ["read"], "expires_at": "2099-01-01T00:00:00"}, 422),
        ):
            assert (await http.post("/v1/keys", json=wrong)).status_code == status, wrong
        assert len((await http.get("/v1/keys")).json()["keys"]) == 2
    async with await served.client("score", "rubrics:write", "labels:write") as http:
        assert (await http.get("/v1/keys")).status_code == 403
        assert (await http.post("/v1/keys", json={"scopes": ["admin"]})).status_code == 403
        assert (await http.get("/console/keys")).status_code == 403


async def test_keys_of_another_project_are_neither_seen_nor_revoked(served: Served) -> None:
    await served.tenants.create_project("other")
    async with (
        await served.client("admin", named="mine") as mine,
        await served.client("admin", project="other") as other,
    ):
        (key,) = (await mine.get("/v1/keys")).json()["keys"]
        assert key["id"] not in (await other.get("/v1/keys")).text
        assert (await other.delete(f"/v1/keys/{key['id']}")).status_code == 404
        text = checked(await other.get("/console/keys"))
        assert key["id"] not in text
        sent = await other.post("/console/keys/revoke", data={"token": token_of(text), "id": key["id"]})
        assert sent.status_code == 404
        made = (await other.post("/v1/keys", json={"scopes": ["read"]})).json()
        assert made["project_id"] == "other"
        assert (await mine.get("/v1/runs")).status_code == 200


async def test_callers_without_a_key_cannot_administer_keys(data_dir: Path, new_sqlite: NewSQLite) -> None:
    new_sqlite(data_dir / "adjudge.db")
    async with (
        serving_within() as transport,
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        assert (await http.post("/v1/keys", json={"scopes": ["admin"]})).status_code == 403
        text = checked(await http.get("/console/keys"))
        assert "adjudge keys create --scope admin" in text
        assert "Create a key" not in text
        sent = await http.post("/console/keys", data={"token": token_of(text), "scope": "admin"})
        assert sent.status_code == 403
