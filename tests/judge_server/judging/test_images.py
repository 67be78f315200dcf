"""Images in prompts and responses: passed on to judges that take them, digested, priced, and refused elsewhere."""

import base64
import hashlib
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.errors import InvalidRequest
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import ANONYMOUS_CALLER
from judge_server.ledger.rows import rows_of
from judge_server.ports import IMAGE_TOKENS, Batch
from judge_server.remote.messages import ShardRequest
from judge_server.scheduling.admission import estimated_tokens
from judge_server.scoring.scorer import Scorer
from tests.judge_server import support
from tests.judge_server.ledger.judged import SynchronousRecorder, score, scorer
from tests.judge_server.support import request
from trainer_client.wire import ComparisonRequest, Message


def image(seed: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(seed.encode()).decode()}"


RED, BLUE = image("red pixels"), image("blue pixels")


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


PROMPT = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part(RED)]}]
RESPONSE = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "draw"}}]},
    {"role": "tool", "name": "draw", "content": [part(BLUE)]},
    {"role": "assistant", "content": "It is red."},
]
RUBRIC = {"criteria": [{"id": "c", "description": "Names the colour."}]}


class Endpoint(ThreadingHTTPServer):
    """A chat API server that answers yes and records its requests."""

    asked: list[dict[str, Any]]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self._answer({"data": [{"id": "seeing", "max_model_len": 8192}]} if known else {}, 200 if known else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/chat/completions"):
            self._answer({}, 404)
            return
        assert isinstance(self.server, Endpoint)
        self.server.asked.append(body)
        token = {"token": "true", "logprob": -0.1}
        likely = [token, {"token": "false", "logprob": -2.5}]
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "true"},
            "finish_reason": "stop",
        }
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{**token, "top_logprobs": likely}]}
        usage = {"prompt_tokens": 300, "completion_tokens": 1, "total_tokens": 301}
        self._answer({"id": "x", "model": "seeing", "choices": [choice], "usage": usage}, 200)

    def _answer(self, body: dict[str, Any], status: int) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def engine_of(endpoint: Endpoint, images: str = "?images=true") -> OpenAIEngine:
    return OpenAIEngine.from_url(urlsplit(f"openai+http://127.0.0.1:{endpoint.server_port}/v1{images}"))


async def test_a_judge_sees_the_images_of_the_prompt_and_of_the_response(endpoint: Endpoint) -> None:
    judge = await support.judge(engine_of(endpoint))  # type: ignore[arg-type]
    recorder = SynchronousRecorder()
    made = Scorer(judge, None, recorder)  # type: ignore[arg-type]
    body = request(RESPONSE, rubric=RUBRIC)  # type: ignore[arg-type]
    body["groups"][0]["prompt"] = PROMPT
    try:
        endpoint.asked.clear()
        answer = await score(made, body)
        assert answer.groups[0].responses[0].reward == 1.0
        again = await score(made, body)
        assert (again.usage.judge_calls, again.usage.cached) == (0, 1)
        other = json.loads(json.dumps(body).replace(BLUE, image("green pixels")))
        assert (await score(made, other)).usage.judge_calls == 1
    finally:
        await judge.close()
    (asked, *_) = endpoint.asked
    shared, first, second, question = asked["messages"][-1]["content"]
    assert [first, second] == [part(RED), part(BLUE)]
    assert shared["text"].count("[image]") == 2
    assert "result of draw (not the response's words):" in shared["text"]
    assert "Names the colour." in question["text"]
    texts = [zlib.decompress(row.body).decode() for row in rows_of(recorder.judged[:1], keep_texts=True).texts]
    assert any(f"[image sha256:{hashlib.sha256(RED.encode()).hexdigest()}]" in text for text in texts)
    assert not any("base64" in text for text in texts)


async def test_images_add_to_estimated_and_counted_tokens(endpoint: Endpoint) -> None:
    engine = engine_of(endpoint)
    await engine.start()
    plain = support.batch("Is it?")
    with_images = Batch(plain.system, plain.shared, plain.calls, (RED, BLUE))
    assert estimated_tokens(with_images) - estimated_tokens(plain) == 2 * IMAGE_TOKENS
    assert await engine.count_tokens(with_images) - await engine.count_tokens(plain) == 2 * IMAGE_TOKENS
    await engine.close()


@pytest.mark.parametrize("where", ["prompt", "response"])
async def test_a_judge_without_image_support_refuses_images(where: str) -> None:
    made = await scorer(SynchronousRecorder())
    body = request(RESPONSE if where == "response" else "Red.", rubric=RUBRIC)  # type: ignore[arg-type]
    body["groups"][0]["prompt"] = PROMPT if where == "prompt" else "What is it?"
    with pytest.raises(InvalidRequest, match=r"groups\.0: this has images, which the judge .* \?images=true"):
        await score(made, body)
    pair = {"id": "p", "prompt": PROMPT, "a": "Red.", "b": "Blue."}
    ranked = body | {"groups": [{**body["groups"][0], "responses": [*body["groups"][0]["responses"], "Blue."]}]}
    with pytest.raises(InvalidRequest, match=r"groups\.0: this has images"):
        await score(made, ranked | {"reward": {"mode": "ranking"}})
    comparison = ComparisonRequest.model_validate({"pairs": [pair]})
    with pytest.raises(InvalidRequest, match=r"pairs\.0: this has images"):
        await made.compare(comparison, request_id="r", project_id="p")
    await made.judge.close()


async def test_images_must_be_allowed_in_the_engine_url(endpoint: Endpoint) -> None:
    engine = engine_of(endpoint, "")
    assert not (await engine.start()).capabilities.images
    await engine.close()
    with pytest.raises(ValueError, match=r"images=maybe: .* valid boolean"):
        engine_of(endpoint, "?images=maybe")


async def test_a_plan_carries_its_images_to_a_judge_in_another_process() -> None:
    judge = await support.judge()
    prepared = judge.prepared(JudgingConfig("binary"))
    group = support.group(RESPONSE)  # type: ignore[arg-type]
    plan = support.plan(prepared, group, group.responses[0], support.criteria("a"))
    shard = ShardRequest.of([(plan, list(plan.planned_calls))], ANONYMOUS_CALLER, "sha256:f", 1.0)
    (sent,) = ShardRequest.model_validate_json(shard.model_dump_json()).response_plans()
    assert sent.batch == plan.batch
    assert sent.batch.images == (BLUE,)
    await judge.close()


def test_image_parts_are_separated_from_the_text() -> None:
    message = Message.model_validate(PROMPT[0])
    assert (message.content, message.images) == ("What is it?\n[image]", (RED,))
    assert Message.model_validate(message.model_dump()) == message


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (part("https://example.org/cat.png"), "data:image"),
        (part("data:text/html;base64,AAAA"), "data:image"),
        ({"type": "image_url"}, "images"),
        ({"type": "input_audio", "input_audio": {}}, "use only parts of type 'text' and 'image_url'"),
    ],
)
def test_unsupported_content_parts_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Message.model_validate({"role": "user", "content": [wrong]})
