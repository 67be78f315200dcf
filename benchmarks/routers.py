"""Prefix reuse behind a router that reads the session, with and without the header: `python -m benchmarks.routers`.

Starts two llama.cpp servers, and over them the router whose executable is given with `--router`, under each `--policy`:
`consistent_hash` and `round_robin` of vllm-router, `manual` and `round_robin` of sglang-router. Judges each response by
several criteria, one call at a time, through `OpenAIEngine`; then other responses with the headers left out. Counts
prompt tokens, and the calls that each engine got by the router's metrics, so the machine's speed does not matter.
Install a router into an environment of its own: `pip install vllm-router`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2
from tests.fixtures.ports import unused_port

from benchmarks.report import publish
from benchmarks.server import running
from judge_server.engines.openai import http
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.models import fetch
from judge_server.ports import Batch, Call, Option, Reply, TokenChoice

ENGINES, CONTEXT_TOKENS = 2, 2048
YES_NO = TokenChoice((Option("yes", ("yes", "Yes", " yes", " Yes")), Option("no", ("no", "No", " no", " No"))))
KEY = secrets.token_hex(16)
_PROCESSED = re.compile(r'\w+_cb_outcomes_total\{.*worker="([^"]+)".*\} ([0-9.e+]+)')
"""A router's count of the requests that it sent to an engine."""


@contextlib.contextmanager
def llamacpp(model: Path) -> Iterator[str]:
    """Run llama.cpp's server, and give its URL."""
    command = [sys.executable, "-m", "judge_server.engines.llamacpp.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        settings = {"model": str(model), "context_tokens": CONTEXT_TOKENS, "threads": 1, "key": KEY}
        child.stdin.write(json.dumps(settings).encode() + b"\n")
        child.stdin.flush()
        yield json.loads(child.stdout.readline())["address"]
        child.stdin.close()


def batch(response: int, criteria: int) -> Batch:
    """Build a response that no other begins like, and questions about it."""
    text = " ".join(f"Step {n}: {secrets.token_hex(2)} follows from what precedes it." for n in range(10))
    questions = tuple(Call(f"\nDoes part {n} of the argument hold?", YES_NO) for n in range(criteria))
    return Batch("You judge arguments. Answer yes or no.", f"Response {response}. {text}", questions)


async def judge(url: str, metrics_url: str, responses: int, criteria: int) -> tuple[dict[str, int], list[str]]:
    """Judge new responses; return the counts of calls and prompt tokens, and the calls of each engine."""
    engine = OpenAIEngine(url, api_key=KEY, concurrency=1, context_tokens=CONTEXT_TOKENS)
    await engine.start()
    before = calls_by_engine(metrics_url)
    try:
        counts = {"calls": 0, "computed": 0, "reused": 0, "failed": 0}
        for number in range(responses):
            async for _, outcome in engine.answer(batch(number, criteria)):
                counts["calls"] += 1
                if isinstance(outcome, Reply):
                    counts["computed"] += outcome.tokens_computed
                    counts["reused"] += outcome.tokens_reused
                else:
                    counts["failed"] += 1
        after = calls_by_engine(metrics_url)
        return counts, [f"{count - before.get(name, 0):.0f}" for name, count in sorted(after.items())]
    finally:
        await engine.close()


def calls_by_engine(metrics_url: str) -> dict[str, float]:
    """Return how many requests the router has sent to each engine, by its metrics."""
    counts: dict[str, float] = {}
    for line in httpx2.get(metrics_url, timeout=10).text.splitlines():
        if (found := _PROCESSED.match(line)) is not None:
            counts[found[1]] = counts.get(found[1], 0.0) + float(found[2])
    return counts


def measure(router: Path, policy: str, responses: int, criteria: int) -> list[dict[str, Any]]:
    """Measure with the headers and without them."""
    model, port, metrics = fetch("qwen2.5-coder-0.5b"), unused_port(), unused_port()
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(llamacpp(model)) for _ in range(ENGINES)]
        base_url, metrics_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics"
        options = {"--host": "127.0.0.1", "--port": str(port), "--policy": policy, "--prometheus-port": str(metrics)}
        # sglang-router has commands, of which `launch` starts the router; vllm-router has none.
        command = [str(router), *(["launch"] if router.name.startswith("sglang") else [])]
        command += [*(word for option in options.items() for word in option), "--api-key", KEY, "--worker-urls", *urls]
        stack.enter_context(running(command, dict(os.environ), f"{base_url}/health"))
        rows = []
        for headers in (http.SESSION_HEADERS, ()):
            with mock.patch.object(http, "SESSION_HEADERS", headers):
                counts, shares = asyncio.run(judge(f"{base_url}/v1", metrics_url, responses, criteria))
            share = counts["reused"] / max(1, counts["computed"] + counts["reused"])
            named = {"router": router.name, "policy": policy, "session header": "sent" if headers else "left out"}
            rows.append(named | counts | {"reused share": f"{share:.0%}", "calls by engine": " + ".join(shares)})
        return rows


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", type=Path, required=True, help="the executable of vllm-router or sglang-router")
    parser.add_argument("--policy", action="append", required=True, help="a policy of the router; may be repeated")
    parser.add_argument("--responses", type=int, default=12)
    parser.add_argument("--criteria", type=int, default=6)
    options = parser.parse_args()
    rows = [
        row for policy in options.policy for row in measure(options.router, policy, options.responses, options.criteria)
    ]
    publish(f"routers-{options.router.name}", f"Prefix reuse over {ENGINES} engines behind a router", rows)


if __name__ == "__main__":
    main()
