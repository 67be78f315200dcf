"""Measure what the verdict cache saves: send the same request twice and compare the times.

A request has 64 new responses under 12 criteria. The engines are a scripted one with a delay per call (at most 320
judgements a second) and a real one, with fewer responses. Each is measured with the cache in the process and in Redis,
with new responses each turn; the second answer must contain the rewards of the first.
"""

import argparse
import json
import statistics
import time
from typing import Any

import httpx2
from tests.fixtures.redis_process import running_redis_process

from benchmarks.load import CRITERIA, RESPONSES, request, spread
from benchmarks.report import publish
from benchmarks.server import running_service

SCRIPTED = "scripted://hash?delay_s=0.05&concurrency=16"
REAL = "llamacpp://qwen2.5-coder-0.5b"
TIMEOUT_S = 3600.0


def timed(client: httpx2.Client, content: bytes) -> tuple[float, dict[str, Any]]:
    """Send a request; return the seconds and the answer. Fail if a verdict failed."""
    began = time.perf_counter()
    answer = client.post("/v1/rewards", content=content, headers={"Content-Type": "application/json"})
    seconds = time.perf_counter() - began
    answer.raise_for_status()
    document: dict[str, Any] = answer.json()
    if document["usage"]["failed"]:
        raise RuntimeError(f"{document['usage']['failed']} verdicts failed")
    return seconds, document


def twice(client: httpx2.Client, responses: int) -> tuple[float, float]:
    """Send a new request twice and return the seconds of each."""
    content = json.dumps(request(responses, deadline_s=TIMEOUT_S)).encode()
    first, fresh = timed(client, content)
    second, repeated = timed(client, content)
    if repeated["usage"]["cached"] != responses * CRITERIA or repeated["groups"] != _as_cached(fresh["groups"]):
        raise RuntimeError("the second answer differs from the first, or is not from the cache")
    return first, second


def _as_cached(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark all verdicts of the groups as cached."""
    for group in groups:
        for response in group["responses"]:
            for verdict in response["verdicts"]:
                verdict["cached"] = True
    return groups


def measured(engine: str, cache: str, url: str, responses: int, turns: int) -> dict[str, Any]:
    """Measure a row: medians over the turns, after a warm-up."""
    with (
        running_service(engine, ADJUDGE_CACHE_URL=url) as (address, _),
        httpx2.Client(base_url=address, timeout=TIMEOUT_S) as client,
    ):
        twice(client, 1)
        pairs = [twice(client, responses) for _ in range(turns)]
    return {
        "engine": engine.partition("?")[0],
        "cache": cache,
        "judgements": responses * CRITERIA,
        "turns": turns,
        "first, ms": statistics.median(first for first, _ in pairs) * 1000,
        "second, ms": statistics.median(second for _, second in pairs) * 1000,
        **spread("first over second", [first / second for first, second in pairs]),
    }


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10, help="turns with the scripted engine")
    parser.add_argument("--real", default=REAL, help="a real engine's URL; empty for none")
    parser.add_argument("--real-responses", type=int, default=2)
    parser.add_argument("--real-turns", type=int, default=3)
    given = parser.parse_args()
    rows = []
    with running_redis_process() as redis:
        for cache, url in (("memory", "memory://"), ("Redis", redis.url)):
            rows.append(measured(SCRIPTED, cache, url, RESPONSES, given.turns))
            if given.real:
                rows.append(measured(given.real, cache, url, given.real_responses, given.real_turns))
    publish("second_run", f"The same request twice: up to {RESPONSES} responses of 2 KB x {CRITERIA} criteria", rows)


if __name__ == "__main__":
    main()
