"""A server of the chat API in this process that speaks as some server in the field does.

Its model is a function of the conversation: it gives probabilities, tells stories, and writes JSON for the schemas of
the contract suite. A `ServerKind` says what it refuses, with which words, and in which shape it answers.
"""

import asyncio
import gzip
import json
import math
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from tests.judge_server.engines.servers.raw_http import Raw, RawRequest, RawServer

MODEL = "judge-1"
CONTEXT_TOKENS = 600
STORY = tuple(
    re.findall(r"\w+", "Once upon a time there was an engine that wanted to answer every question it was asked")
)
VERDICTS = {"verdicts": [{"id": 1, "reason": "It is so said in the text.", "satisfied": True, "step": 1}]}

Shape = Callable[[dict[str, Any]], Any]
Refusal = tuple[int, Any]
"""A status and a body."""


def openai_error(words: str, status: int = 400, code: str | None = None) -> Refusal:
    """An error as OpenAI writes it."""
    return status, {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": code}}


def extra(*names: str) -> dict[str, Refusal]:
    """Refusals of fields by a server that permits no others, as Mistral's and other pydantic models do."""
    return {
        name: (
            422,
            {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}]},
        )
        for name in names
    }


@dataclass(frozen=True)
class ServerKind:
    """How one kind of server differs from OpenAI's.

    Attributes:
        refuses: the refusal of a request that has this field.
        refuses_value: the refusal of a request, if its body is refused for a value.
        shape: changes a completion before it is sent.
        frame: turns a completion into the bytes of the body.
        headers: of every answer.
        models: the status and body of `/models`.
        named: `?model=`, where it must be given.
        decoding: what the engine says of its decoding.
        context_tokens: of a prompt and its answer.
    """

    refuses: dict[str, Refusal] = field(default_factory=dict)
    refuses_value: Callable[[dict[str, Any]], Refusal | None] = lambda body: None
    shape: Shape = lambda completion: completion
    frame: Callable[[Any], bytes] = lambda completion: json.dumps(completion).encode()
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    models: Refusal = (200, {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "nobody"}]})
    named: str | None = None
    decoding: str = "greedy; top 20"
    context_tokens: int = CONTEXT_TOKENS


# The shapes of answers


def as_parts(completion: dict[str, Any]) -> dict[str, Any]:
    """The content as a list of parts."""
    message = completion["choices"][0]["message"]
    half = len(message["content"]) // 2
    texts = message["content"][:half], message["content"][half:]
    message["content"] = [{"type": "text", "text": text} for text in texts]
    return completion


def with_null_candidates(completion: dict[str, Any]) -> dict[str, Any]:
    """A candidate without a log-probability at each position."""
    for place in (completion["choices"][0].get("logprobs") or {}).get("content", []):
        place["top_logprobs"] = [{"token": "never", "logprob": None}, *place["top_logprobs"]]
    return completion


def without_candidates(completion: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities of the tokens written only."""
    for place in (completion["choices"][0].get("logprobs") or {}).get("content", []):
        place["top_logprobs"] = None
    return completion


def with_legacy_logprobs(completion: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities as parallel lists, as `/completions` gives them."""
    choice = completion["choices"][0]
    if choice.get("logprobs"):
        places = choice["logprobs"]["content"]
        choice["logprobs"] = {
            "tokens": [place["token"] for place in places],
            "token_logprobs": [place["logprob"] for place in places],
            "top_logprobs": [{top["token"]: top["logprob"] for top in place["top_logprobs"]} for place in places],
        }
    return completion


def with_token_ids(completion: dict[str, Any]) -> dict[str, Any]:
    """Log-probabilities by the ids of tokens, without their texts."""
    if completion["choices"][0].get("logprobs"):
        completion["choices"][0]["logprobs"] = {"tokens": [9693], "top_logprobs": [{"9693": -0.1, "2152": -2.5}]}
    return completion


def with_bytes(completion: dict[str, Any]) -> dict[str, Any]:
    """Tokens as ids, with the text in `bytes`."""
    for place in (completion["choices"][0].get("logprobs") or {}).get("content", []):
        for n, token in enumerate([place, *place["top_logprobs"]]):
            token |= {"bytes": list(token["token"].encode()), "token": f"token_id:{n}"}
    return completion


def sparse(completion: dict[str, Any]) -> dict[str, Any]:
    """Nulls wherever the API permits them, and fields that nobody else has."""
    message = completion["choices"][0]["message"]
    message |= {"refusal": None, "tool_calls": [], "function_call": None, "reasoning_content": None, "audio": None}
    completion["choices"][0]["finish_reason"] = {"stop": "eos_token", "length": "MAX_TOKENS"}[
        completion["choices"][0]["finish_reason"]
    ]
    return completion | {"error": None, "service_tier": "none", "base_resp": {"status_code": 0, "status_msg": ""}}


def chunks(completion: dict[str, Any]) -> list[dict[str, Any]]:
    """A completion as the chunks of a stream."""
    choice = completion["choices"][0]
    base = {"id": "x", "object": "chat.completion.chunk", "model": completion["model"]}
    text = choice["message"]["content"] or ""
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
    deltas += [{"delta": {"content": text[at : at + 7]}} for at in range(0, len(text), 7)]
    deltas += [
        {"delta": {}, "logprobs": {"content": [place]}} for place in (choice.get("logprobs") or {}).get("content", [])
    ]
    deltas.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    events = [base | {"choices": [{"index": 0, "finish_reason": None} | delta]} for delta in deltas]
    return [*events, base | {"choices": [], "usage": completion["usage"]}]


def streamed(content: Any) -> bytes:
    """The body of a stream, with a comment before it; errors stay JSON."""
    if "choices" not in content:
        return json.dumps(content).encode()
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks(content)]
    return "".join([": PROCESSING\n\n", *lines, "data: [DONE]\n\n"]).encode()


def ended_as_stream(content: Any) -> bytes:
    """A whole completion with the end of a stream behind it."""
    return json.dumps(content).encode() + b"\n\ndata: [DONE]\n\n"


# What servers refuse


def limit_of(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens", body.get("max_completion_tokens")))


def least(tokens: int, words: str) -> Callable[[dict[str, Any]], Refusal | None]:
    """Refuse a limit below `tokens`."""
    return lambda body: openai_error(words) if limit_of(body) < tokens else None


def newest(body: dict[str, Any]) -> Refusal | None:
    """Refuse as OpenAI's newest models do."""
    if body.get("temperature", 1) != 1:
        given = body["temperature"]
        return openai_error(
            f"Unsupported value: 'temperature' does not support {given} with this model. Only the default (1) value is "
            "supported.",
            code="unsupported_value",
        )
    if limit_of(body) < 16:
        return openai_error("Could not finish the message because max_tokens or model output limit was reached.")
    return None


def positive(body: dict[str, Any]) -> Refusal | None:
    """Refuse temperature 0."""
    wrong = body.get("temperature") == 0
    return (422, {"error": "Input validation error: `temperature` must be strictly positive"}) if wrong else None


def speechless(body: dict[str, Any]) -> Refusal | None:
    """Refuse temperature 0 and short limits, without saying why."""
    return (400, {"message": "Bad request"}) if body.get("temperature") == 0 or limit_of(body) < 2 else None


def alternating(status: int, words: str) -> Callable[[dict[str, Any]], Refusal | None]:
    """Refuse a conversation that does not begin with the user."""

    def refuse(body: dict[str, Any]) -> Refusal | None:
        return openai_error(words, status) if body["messages"][0]["role"] != "user" else None

    return refuse


def counted(body: dict[str, Any]) -> Refusal | None:
    """Take `logprobs` as a number only, of at most 5."""
    given = body.get("logprobs", 1)
    wrong = isinstance(given, bool) or "top_logprobs" in body or given > 5
    return openai_error(f"{given} is not a valid 'logprobs': give an integer from 0 to 5") if wrong else None


ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
NO_LOGPROBS = openai_error("You are not allowed to request logprobs from this model", 403)
CARD = {"id": MODEL, "object": "model", "owned_by": "nobody"}
NAMED = {"named": MODEL}

KINDS: dict[str, ServerKind] = {
    "as-specified": ServerKind(shape=sparse),
    "newest-openai": ServerKind(
        refuses={
            "max_tokens": openai_error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
                "instead."
            ),
            "logprobs": NO_LOGPROBS,
            "structured_outputs": openai_error("Unrecognized request argument supplied: structured_outputs"),
        },
        refuses_value=newest,
        decoding="at the endpoint's own temperature; text; at least 16 tokens",
    ),
    "short-limits-refused": ServerKind(
        refuses_value=least(16, "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."),
        decoding="greedy; top 20; at least 16 tokens",
    ),
    "strictly-positive": ServerKind(
        refuses_value=positive,
        shape=without_candidates,
        decoding="at the endpoint's own temperature; text",
    ),
    "ids-of-tokens": ServerKind(shape=with_token_ids, decoding="greedy; text"),
    "without-words": ServerKind(
        refuses_value=speechless, decoding="at the endpoint's own temperature; top 20; at least 2 tokens"
    ),
    "forbids-extras": ServerKind(
        refuses=extra("seed", "logprobs", "structured_outputs", "response_format", "max_completion_tokens"),
        shape=as_parts,
        decoding="greedy; text",
    ),
    "no-system-role": ServerKind(
        refuses_value=alternating(400, "System role not supported"),
        shape=with_null_candidates,
        decoding="greedy; top 20; system text in the user message",
    ),
    "template-raises": ServerKind(
        refuses_value=alternating(500, ALTERNATE),
        decoding="greedy; top 20; system text in the user message",
    ),
    "no-system-role-before-turns": ServerKind(
        refuses_value=lambda body: alternating(500, ALTERNATE)(body) if len(body["messages"]) > 2 else None,
        decoding="greedy; top 20; system text in the user message",
    ),
    "bare-list": ServerKind(
        models=(200, [CARD]),
        shape=with_legacy_logprobs,
        refuses_value=counted,
        decoding="greedy; top 5",
    ),
    "models-forbidden": ServerKind(models=openai_error("Not allowed", 403), shape=with_bytes, **NAMED),
    "models-unimplemented": ServerKind(models=(501, "not implemented"), **NAMED),
    "models-as-page": ServerKind(models=(200, "<!doctype html>"), frame=ended_as_stream, **NAMED),
    "streams": ServerKind(frame=streamed, headers={"Content-Type": "text/event-stream"}),
    "compresses": ServerKind(
        frame=lambda content: gzip.compress(json.dumps(content).encode()),
        headers={"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=latin-1"},
    ),
    "errors-in-200": ServerKind(
        refuses={
            name: (200, {"error": {"message": f"{name} is not supported", "code": 400}, "choices": None})
            for name in ("logprobs", "seed", "structured_outputs")
        },
        decoding="greedy; text",
    ),
}


# The model


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def said(body: dict[str, Any], noise: random.Random) -> list[str]:
    """The tokens of an answer."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if "structured_outputs" in body:
        return [body["structured_outputs"]["choice"][-1]]
    if schema is not None:
        labels = schema.get("properties", {}).get("answer", {}).get("enum")
        made: Any = {"answer": labels[-1]} if labels else VERDICTS
        if schema["type"] == "array":
            made = list(range(schema["minItems"]))
        return re.findall(r"\w+|\W", json.dumps(made))
    last = text_of(body["messages"][-1])
    if "no more" in last or "one word" in last or "apple" in last:
        return ["Yes"]
    return [STORY[0], *(f" {word}" for word in noise.choices(STORY, k=30))]


def complete(body: dict[str, Any], number: int, context_tokens: int = CONTEXT_TOKENS) -> dict[str, Any] | Refusal:
    """The completion of a body, or its refusal because it is too long; `number` is different for every request."""
    limit = limit_of(body)
    read = sum(len(text_of(message).split()) + 4 for message in body["messages"])
    if read + limit > context_tokens:
        words = (
            f"This model's maximum context length is {context_tokens} tokens. However, you requested {read + limit}."
        )
        return openai_error(words, code="context_length_exceeded")
    seed = body.get("seed", number if body.get("temperature") else None)
    asked = json.dumps(body["messages"])
    tops = {" yes": 0.2 + 0.4 * random.Random(asked).random(), "no": 0.2, "7": 0.1, "maybe": 0.05}
    tokens = said(body, random.Random(f"{asked} {seed}"))
    written = tokens[:limit]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(written)},
        "finish_reason": "length" if len(written) < len(tokens) else "stop",
    }
    if body.get("logprobs"):
        top = [{"token": token, "logprob": math.log(mass)} for token, mass in tops.items()]
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": -1.0, "top_logprobs": [dict(one) for one in top]} for token in written
            ]
        }
    usage = {"prompt_tokens": read, "completion_tokens": len(written), "total_tokens": read + len(written)}
    return {"id": "x", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


class DialectServer(RawServer):
    """A running server of one kind. `asked` has the body of every chat request; `kind` may be changed while it runs."""

    def __init__(self, kind: ServerKind) -> None:
        super().__init__()
        self.kind = kind
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def respond(self, request: RawRequest) -> Raw:
        """Answer as the kind does."""
        status, body = self._answer(request.target, request.body)
        more = self.kind.headers if request.target.endswith("completions") else {}
        return status, body, {"Server": "dialect"} | more

    def _answer(self, path: str, body: Any) -> tuple[int, bytes]:
        kind = self.kind
        if path == "/v1/models":
            status, content = kind.models
            return status, content.encode() if isinstance(content, str) else json.dumps(content).encode()
        if path != "/v1/chat/completions":
            return 404, b'{"detail": "Not Found"}'
        self.asked.append(body)
        refusal = next((kind.refuses[name] for name in body if name in kind.refuses), None) or kind.refuses_value(body)
        made = refusal or complete(body, len(self.asked), kind.context_tokens)
        if isinstance(made, tuple):
            status, content = made
            return status, kind.frame(content)
        return 200, kind.frame(kind.shape(made))


@asynccontextmanager
async def dialect_server(kind: ServerKind) -> AsyncIterator[DialectServer]:
    """Serve in this event loop until the block ends."""
    made = DialectServer(kind)
    made.url = f"{await made.start()}/v1"
    try:
        yield made
    finally:
        await made.close()


@contextmanager
def dialect_server_in_thread(kind: ServerKind) -> Iterator[DialectServer]:
    """Serve in another thread until the block ends, for callers with an event loop of their own."""
    ready: Future[tuple[DialectServer, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        async with dialect_server(kind) as server:
            done = asyncio.Event()
            ready.set_result((server, asyncio.get_running_loop(), done))
            await done.wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    server, loop, done = ready.result()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
