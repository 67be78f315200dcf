"""`python -m benchmarks.engine_pool.endpoint PORT SLOTS DELAY_S`: an OpenAI chat API with the load limits of an engine.

It has no model and gives SLOTS answers at a time, each after the delay. It counts its calls by response, and exits when
its standard input closes.
"""

import asyncio
import json
import math
import re
import sys
from collections import Counter
from typing import Any

from benchmarks.engine_pool import RESPONSE

MODEL = "none"
_YES = {"token": "yes", "logprob": math.log(0.6)}
_PLACE = {**_YES, "top_logprobs": [_YES, {"token": "no", "logprob": math.log(0.3)}]}


class Endpoint:
    """The endpoint's server."""

    def __init__(self, slots: int, delay_s: float) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._delay_s = delay_s
        self._calls_about: Counter[str] = Counter()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1])) if length else b""
                status, answer = await self._answer(head.split(" ", 2)[1], body)
                content = json.dumps(answer).encode()
                writer.write(f"HTTP/1.1 {status} It\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, content: bytes) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": MODEL, "owned_by": "vllm"}]}
        if path == "/calls":
            return 200, self._calls_about
        if path != "/v1/chat/completions":
            return 404, {}
        body = json.loads(content)
        about = RESPONSE.search(body["messages"][-1]["content"])
        if about:
            async with self._slots:
                await asyncio.sleep(self._delay_s)
            self._calls_about[about[0]] += 1
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "yes"}}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [_PLACE]}
        return 200, {"model": MODEL, "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


async def main(port: int, slots: int, delay_s: float) -> None:
    """Serve until standard input closes."""
    server = await asyncio.start_server(Endpoint(slots, delay_s).connection, "127.0.0.1", port, backlog=1000)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
