"""One completion of a running llama.cpp server, read as it is written, so that giving it up frees the model's slot.

llama.cpp notices that nobody listens only where it has something to send: hence a stream, with a word after every
piece of the prompt that was read.
"""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from judge_server.errors import EngineUnavailable
from judge_server.ports import SamplingOptions

_SEEDS = 2**32 - 1
"""llama.cpp draws a seed of its own for this one."""

_COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""What keeps a small model from filling its room with blanks, which JSON allows anywhere."""


@dataclass(slots=True)
class LlamaCppCompletion:
    """What was written, and what it took.

    Attributes:
        text: what was written, without what stopped it.
        limited: it ended at its limit of tokens.
        first: the probabilities of the first token by id, before any constraint, if they were asked for.
        prompt_read, prompt_cached: prompt tokens that were computed, and those that were still known.
        tokens: tokens written.
    """

    text: str = ""
    truncated: bool = False
    first: dict[int, float] = field(default_factory=dict)
    prompt_read: int = 0
    prompt_cached: int = 0
    tokens: int = 0


def sampling(sample: SamplingOptions | None) -> dict[str, Any]:
    """llama.cpp's options for sampling from the whole distribution, or for greedy decoding."""
    if sample is None or not sample.temperature:
        return {"temperature": 0.0, "seed": 0}
    seed = sample.seed % _SEEDS
    return {"temperature": sample.temperature, "seed": seed, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def in_schema(schema: str) -> dict[str, Any]:
    """llama.cpp's options for JSON that satisfies a schema."""
    return {"json_schema": json.loads(schema) | _COMPACT}


def one_of(labels: tuple[str, ...]) -> dict[str, Any]:
    """llama.cpp's options for writing one of these labels and nothing else."""
    return {"grammar": "root ::= " + " | ".join(json.dumps(label, ensure_ascii=False) for label in labels)}


async def complete(http: httpx2.AsyncClient, prompt: list[int], n_predict: int, **options: Any) -> LlamaCppCompletion:
    """Let the model write at most `n_predict` tokens after a prompt.

    Raises:
        EngineGone: llama.cpp refused, or stopped in the middle.
    """
    body = {"prompt": prompt, "n_predict": n_predict, "cache_prompt": True, "stream": True, "return_progress": True}
    done = LlamaCppCompletion()
    async with http.stream("POST", "/completion", json=body | options) as response:
        if response.status_code != 200:
            refusal = (await response.aread()).decode(errors="replace")
            raise EngineUnavailable(f"HTTP {response.status_code}: {refusal[:200]}")
        async for event in _events(response):
            if "error" in event:
                raise EngineUnavailable(str(event["error"])[:200])
            done.text += event.get("content", "")
            if "completion_probabilities" in event and not done.first:
                likely = event["completion_probabilities"][0]["top_logprobs"]
                done.first = {token["id"]: math.exp(token["logprob"]) for token in likely}
            if event.get("stop"):
                timings = event["timings"]
                done.truncated = event["stop_type"] == "limit"
                done.prompt_read, done.prompt_cached = timings["prompt_n"], timings["cache_n"]
                done.tokens = timings["predicted_n"]
                return done  # unread to its end, the connection is not used again: llama.cpp hangs up after a stream
    raise EngineUnavailable("it stopped in the middle of its answer")


async def _events(response: httpx2.Response) -> AsyncIterator[Any]:
    """The JSON values of a stream of events. Lines end at a line feed only: JSON may hold the other separators."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data" and value.strip() != b"[DONE]":
                yield json.loads(value)
            elif name == b"error":
                yield {"error": value.decode(errors="replace")}
