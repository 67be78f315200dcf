"""An OpenAI chat API server for fault tests, run as a module with four arguments: HOST PORT LOG FAULT.

It draws new probabilities for each call, so that a call sent twice gets two different answers. Every event of a judge's
call is a line of the LOG, which survives the process. FAULT is the fault of calls whose question matches `LATER_PART`
(`slow` delays every call), until SIGUSR1 clears it. A judge's call contains the word `Part`; all others are probes of
a starting engine, and always get the same answer.
"""

import asyncio
import hashlib
import json
import math
import random
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.judge_server.engines.servers.raw_http import Raw, RawRequest, answer_requests

MODEL = "judge-1"
LATER_PART = re.compile(r"Part (6|7|8|9|10|11) holds")
PAGE = b"<!doctype html><title>Sign in</title>"


class Endpoint:
    """The server."""

    def __init__(self, log: Path, fault: str) -> None:
        self._log = log.open("a", buffering=1)
        self._fault = fault
        self._page = False
        self._released = asyncio.Event()

    def release(self) -> None:
        """Clear the fault."""
        self._fault = "none"
        self._page = False
        self._released.set()

    async def respond(self, request: RawRequest) -> Raw:
        """Answer one request."""
        status, content = await self._answer(request.target, request.body, request.reader)
        return status, content, {"Server": "faulty"}

    async def _answer(self, path: str, body: Any, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        if self._page:
            return 200, PAGE
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": MODEL, "owned_by": "nobody"}]}).encode()
        if path != "/v1/chat/completions":
            return 404, b"{}"
        question = body["messages"][-1]["content"]
        if "Part" not in question:
            return 200, completion(body, 0.6)
        key = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:16]
        self._note("begin", key)
        faulty = LATER_PART.search(question) is not None
        if faulty and self._fault == "page":
            self._page = True
            self._note("page", key)
            return 200, PAGE
        if self._fault == "slow":
            await asyncio.sleep(0.1)
        if faulty and self._fault == "hold":
            await self._hold(key, reader)
        self._note("end", key)
        return 200, completion(body, random.random())

    async def _hold(self, key: str, reader: asyncio.StreamReader) -> None:
        """Send no answer until released; the client may disconnect first."""
        gone = asyncio.create_task(reader.read())
        released = asyncio.create_task(self._released.wait())
        await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() or reader.at_eof():
            self._note("gone", key)
            raise ConnectionError
        gone.cancel()
        await asyncio.wait({gone})  # only one reader at a time

    def _note(self, event: str, key: str) -> None:
        self._log.write(f"{event} {key}\n")


def completion(body: dict[str, Any], yes: float) -> bytes:
    """An answer whose first token is yes with probability 0.9 * `yes`, and no with the rest of 0.9."""
    top = [
        {"token": "yes", "logprob": math.log(0.9 * yes + 1e-9)},
        {"token": "no", "logprob": math.log(0.9 - 0.9 * yes)},
    ]
    place = {"token": "yes", "logprob": top[0]["logprob"], "top_logprobs": top}
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    if body.get("logprobs"):
        choice["logprobs"] = {"content": [place]}
    return json.dumps({"model": MODEL, "choices": [choice], "usage": {"prompt_tokens": 9}}).encode()


async def main(host: str, port: int, log: Path, fault: str) -> None:
    """Serve until standard input closes."""
    endpoint = Endpoint(log, fault)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, endpoint.release)
    server = await asyncio.start_server(partial(answer_requests, respond=endpoint.respond), host, port, backlog=1000)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]))
