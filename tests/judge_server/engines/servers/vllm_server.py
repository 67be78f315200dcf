"""vLLM's chat API without a model: requests, answers and errors as in `vllm/entrypoints/openai` 0.26 to 0.33.

Texts and probabilities are drawn from a hash of the conversation, so that a conversation has the same answer whatever
it is sent with. `VllmServer.fault` makes the batch route misbehave.
"""

import asyncio
import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from judge_server.engines.scripted import Draw, fill, say
from judge_server.ports import Engine, Reply
from tests.fixtures.served_app import served
from tests.judge_server.support import batch

MODEL = "judge"
CONTEXT_TOKENS = 600
Messages = list[dict[str, Any]]


@dataclass
class VllmServer:
    """The server's state, which tests read and change while it runs.

    Attributes:
        fault: what the batch route does wrong; empty for nothing.
        has_batch_route: whether there is one; older releases have none.
        most_conversations: how many conversations a body may hold before it is too large.
        requests: the path and body of each chat request.
        sessions: the session that each chat request named.
        sleeps: whether it was started in development mode with sleep mode.
        released: the kinds of memory that it has released: `weights`, `kv_cache`.
        lost: whether the weights' content was discarded and not read again; its answers are then others.
        moves: the requests to sleep and to wake, and to load adapters.
        loads: whether it was started for adapters that are loaded at run time.
        adapters: the paths of the adapters that it has, by name.
        left: how many batch requests the client closed before their answer.
    """

    fault: str = ""
    has_batch_route: bool = True
    most_conversations: int = 1000
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    sessions: list[str | None] = field(default_factory=list)
    sleeps: bool = True
    released: set[str] = field(default_factory=set)
    lost: bool = False
    moves: list[str] = field(default_factory=list)
    loads: bool = False
    adapters: dict[str, str] = field(default_factory=dict)
    left: int = 0
    root: str = ""

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"{self.root}/v1"

    def batches(self) -> list[list[Messages]]:
        """The conversations of each request to the batch route, without those of the engine's start."""
        return [body["messages"] for path, body in self.requests if path.endswith("/batch")]

    def alone(self) -> list[Messages]:
        """The conversations that were requests of their own, without those of the engine's start."""
        return [body["messages"] for path, body in self.requests if path.endswith("/completions")]


def refusal(message: str, status: int = 400, kind: str = "BadRequestError") -> JSONResponse:
    """An error as vLLM writes it."""
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def prompt_of(messages: Messages) -> str:
    """The prompt of a conversation, with its images as they are."""
    return "".join(f"<{message['role']}>{json.dumps(message['content'])}" for message in messages)


def drawing(prompt: str) -> Draw:
    """Draw from a hash of a prompt."""
    drawn = 0

    def draw(n: int) -> int:
        nonlocal drawn
        drawn += 1
        return int.from_bytes(hashlib.sha256(f"{drawn}\0{prompt}".encode()).digest()[:8], "big") % n

    return draw


def text_of(body: dict[str, Any], first: str, draw: Draw) -> str:
    """The whole text that the model would write."""
    if choices := (body.get("structured_outputs") or {}).get("choice"):
        return str(choices[draw(len(choices))])
    if body.get("response_format"):
        return fill(json.dumps(body["response_format"]["json_schema"]["schema"]), draw, draw)
    return f"{first} {say(draw)}"


def choice_of(body: dict[str, Any], messages: Messages, index: int) -> tuple[dict[str, Any], int, int]:
    """A choice as vLLM writes it, and the number of tokens of the prompt and of the text."""
    prompt = prompt_of(messages)
    likely = drawing(prompt)(1000) / 1000
    masses = {"yes": 0.9 * likely, "no": 0.9 * (1 - likely), "7": 0.06, "The": 0.02}
    first = max(masses, key=masses.__getitem__)
    seed = f"\0{body['seed']}" if body.get("temperature") and "seed" in body else ""
    text = text_of(body, first, drawing(prompt + seed))
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    tokens = ([first, text[len(first) :]] if text == first else pieces)[: body["max_tokens"]]
    tokens = [first] if body["max_tokens"] == 1 and text.startswith(first) else tokens
    written = "".join(tokens)
    tops = [{"token": token, "logprob": math.log(p), "bytes": list(token.encode())} for token, p in masses.items() if p]
    positions = [{"token": first, "logprob": math.log(masses[first]), "bytes": None, "top_logprobs": tops}]
    positions += [{"token": token, "logprob": 0.0, "bytes": None, "top_logprobs": []} for token in tokens[1:]]
    choice = {
        "index": index,
        "message": {"role": "assistant", "content": written, "refusal": None, "tool_calls": [], "reasoning": None},
        "logprobs": {"content": positions} if body.get("logprobs") else None,
        "finish_reason": "stop" if written == text else "length",
        "stop_reason": None,
        "token_ids": list(range(len(tokens))) if body.get("return_token_ids") else None,
    }
    return choice, len(prompt) // 4 + 1, len(tokens)


def completion_of(body: dict[str, Any], conversations: list[Messages]) -> dict[str, Any] | JSONResponse:
    """The answer to a request, or the error that one of its conversations causes for all of them."""
    choices, prompt_tokens, written_tokens = [], 0, 0
    for index, messages in enumerate(conversations):
        if (tokens := len(prompt_of(messages)) // 4) + body["max_tokens"] > CONTEXT_TOKENS:
            return refusal(
                f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, your request has {tokens} "
                "input tokens. Please reduce the length of the input messages."
            )
        if "crash" in prompt_of(messages):
            return refusal("Internal server error", 500, "InternalServerError")
        choice, prompt, written = choice_of(body, messages, index)
        choices.append(choice)
        prompt_tokens += prompt
        written_tokens += written
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + written_tokens,
            "completion_tokens": written_tokens,
            "prompt_tokens_details": None,
        },
        "system_fingerprint": "vllm-0.33.0-tp1-1234",
    }


def with_fault(fault: str, answer: dict[str, Any]) -> Any:
    """The answer of the batch route with a fault in its choices."""
    choices = answer["choices"]
    match fault:
        case "reversed":
            choices.reverse()
        case "missing":
            del choices[1]
        case "doubled":
            choices.append(choices[0] | {"message": choices[1]["message"], "logprobs": choices[1]["logprobs"]})
        case "extra":
            choices.append(choices[0] | {"index": len(choices)})
        case "from one":
            for choice in choices:
                choice["index"] += 1
        case "swapped":
            choices[0]["index"], choices[1]["index"] = 1, 0
        case "nameless":
            del choices[1]["index"]
        case "erring choice":
            choices[1]["error"] = {"message": "the worker died", "code": 500}
        case "unreadable":
            choices[1]["logprobs"] = {"content": "none"}
        case "only one":
            del choices[1:]
        case "no choices":
            choices.clear()
        case "in words":
            return JSONResponse("It works!")
        case "other model":
            answer["model"] = "another"
    return answer


REFUSALS = {
    "gone": (404, "Not Found"),
    "not allowed": (405, "Method Not Allowed"),
    "not implemented": (501, "The model does not support Chat Completions API"),
    "refused": (400, "Invalid request"),
    "broken": (500, "Internal server error"),
    "overloaded": (429, "Too many requests"),
    "away": (503, "no worker"),
    "locked": (401, "Unauthorized"),
}


def app_of(server: VllmServer) -> FastAPI:
    """The application."""
    app = FastAPI(openapi_url=None)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": CONTEXT_TOKENS}
        added = [
            card | {"id": name, "root": path, "parent": MODEL, "max_model_len": None}
            for name, path in server.adapters.items()
        ]
        return {"object": "list", "data": [card, *added]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        server.requests.append((request.url.path, body))
        server.sessions.append(request.headers.get("x-session-id"))
        if not body["messages"] or not isinstance(body["messages"][0], dict):
            return refusal("1 validation error: messages.0: Input should be an object")
        if server.fault == "overloaded":
            return refusal("Too many requests", 429, "RateLimitError")
        if server.released:
            return refusal("EngineCore encountered an issue", 500, "InternalServerError")
        if body["model"] != MODEL and body["model"] not in server.adapters:
            return refusal(f"The model `{body['model']}` does not exist.", 404, "NotFoundError")
        noise = [{"role": "user", "content": "lost weights"}] if server.lost else []
        return completion_of(body, [[*noise, *weights_of(server, body), *body["messages"]]])

    @app.post("/v1/chat/completions/batch")
    async def batch(request: Request) -> Any:
        if not server.has_batch_route:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = await request.json()
        server.requests.append((request.url.path, body))
        server.sessions.append(request.headers.get("x-session-id"))
        conversations = body["messages"]
        if not conversations or not all(isinstance(messages, list) and messages for messages in conversations):
            return refusal("1 validation error: messages: Input should be a list of lists")
        if body.get("stream") or body.get("tools") or body.get("n", 1) != 1:
            return refusal("Batch chat completions do not support `n > 1`. Please set `n` to 1.")
        if len(conversations) > server.most_conversations:
            return JSONResponse("Request Entity Too Large", 413)
        if server.fault in REFUSALS:
            status, message = REFUSALS[server.fault]
            return refusal(message, status)
        if server.fault == "slow":
            while not await request.is_disconnected():  # noqa: ASYNC110 - the client leaves in another thread
                await asyncio.sleep(0.01)
            server.left += 1
        weights = weights_of(server, body)
        answer = completion_of(body, [[*weights, *messages] for messages in conversations])
        return answer if isinstance(answer, JSONResponse) else with_fault(server.fault, answer)

    if server.sleeps:
        add_sleep_routes(app, server)
    if server.loads:
        add_adapter_routes(app, server)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Any:
        count = len(prompt_of((await request.json())["messages"])) // 4
        return {"count": count, "max_model_len": CONTEXT_TOKENS, "tokens": list(range(count))}

    return app


def weights_of(server: VllmServer, body: dict[str, Any]) -> Messages:
    """What an adapter changes: the conversation that the answer is drawn from."""
    path = server.adapters.get(body["model"])
    return [] if path is None else [{"role": "user", "content": Path(path, "adapter_model.safetensors").read_text()}]


def add_adapter_routes(app: FastAPI, server: VllmServer) -> None:
    """The routes of `vllm/entrypoints/serve/lora/api_router.py`, in whose answers the errors stand at the top level."""

    @app.post("/v1/load_lora_adapter")
    async def load(request: Request) -> Any:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        server.moves.append(f"load {path}")
        if name in server.adapters:
            return refusal(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.", kind="InvalidUserInput",
            )  # fmt: skip
        if "adapter_config.json" not in os.listdir(path):
            return refusal(f"Loading lora {name} failed: No adapter found for {path}", 404, "NotFoundError")
        server.adapters[name] = path
        if server.fault == "written to":
            await asyncio.to_thread(Path(path, "adapter_model.safetensors").write_text, "changed")
        return Response(f"Success: LoRA adapter '{name}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    async def unload(request: Request) -> Any:
        name = (await request.json())["lora_name"]
        server.moves.append(f"unload {name}")
        del server.adapters[name]
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")


def add_sleep_routes(app: FastAPI, server: VllmServer) -> None:
    """The routes of `vllm/entrypoints/serve/sleep/api_router.py`, and `/collective_rpc`."""

    @app.post("/sleep")
    async def sleep(level: int = 1, mode: str = "abort") -> Response:
        server.moves.append(f"sleep {level}")
        if server.fault == "no sleep mode":
            return refusal("Sleep mode is not enabled in the model config", 500, "InternalServerError")
        server.released = {"weights", "kv_cache"}
        server.lost = level == 2
        return Response()

    @app.post("/wake_up")
    async def wake_up(tags: Annotated[list[str], Query()] = ["weights", "kv_cache"]) -> Response:  # noqa: B006
        server.moves.append(f"wake {' '.join(tags)}")
        if server.fault == "out of memory":
            return refusal("CUDA out of memory", 500, "InternalServerError")
        server.released -= set(tags)
        return Response()

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": bool(server.released)}

    @app.post("/collective_rpc")
    async def collective_rpc(request: Request) -> dict[str, Any]:
        method = (await request.json())["method"]
        server.moves.append(method)
        if "weights" not in server.released:
            server.lost = server.lost and (method != "reload_weights" or server.fault == "reads nothing")
        return {"results": [None]}


@contextmanager
def vllm_server(**options: Any) -> Iterator[VllmServer]:
    """Serve vLLM's protocol on a free port; the options are fields of `VllmServer`."""
    server = VllmServer(**options)
    with served(app_of(server)) as port:
        server.root = f"http://127.0.0.1:{port}"
        yield server


async def masses(engine: Engine) -> Any:
    """The masses in an engine's answer to a question, which is the same each time."""
    ((_, reply),) = [answer async for answer in engine.answer(batch("Is it?"))]
    assert isinstance(reply, Reply), reply
    return reply.masses
