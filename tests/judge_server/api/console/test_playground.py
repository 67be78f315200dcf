"""The console's playground over HTTP: an ordinary scoring request whose verdicts arrive as they are made."""

import asyncio
import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from judge_server.api.app import create_app
from judge_server.api.console.playground import PlaygroundForm, snippets
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from judge_server.ports import Batch
from rubric_store import RubricStore, RubricTexts
from tests.growth import assert_linear
from tests.judge_server import support
from tests.judge_server.api.console.pages import HOSTILE, checked, links, page, token_of
from tests.judge_server.api.console.test_rubrics import publish, refuse_the_first
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.support import CRITERIA, STEPPED
from trainer_client.wire import RewardRequest
from trainer_client.wire.tenants import Limits

RUBRIC = json.dumps({"criteria": CRITERIA})


async def ask(http: httpx2.AsyncClient, *responses: str, **fields: Any) -> httpx2.Response:
    """Fill in the playground form and send it."""
    token = token_of(await page(http, "playground"))
    given = {"prompt": "Is 7 prime?", "rubric_text": RUBRIC, "mode": "weighted_mean", "judge": "default"} | fields
    return await http.post("/console/playground", data={"token": token, "response": list(responses)} | given)


async def test_an_example_is_judged_as_the_api_judges_it(recorded: httpx2.AsyncClient) -> None:
    text = checked(await ask(recorded, "Yes.", "", "No, 7 is 2 + 5.", on_failure="skip"))
    body = {"rubric": {"criteria": CRITERIA}, "on_failure": "skip"}
    group = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "No, 7 is 2 + 5."]}
    answer = (await recorded.post("/v1/rewards", json=body | {"groups": [group]})).json()
    responses = answer["groups"][0]["responses"]
    live, _, results = text.partition('id="results"')
    assert live.count("· after") == 2 * len(CRITERIA)
    failed = sum(verdict["status"] == "failed" for each in responses for verdict in each["verdicts"])
    assert failed
    assert live.count('class="mark failed"') == failed
    assert "Done after" in live
    for each in responses:
        assert f'<span class="reward">{each["reward"]:.3f}</span>' in results
        for verdict in each["verdicts"]:
            if verdict["probability"] is not None:
                assert f"probability {verdict['probability']:.3f}" in results
            if verdict["failure"]:
                assert html.escape(verdict["failure"]["detail"].rstrip("\0")) in results
    assert results.count('class="formula"') == 2
    again = checked(await ask(recorded, "Yes.", "No, 7 is 2 + 5.", on_failure="skip"))
    assert "· cached" in again


async def test_the_request_is_recorded_and_linked(recorded: httpx2.AsyncClient) -> None:
    text = checked(await ask(recorded, "Yes."))
    (group,) = links(text, "group")
    for _ in range(2000):
        if not (await recorded.get("/v1/ledger")).json()["waiting"]:
            break
        await asyncio.sleep(0.01)
    assert "Is 7 prime?" in checked(await recorded.get(group))
    assert "playground" in await page(recorded, "runs")


async def test_a_published_rubric_can_be_picked_and_steps_are_coloured(recorded: httpx2.AsyncClient) -> None:
    await publish(recorded, "primes", CRITERIA)
    form = await page(recorded, "playground", rubric="primes@1")
    assert 'value="primes@1"' in form
    assert '<option value="primes">' in form
    text = checked(await ask(recorded, STEPPED, rubric="primes@1", rubric_text="", mode="stepwise", on_failure="skip"))
    results = text.partition('id="results"')[2]
    steps = re.findall(r'<span class="step (?:[pn]\d|z)" id="step-1-(\d)">([^<]*)</span>', results)
    assert [number for number, _ in steps] == ["1", "2"]
    assert "".join(html.unescape(part) for _, part in steps).replace("\n", "") in STEPPED.replace("\n", "")
    linked = set(re.findall(r'href="#verdict-1-(\w+)"', results))
    assert linked
    assert all(f'id="verdict-1-{name}"' in results for name in linked)
    assert all(f'id="{target}"' in results for target in re.findall(r'href="#(step-1-\d)"', results))


async def test_a_pasted_conversation_is_split_at_the_last_turn_of_the_policy(recorded: httpx2.AsyncClient) -> None:
    conversation = [
        {"role": "user", "content": "Is 7 prime?"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "divide", "arguments": "{}"}}]},
        {"role": "tool", "content": "no divisor"},
        {"role": "assistant", "content": "Yes, it is."},
    ]
    text = checked(await ask(recorded, json.dumps(conversation), prompt=""))
    results = text.partition('id="results"')[2]
    assert "Yes, it is." in results
    assert "no divisor" in results
    assert "assistant, tool calls" in results
    request = PlaygroundForm(responses=[json.dumps(conversation)], rubric="r").request(None)
    assert [message.role for message in request.groups[0].prompt] == ["user"]  # type: ignore[union-attr]
    assert len(request.groups[0].responses[0]) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "status", "told"),
    [
        ({"response": ["  "]}, 422, "write at least one response"),
        ({"prompt": ""}, 422, "write the prompt"),
        ({"rubric_text": ""}, 422, "has no rubric"),
        ({"rubric_text": "", "rubric": "nothing"}, 404, "There is no rubric"),
        ({"rubric_text": "nonsense"}, 422, "unknown format"),
        ({"mode": "outcome"}, 422, "ground_truth"),
        ({"mode": "likert", "protocol": "binary"}, 422, "does not support"),
        ({"mode": "best"}, 422, "reward.mode"),
        ({"judge": "other"}, 422, "there is no judge"),
        ({"deadline_s": "soon"}, 422, "is not a number"),
        ({"on_failure": "error", "response": ["Perhaps 3.", "Yes.", "No."]}, 502, "on_failure is"),
        ({"rubric_text": RUBRIC.replace("Is polite.", 'x"}, {"id": "p", "description": "y", "verification": '
          '{"method": "regex", "pattern": "("}, "name": "z')}, 422, "pattern"),
    ],
)  # fmt: skip
async def test_a_refused_request_returns_the_form_with_the_reason(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], status: int, told: str
) -> None:
    monkeypatch.setattr("judge_server.scheduling.checker.Checker.first_unusable", refuse_the_first)
    responses = fields.pop("response", ["Yes & no."])
    answer = await ask(recorded, *responses, **fields)
    text = checked(answer)
    assert told in html.unescape(text)
    if status == 502:  # verdicts were shown before the failure
        assert answer.status_code in (200, 502)
        return
    assert answer.status_code == status
    assert html.escape(responses[0].strip()) in text


async def test_hostile_text_is_shown_as_text(recorded: httpx2.AsyncClient) -> None:
    rubric = json.dumps({"criteria": [{"id": "a", "description": HOSTILE}]})
    text = checked(await ask(recorded, HOSTILE, prompt=HOSTILE, rubric_text=rubric, grounding=HOSTILE))
    assert text.count("&lt;script&gt;alert(1)") >= 5
    assert "<script>alert" not in text


class HeldEngine(ScriptedEngine):
    """Answers the first call, and the others once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.left = asyncio.Event(), asyncio.Event()

    async def answer(self, batch: Batch) -> Any:
        """As `ScriptedEngine`, with the later calls held back."""
        try:
            async for n, outcome in super().answer(batch):
                if n:
                    await self.go.wait()
                yield n, outcome
        finally:
            self.left.set()


class Browser:
    """A browser that submits the playground form and reads the page as it arrives."""

    def __init__(self, app: Any) -> None:
        self._app, self.page, self._gone, self._grown = app, "", asyncio.Event(), asyncio.Event()

    async def submit(self) -> None:
        transport = httpx2.ASGITransport(self._app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            fields = {"token": token_of(await page(http, "playground")), "response": "Yes.", "rubric_text": RUBRIC}
            body = urlencode(fields | {"prompt": "Is 7 prime?", "mode": "weighted_mean"}).encode()
            cookie = "; ".join(f"{one.name}={one.value}" for one in http.cookies.jar)
        received = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            for message in received:
                return message
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            self.page += message.get("body", b"").decode()
            self._grown.set()

        kind = "application/x-www-form-urlencoded"
        scope = support.http_scope("/console/playground", content_type=kind, cookie=cookie)
        await self._app(scope, receive, send)

    async def sees(self, text: str) -> None:
        while text not in self.page:
            self._grown.clear()
            await self._grown.wait()

    def leave(self) -> None:
        self._gone.set()


@pytest.mark.parametrize("leaves", [False, True])
async def test_verdicts_are_shown_as_they_are_made(store: RubricStore, leaves: bool) -> None:
    engine = HeldEngine()
    judge = await support.judge(engine)
    browser = Browser(create_app(Service(rubrics=store, rubric_texts=RubricTexts(), judges={"default": judge})))
    serving = asyncio.create_task(browser.submit())
    async with asyncio.timeout(60):
        await browser.sees("· after")
        assert "Done after" not in browser.page
        if leaves:
            browser.leave()
            await engine.left.wait()
            await serving
            assert "Done after" not in browser.page
        else:
            engine.go.set()
            await serving
            assert browser.page.count("· after") == len(CRITERIA)
            assert browser.page.rstrip().endswith("</html>")
    await judge.close()


async def test_a_request_counts_against_the_limits_of_its_key(keyed: KeyedService) -> None:
    score, read = await keyed.key("score"), await keyed.key("read")
    async with keyed.client(read) as http:
        assert (await http.get("/console/playground")).status_code == 403
        token = token_of(await page(http, "runs"))
        assert (await http.post("/console/playground", data={"token": token})).status_code == 403
    async with keyed.client(score) as http:
        assert (await http.post("/console/playground", data={"response": "Yes."})).status_code == 403
        assert (await ask(http, "Yes.")).status_code == 200
    await keyed.tenants.create_project("spent", Limits(tokens_per_day=0))
    async with keyed.client(await keyed.key("score", project_id="spent")) as http:
        answer = await ask(http, "Yes.")
        assert answer.status_code == 429
        assert "budget" in checked(answer)


def test_the_code_snippets_make_the_same_request() -> None:
    filled = PlaygroundForm(
        prompt="Is 7 'prime'?\nJSON", responses=["Yes.", 'No, "really".'], rubric_text=RUBRIC, mode="factual_override",
        rationale=True, on_failure="skip", deadline_s="30", material={"grounding": "7 is prime."},
    )  # fmt: skip
    request = filled.request(RubricTexts())
    curl, python, trl = [one.code for one in snippets(request, "http://judge:8000")]
    body = curl.partition("<<'JSON'\n")[2].removesuffix("\nJSON\n")
    assert RewardRequest.model_validate_json(body) == request.model_copy(update={"run": None})
    sent: list[dict[str, Any]] = []

    def answer(asked: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(asked.read()))
        return httpx2.Response(500)

    made = compile(
        python.replace('http://judge:8000")', 'http://judge:8000", retries=0, transport=transport)'), "", "exec"
    )
    with pytest.raises(Exception, match="500"):
        exec(made, {"transport": httpx2.MockTransport(answer)})
    assert RewardRequest.model_validate(sent[0]) == request.model_copy(update={"run": None})
    compile(trl, "", "exec")


CONVERSATION = [{"role": "user", "content": "Is 7 prime?"}, {"role": "assistant", "content": "Yes."}]
PASTED = {
    "words": lambda n: "word " * (n // 5),
    "no spaces": lambda n: "a" * n,
    "lines": lambda n: "\n" * n + "x",
    "escapes": lambda n: "\\'\"" * (n // 3),
    "messages": lambda n: json.dumps(CONVERSATION * (n // 100)),
    "lists": lambda n: "[" * 500 + "]" * 500 + " " * n,
}


@pytest.mark.parametrize("text", PASTED)
def test_writing_a_request_as_code_takes_time_linear_in_its_texts(text: str) -> None:
    def work(size: int) -> Callable[[], object]:
        request = PlaygroundForm(prompt="p", responses=[PASTED[text](size)], rubric="r").request(RubricTexts())
        return lambda: snippets(request, "http://judge:8000")

    assert_linear(work, 50_000)


def test_a_pasted_conversation_is_strict_json() -> None:
    twice = '[{"role": "user", "content": "a", "content": "b"}]'
    request = PlaygroundForm(prompt="p", responses=[twice], rubric="r").request(RubricTexts())
    assert request.groups[0].responses == (twice,)
