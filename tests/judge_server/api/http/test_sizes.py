"""Sizes: every route that takes a body, with bodies of 1 KB up to a limit.

By default the sizes are small and only answers are checked, since times on a shared machine are not reliable.
Run by hand up to the limit, it prints the event loop's worst lag per route:

    ADJUDGE_SIZES=67108864 .venv/bin/python -m pytest -s -n 0 tests/judge_server/api/http/test_sizes.py
"""

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.judge_server.conftest import Serve
from tests.judge_server.golden_files import openapi
from tests.judge_server.support import request
from trainer_client.wire.base import MAX_ERRORS

LARGEST = int(os.environ.get("ADJUDGE_SIZES", 2**13))
SIZES = [size for size in (2**10, 2**13, 2**16, 2**20, 2**23, 2**26) if size <= LARGEST]

UNITS = {
    "letters": "a",
    "words": "so it is 7, and ",
    "lines": "\n",
    "escapes": '\\"\n',
    "digits": "1,234.5 ",
    "boxes": "\\boxed{",
    "nested boxes": "\\boxed{{}",
    "braces": "{[",
    "dollars": "$ $$",
    "steps": "### Step 1: a\n",
    "thoughts": "<think></think",
    "tokens": "<|im_start|>",
    "answers": "Final answer: ",
    "fences": "```\n",
    "hashes": "####",
    "astral": "\U0001f600",
}


class EventLoopLag:
    """The longest time for which the event loop was blocked since `worst` was reset.

    Measured in CPU seconds of this process over all threads, since wall-clock time includes other
    processes.
    """

    def __init__(self) -> None:
        self.worst = 0.0

    async def watch(self) -> None:
        """Measure every iteration of the loop until cancelled."""
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            self.worst = max(self.worst, time.process_time() - began)


def bodies(path: str) -> dict[str, Any]:
    """A body that a route takes, with `TEXT` wherever a text of any length may stand."""
    text = "TEXT"
    group = {"id": "g", "prompt": text, "responses": [text, {"text": [{"role": "assistant", "content": text}]}]}
    rubric = {
        "criteria": [
            {"id": "a", "description": "States that 7 is prime."},
            {"id": "b", "description": "d", "verification": {"method": "contains", "any_of": ["7"]}},
            {"id": "c", "description": "d", "kind": "answer"},
        ]
    }
    scored = request(rubric=rubric, groups=[group | {"grounding": text, "ground_truth": "7"}])
    pair = {"id": "p", "prompt": text, "a": text, "b": text}
    return {
        "/v1/rewards": scored | {"deadline_s": 600},
        "/v1/verdicts": scored | {"deadline_s": 600},
        "/v1/comparisons": {"pairs": [pair]},
        "/v1/rewards/recompute": {"run": text},
        "/v1/operations": {"kind": "score"} | scored,
    }.get(path, {"criteria": [{"id": "a", "description": text}], "metadata": {"note": text}, "tags": [text]})


def of_size(path: str, size: int) -> Iterator[tuple[str, bytes]]:
    """Bodies of about `size` bytes for a route: long texts of every kind, and invalid values."""
    body = json.dumps(bodies(path))
    places = body.count("TEXT")
    for name, unit in UNITS.items():
        times = max(1, size // max(1, places) // len(json.dumps(unit, ensure_ascii=False).encode()))
        yield name, body.replace("TEXT", json.dumps(unit * times, ensure_ascii=False)[1:-1]).encode()
    for name, unit in {"floats": "1.5,", "nulls": "null,", "texts": '"",', "objects": "{},", "lists": "[],"}.items():
        many = unit * (size // len(unit)) + unit[:-1]
        for field in ("groups", "pairs", "criteria", "weights", "tags"):
            yield f"{name} in {field}", f'{{"{field}":[{many}]}}'.encode()
        yield name, f"[{many}]".encode()
    yield "responses", json.dumps(request(*["r"] * (size // 5))).encode()
    said = {"role": "assistant", "content": "a"}
    yield "messages", json.dumps(request([said] * (size // 40))).encode()
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "tool_calls": [call] * min(128, size // 64)}
    yield "tool calls", json.dumps(request([calling] * (size // 8192 + 1))).encode()
    pairs = [{"id": "p", "prompt": "p", "a": "", "b": ""}] * min(4096, size // 50)
    yield "pairs", json.dumps({"pairs": pairs}).encode()
    rows = min(4096, size // 50)
    labels = [{"rubric": [{"id": "a", "description": "d"}]}] * rows
    yield "rows", json.dumps({"query": ["ab"] * rows, "prompts": ["a"] * rows, "labels": labels}).encode()
    yield "wrong responses", json.dumps(request(groups=[{"responses": [7] * 4000}] * (size // 12_000 + 1))).encode()
    yield "names", json.dumps({f"n{n}": 0 for n in range(size // 10)}).encode()
    yield "nesting", b"[" * size
    yield "an open text", b'{"groups": "' + b"a" * size


TAKING = [
    (method.upper(), path)
    for path, methods in openapi()["paths"].items()
    for method, operation in methods.items()
    if "requestBody" in operation
]


@pytest.mark.parametrize(("method", "path"), TAKING, ids=str)
async def test_a_body_of_any_size_is_answered_and_errors_are_short(serve: Serve, method: str, path: str) -> None:
    http, lag = await serve(queue_calls=50_000), EventLoopLag()
    watching = asyncio.create_task(lag.watch())
    worst: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    at = path.replace("{name}", "team/a").replace("{alias}", "production").replace("{reference}", "team/a")
    for size in SIZES:
        for name, body in of_size(path, size):
            lag.worst = 0.0
            answer = await http.request(method, at, content=body, headers={"Content-Type": "application/json"})
            await asyncio.sleep(0)
            worst[name] = max(worst[name], (lag.worst, size))
            checked(answer)
    watching.cancel()
    for name, (seconds, size) in sorted(worst.items(), key=lambda one: one[1], reverse=True)[:5]:
        print(f"\n{method} {path}: {1000 * seconds:.0f} ms at {size:,} bytes of {name}", end="")


def checked(answer: httpx2.Response) -> None:
    """Check that the answer has an expected status and short errors."""
    assert answer.status_code in {200, 201, 202, 404, 413, 422, 428, 429, 503}, answer.text[:500]
    if answer.status_code >= 400:
        assert len(answer.json().get("errors", ())) <= MAX_ERRORS
        assert len(answer.content) < 2**16
