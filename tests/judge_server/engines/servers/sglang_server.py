"""SGLang's chat API in front of llama.cpp's server, since SGLang itself does not install without a GPU.

Requests and answers have the shapes of SGLang 0.5 (its `entrypoints/openai`): fields that it does not know are ignored,
errors are not nested, cached tokens are reported only with `--enable-cache-report`, `/tokenize` takes a prompt and no
messages, and nothing else tells about the tokenizer. The texts and probabilities are those of the real model behind it.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.judge_server.engines.openai.fixtures import MODEL

KNOWN_FIELDS = frozenset({
    "messages", "max_tokens", "max_completion_tokens", "temperature", "seed", "logprobs", "top_logprobs",
    "response_format",
})  # fmt: skip
"""The fields of a chat request that are passed on; `structured_outputs`, for one, is vLLM's."""


def error(message: str, status: int = 400, kind: str = "BadRequestError") -> JSONResponse:
    """An error as SGLang writes it."""
    return JSONResponse({"object": "error", "message": message, "type": kind, "param": None, "code": status}, status)


def usage_of(found: dict[str, Any], *, cache_report: bool) -> dict[str, Any]:
    """The usage of an answer; without the cache report, no details of the prompt's tokens."""
    prompt, written = found["prompt_tokens"], found["completion_tokens"]
    details = {"cached_tokens": found["prompt_tokens_details"]["cached_tokens"]} if cache_report else None
    counts = {"prompt_tokens": prompt, "total_tokens": prompt + written, "completion_tokens": written}
    return counts | {"prompt_tokens_details": details, "reasoning_tokens": 0}


def choice_of(found: dict[str, Any]) -> dict[str, Any]:
    """The choice of an answer."""
    message = {"role": "assistant", "content": found["message"]["content"], "reasoning_content": None}
    positions = (found.get("logprobs") or {}).get("content")
    logprobs = None if positions is None else {"content": [position_of(one) for one in positions]}
    end = found["finish_reason"]
    return {
        "index": 0,
        "message": message | {"tool_calls": None},
        "logprobs": logprobs,
        "finish_reason": end,
        "matched_stop": None if end == "length" else 151645,
    }


def position_of(found: dict[str, Any]) -> dict[str, Any]:
    """A token with the most likely tokens at its position."""
    tops = [{name: top[name] for name in ("token", "bytes", "logprob")} for top in found["top_logprobs"]]
    return {name: found[name] for name in ("token", "bytes", "logprob")} | {"top_logprobs": tops}


def sglang_app(llamacpp_url: str, api_key: str, context_tokens: int, *, cache_report: bool) -> FastAPI:
    """The server, in front of llama.cpp's server at this base URL."""
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {api_key}"}, timeout=120.0)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with http:
            yield

    app = FastAPI(openapi_url=None, lifespan=lifespan)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        card = {"id": MODEL, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": MODEL}
        return {"object": "list", "data": [card | {"parent": None, "max_model_len": context_tokens}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = {name: value for name, value in (await request.json()).items() if name in KNOWN_FIELDS}
        found = await http.post(f"{llamacpp_url}/chat/completions", json=body)
        if found.status_code != 200:
            told = found.json()["error"]
            if told.get("type") == "exceed_context_size_error":
                needed = told["n_prompt_tokens"]
                return error(
                    f"The input ({needed} tokens) is longer than the model's context length ({context_tokens} tokens)."
                )
            return error(told["message"], found.status_code)
        answer = found.json()
        return {
            "id": answer["id"],
            "object": "chat.completion",
            "created": answer["created"],
            "model": MODEL,
            "choices": [choice_of(answer["choices"][0])],
            "usage": usage_of(answer["usage"], cache_report=cache_report),
            "metadata": {"weight_version": "default"},
        }

    @app.post("/v1/completions")
    async def complete(request: Request) -> Any:
        asked = await request.json()
        body = {name: asked[name] for name in ("prompt", "max_tokens", "temperature")}
        found = (await http.post(f"{llamacpp_url}/completions", json=body)).json()
        choice = {"index": 0, "text": found["choices"][0]["text"], "logprobs": None, "finish_reason": "length"}
        return {"model": MODEL, "choices": [choice | {"matched_stop": None}], "usage": {"prompt_tokens": 3}}

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Any:
        asked = await request.json()
        if "prompt" not in asked:
            return error("1 validation error for TokenizeRequest: prompt: Field required")
        found = await http.post(f"{llamacpp_url.removesuffix('/v1')}/tokenize", json={"content": asked["prompt"]})
        tokens = found.json()["tokens"]
        return {"tokens": tokens, "count": len(tokens), "max_model_len": context_tokens}

    return app
