"""The misbehaving server's requests, its normal answers, and each way in which it goes wrong."""

import asyncio
import json
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.judge_server.engines.servers.raw_http import RawRequest

MODEL = "judge-1"
MASSES = {"Yes": 0.5, "\u2581yes": 0.125, "NO": 0.25, " maybe": 0.0625, "Well": 0.03125}
"""The candidates for the first token, as the server writes them, and their probabilities."""

SAID = ("Yes", ",", " step", " 2", ",", " since", " it", " is", " so", ".")
TOO_LONG = "This model's maximum context length is 8 tokens. However, your prompt contains 900 input tokens."
SGLANG_TOO_LONG = "Input length (900 tokens) exceeds the maximum allowed length (8 tokens)."


@dataclass
class RequestLog:
    """The requests to a server, what happened there, and how it lists its models."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    mood: str = "well"


@dataclass
class FakeServerRequest(RawRequest):
    """A request to the endpoint `/NAME`."""

    name: str
    path: str
    log: RequestLog

    @property
    def words(self) -> str:
        """The content of the last message."""
        return self.body["messages"][-1]["content"] if isinstance(self.body, dict) else ""

    def send(self, status: int, body: Any, **headers: str) -> None:
        """Answer; text is sent as it is, anything else as JSON."""
        content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = {"Content-Length": str(len(content)), "Server": "misbehaving"} | given
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.writer.write(f"HTTP/1.1 {status} It\r\n{head}\r\n".encode() + content)

    def refuse(self, words: str) -> None:
        """Answer 400 with an error as servers write it."""
        self.send(400, {"error": {"message": words, "type": "invalid_request_error", "code": None}})

    async def hang(self) -> None:
        """Wait until the client disconnects."""
        await self.reader.read()
        self.log.events.append("gone")


LEADS = {
    "led": ("<think>", "\n", "</think>", "\n", "<score>", " yes", " </score>"),
    "glued": ("<think>\n", "</think>\n<", "score>yes", " </score>"),
}
"""The tokens of servers whose model answers in a form of its own, one by one."""

CHANNELS: dict[str, dict[str, Any]] = {
    "sorted-channels": {"content": "yes", "reasoning_content": "Hm."},
    "channels": {
        "content": "<|channel|>analysis<|message|>Not final.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>yes<|return|>"
    },
    "bare-channels": {"content": "analysisHm, it says so.assistantfinalyes"},
    "analysis-only": {"content": "<|channel|>analysis<|message|>Hm, it"},
    "two-finals": {"content": "analysisIt says assistantfinalyes.assistantfinalno"},
}
"""What servers make of the channels of gpt-oss: sorted, with control tokens, and without them."""


def completion(asked: FakeServerRequest, **changes: Any) -> dict[str, Any]:
    """The answer of a well-behaved server."""
    body = asked.body
    limit = body.get("max_tokens", body.get("max_completion_tokens"))
    said = list(SAID)
    if asked.name == "spaced":
        said = ["\n", *said]
    if body["temperature"]:
        forgetful = "seed" not in body or asked.name in ("plain", "forgetful")
        said = [f"star {len(asked.log.asked) if forgetful else body['seed']}"]
    if "response_format" in body and asked.name != "plain":
        schema = body["response_format"]["json_schema"]["schema"]
        label = schema["properties"].get("answer", {}).get("enum", ["written"])[-1]
        said = [json.dumps({"answer": label})]
    message = {"role": "assistant", "content": "".join(said[:limit])}
    if asked.name in CHANNELS:
        message |= CHANNELS[asked.name]
    if asked.name in LEADS and "Is it?" in asked.words:
        message["content"] = "".join(LEADS[asked.name])
        spread = [{"token": " yes", "logprob": math.log(0.7)}, {"token": " no", "logprob": math.log(0.2)}]
        logprobs = [{"token": token, "top_logprobs": spread} for token in LEADS[asked.name]]
        choice = {"message": message, "finish_reason": "stop", "logprobs": {"content": logprobs}}
        return {"model": MODEL, "system_fingerprint": "fp_1", "choices": [choice]} | changes
    if asked.name == "thinker":
        message |= {"content": "<think>Hm, no.</think>\nYes", "reasoning_content": None}
    choice = {"index": 0, "message": message, "finish_reason": "length" if limit < len(said) else "stop"}
    if body.get("logprobs") and asked.name != "plain":
        choice["logprobs"] = {"content": [position(asked, token) for token in said[:limit]]}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 64}}
    return {"model": MODEL, "system_fingerprint": "fp_1", "choices": [choice], "usage": usage} | changes


def position(asked: FakeServerRequest, token: str) -> dict[str, Any]:
    """A token with the most likely tokens at its position."""
    if asked.name == "certain":  # log-probabilities at temperature zero carry no information
        return {"token": token, "top_logprobs": [{"token": "Yes", "logprob": 0.0}, {"token": "No", "logprob": -9999.0}]}
    tops = {"purple": 0.5, "mauve": 0.25} if "of the menu" in asked.words else MASSES
    top = [{"token": t, "logprob": math.log(p)} for t, p in tops.items()][: asked.body["top_logprobs"]]
    return {"token": token, "logprob": top[0]["logprob"], "top_logprobs": top}


async def reset(asked: FakeServerRequest) -> None:
    """Reset the connection without an answer."""
    linger = struct.pack("ii", 1, 0)
    asked.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    asked.writer.close()


async def half(asked: FakeServerRequest) -> None:
    """Announce a body and send half of it."""
    asked.send(200, '{"model": "judge-1", "choi', Content_Length="52")
    asked.writer.close()


async def silent(asked: FakeServerRequest) -> None:
    """Accept the request and never answer."""
    await asked.hang()


async def stalled(asked: FakeServerRequest) -> None:
    """Begin the answer and never finish it."""
    asked.send(200, '{"model": ', Content_Length="5000")
    await asked.hang()


async def endless(asked: FakeServerRequest) -> None:
    """Send an answer that never ends."""
    asked.writer.write(b"HTTP/1.1 200 It\r\nContent-Type: application/json\r\n\r\n")
    while not asked.writer.is_closing():
        asked.writer.write(b" " * 65536)
        await asked.writer.drain()
        asked.log.events.append("64 KiB")


async def slow(asked: FakeServerRequest) -> None:
    """Answer after a delay."""
    await asyncio.sleep(0.05)
    asked.send(200, completion(asked))


def answering(status: int, body: Any, **headers: str) -> Callable[[FakeServerRequest], Awaitable[None]]:
    """Always give the same answer."""

    async def answer(asked: FakeServerRequest) -> None:
        asked.send(status, body, **headers)

    return answer


def changed(**changes: Any) -> Callable[[FakeServerRequest], Awaitable[None]]:
    """Answer with these fields changed."""

    async def answer(asked: FakeServerRequest) -> None:
        asked.send(200, completion(asked, **changes))

    return answer


async def think(asked: FakeServerRequest) -> None:
    """Return reasoning that was not requested."""
    answer = completion(asked)
    answer["choices"][0]["message"] = {"content": "No", "reasoning": "Hm, yes."}
    asked.send(200, answer)


async def stray(asked: FakeServerRequest) -> None:
    """Answer with a label that was not offered."""
    answer = completion(asked)
    answer["choices"][0]["message"] = {"content": '{"answer": "99"}'}
    asked.send(200, answer)


async def tell_key(asked: FakeServerRequest) -> None:
    """Repeat the API key in an error, as some proxies do."""
    asked.send(500, {"error": {"message": f"cannot forward {asked.headers.get('authorization')}"}})


DATE = "Sun, 06 Nov 2022 08:49:37 GMT"
LATER = "Sun, 06 Nov 2022 08:49:48 GMT"
NOT_A_NUMBER = {"token": "Yes", "top_logprobs": [{"token": "Yes", "logprob": float("nan")}]}


def logprobs(**of: float) -> Callable[[FakeServerRequest], Awaitable[None]]:
    """An answer that gives the first token these log-probabilities."""
    top = [{"token": token, "logprob": value} for token, value in of.items()]
    content = [{"token": "Yes", "logprob": -0.1, "top_logprobs": top}]
    return changed(choices=[{"message": {"content": "Yes"}, "logprobs": {"content": content}}])


def counted(prompt: Any, written: Any, cached: Any = 0) -> Callable[[FakeServerRequest], Awaitable[None]]:
    """An answer that reports these token counts."""
    details = {"cached_tokens": cached}
    return changed(usage={"prompt_tokens": prompt, "completion_tokens": written, "prompt_tokens_details": details})


GOES_WRONG: dict[str, Callable[[FakeServerRequest], Awaitable[None]]] = {
    "html": answering(200, "<!doctype html><title>Sign in</title>"),
    "failing": answering(500, {"error": {"message": "out of memory"}}),
    "bare": answering(502, ""),
    "busy": answering(429, {"error": {"message": "slow down"}}, Retry_After="7"),
    "busy-until": answering(429, {"error": "slow down"}, Retry_After=LATER, Date=DATE),
    "busy-unsaid": answering(429, "slow down"),
    "full": answering(503, {"message": "no slot"}, Retry_After="2"),
    "loading": answering(503, {"error": {"message": "Loading model"}}),
    "locked-later": answering(401, {"error": "Unauthorized"}),
    "moved": answering(307, "", Location="/elsewhere"),
    "long": answering(400, {"error": {"message": TOO_LONG, "type": "BadRequestError"}}),
    "long-sglang": answering(400, {"object": "error", "message": SGLANG_TOO_LONG, "type": "BadRequestError"}),
    "large": answering(413, "payload too large"),
    "odd": answering(400, {"detail": "top_k is missing"}),
    "empty": changed(choices=[]),
    "text": changed(choices="Yes"),
    "null": answering(200, "null"),
    "deep": answering(200, "[" * 100_000),
    "nan": changed(choices=[{"message": {"content": "Yes"}, "logprobs": {"content": [NOT_A_NUMBER]}}]),
    "all-zero": logprobs(**dict.fromkeys(("Yes", " yes", "No", " no", "Well"), 0.0)),
    "above-one": logprobs(Yes=700.0, No=-1.0),
    "beyond-floats": logprobs(Yes=1e308, No=-1.0),
    "sum-above-one": logprobs(Yes=math.log(0.6), Well=math.log(0.6)),
    "counts-below-zero": counted(-(10**9), -(10**9), -(10**9)),
    "counts-too-many": counted(10**30, 10**30, 10**30),
    "counts-in-words": counted("many", [1], {"a": 2}),
    "counts-nothing": changed(usage="none"),
    "zipped": answering(200, "\x1f\x08\x00", Content_Encoding="gzip"),
    "impostor": changed(model="judge-2"),
    "nameless": changed(model=None),
    "tells": tell_key,
    "pensive": think,
    "straying": stray,
    "reset": reset,
    "half": half,
    "silent": silent,
    "silent-vllm": silent,
    "stalled": stalled,
    "endless": endless,
    "slow": slow,
    "slow-vllm": slow,
}
