"""`python -m benchmarks.peers.scripted_server PORT`: a simulated OpenAI chat API without a model.

It answers in microseconds, in the form that the model's name selects, and counts its calls. Under `/batched` it also
takes several conversations in one request, as vLLM's batch route does. `POST /control` sets faults
and resets the counters; `GET /counts` returns them. It exits when its standard input closes.
"""

import asyncio
import heapq
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import httptools
import uvloop

from benchmarks.peers.replies import FORMS, GARBAGE, Form, completion, tokens_of, usage, verdict_text
from benchmarks.peers.worksheets import CRITERION_MARK, RESPONSE_MARK, fault, pair, truth

BATCHED = "/batched"
"""Where the API also has vLLM's batch route."""

CHARACTERS = 4
BLOCK = 16 * CHARACTERS
"""Characters of a token, and of a block of the prefix cache."""


@dataclass
class Faults:
    """Faults: shares of the replies, the call at which the server goes down, and for how many seconds.

    `delay_s` delays every answer. With `slots`, no more answers than that are under way at a time.
    """

    garbage: float = 0.0
    hang: float = 0.0
    restart_at: int = 0
    down_s: float = 1.0
    delay_s: float = 0.0
    slots: int = 0


class PrefixCache:
    """A simulated prefix cache without a limit: all blocks seen so far, each keyed by the blocks before it.

    It counts as vLLM does: in whole blocks of 16 tokens, here of four characters each. A block is shared as soon as the
    first prompt with it arrives.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], int] = {}

    def read(self, prompt: str) -> tuple[int, int]:
        """Add a prompt; return its number of tokens, and how many of them were cached."""
        seen, node, known = self._seen, 0, 0
        whole = len(prompt) // BLOCK * BLOCK
        for start in range(0, whole, BLOCK):
            key = (node, prompt[start : start + BLOCK])
            child = seen.get(key)
            if child is None:
                child = seen[key] = len(seen) + 1
            else:
                known += BLOCK
            node = child
        return len(prompt) // CHARACTERS, known // CHARACTERS

    def forget(self) -> None:
        """Clear the cache, like a restarted server."""
        self._seen.clear()


class Script:
    """The answers, and the counters since the last `POST /control`."""

    def __init__(self) -> None:
        self.prefixes = PrefixCache()
        self.faults = Faults()
        self.begin()

    def begin(self, faults: Faults | None = None) -> None:
        """Reset the counters and set the faults."""
        self.faults = faults or Faults()
        self.calls = self.prompt_tokens = self.reused_tokens = self.written_tokens = 0
        self.attempts: Counter[str] = Counter()
        self.answered: set[str] = set()
        self._free_at = [0.0] * self.faults.slots

    def answer_at(self, now: float) -> float:
        """Return when the answer to a call that arrives now is sent, on the clock that tells `now`."""
        if not self._free_at:
            return now + self.faults.delay_s
        done = max(now, self._free_at[0]) + self.faults.delay_s
        heapq.heapreplace(self._free_at, done)
        return done

    def counts(self) -> dict[str, Any]:
        """Return the counters; `again` counts repeated calls."""
        return {
            "calls": self.calls,
            "computed": self.prompt_tokens - self.reused_tokens,
            "reused": self.reused_tokens,
            "written": self.written_tokens,
            "again": self.calls - len(self.attempts),
            "answered": sorted(self.answered),
            "cpu_s": time.process_time(),
        }

    def answer(self, body: bytes) -> tuple[bytes | None, list[str]]:
        """Return the completion, None for one that never arrives, and the pairs that it has a true verdict on."""
        request = json.loads(body)
        return self._completion(request, [request["messages"]])

    def answer_together(self, body: bytes) -> tuple[bytes | None, list[str]]:
        """Return the completion of several conversations, as vLLM's batch route does."""
        request = json.loads(body)
        return self._completion(request, request["messages"])

    def _completion(self, request: dict[str, Any], conversations: list[Any]) -> tuple[bytes | None, list[str]]:
        form = request["model"] if request["model"] in FORMS else FORMS[0]
        before = self.prompt_tokens, self.reused_tokens, self.written_tokens
        replies = [self._reply(form, conversation) for conversation in conversations]
        told = usage(self.prompt_tokens - before[0], self.reused_tokens - before[1], self.written_tokens - before[2])
        texts = [text for text, _ in replies if text is not None]
        if len(texts) < len(replies):
            return None, []
        judged = [pair for _, pair in replies if pair is not None]
        return completion(form, texts, bool(request.get("logprobs")), told), judged

    def _reply(self, form: Form, messages: list[dict[str, Any]]) -> tuple[str | None, str | None]:
        """Return the text, None for one that never arrives, and the pair if it is a true verdict on one."""
        prompt = "".join(f"<{message['role']}>{_text(message['content'])}" for message in messages)
        response, criterion = RESPONSE_MARK.search(prompt), CRITERION_MARK.search(prompt)
        tokens, reused = self.prefixes.read(prompt)
        self.calls += 1
        self.prompt_tokens += tokens
        self.reused_tokens += reused
        text, judged = verdict_text(form, 0, "?" in prompt), None
        if response is not None and criterion is not None:
            judged = pair(response[1], int(criterion[1]))
            drawn = fault(judged, self.attempts[judged])
            self.attempts[judged] += 1
            if drawn < self.faults.garbage:
                text, judged = GARBAGE, None
            elif drawn < self.faults.garbage + self.faults.hang:
                return None, None
            else:
                text = verdict_text(form, int(criterion[1]), truth(judged))
        self.written_tokens += tokens_of(text)
        return text, judged


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return str(content)


class Connection(asyncio.Protocol):
    """One HTTP connection, with one request at a time."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection, to drop it at a restart."""
        self._transport = transport  # type: ignore[assignment]  # of TCP, it writes
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self._server.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Start a new request."""
        self._url, self._body = self._url + url, b""

    def on_body(self, body: bytes) -> None:
        """Append to the request's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer the request."""
        url, self._url = self._url, b""
        script = self._server.script
        if url.endswith(b"/chat/completions"):
            self._complete(script.answer)
        elif url.startswith(BATCHED.encode()) and url.endswith(b"/chat/completions/batch"):
            self._complete(script.answer_together)
        elif url.endswith(b"/models"):
            self._write(json.dumps({"object": "list", "data": [{"id": FORMS[0], "owned_by": "vllm"}]}).encode())
        elif url == b"/counts":
            self._write(json.dumps(self._server.script.counts()).encode())
        elif url == b"/control":
            self._server.script.begin(Faults(**json.loads(self._body)))
            self._write(b"{}")
        elif url == b"/health":
            self._write(b"{}")
        else:
            self._write(b'{"error":{"message":"not here"}}', b"404 Not Found")

    def drop(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    def _complete(self, answer: Callable[[bytes], tuple[bytes | None, list[str]]]) -> None:
        script = self._server.script
        calls_before = script.calls
        reply, judged = answer(self._body)
        if calls_before < script.faults.restart_at <= script.calls:
            self._server.restart()
        elif reply is not None and script.faults.delay_s:
            loop = asyncio.get_running_loop()
            loop.call_at(script.answer_at(loop.time()), self._reply, reply, judged)
        elif reply is not None:
            self._reply(reply, judged)

    def _reply(self, reply: bytes, judged: list[str]) -> None:
        if not self._transport.is_closing():
            self._server.script.answered.update(judged)
            self._write(reply)

    def _write(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


class Server:
    """The listening server, which can go down for a while."""

    def __init__(self, port: int) -> None:
        self.script = Script()
        self.connections: set[Connection] = set()
        self._port = port
        self._listening: asyncio.Server
        self._restarting: asyncio.Task[None]

    async def listen(self) -> None:
        """Start to accept connections."""
        self._listening = await asyncio.get_running_loop().create_server(
            partial(Connection, self), "127.0.0.1", self._port, backlog=1024
        )

    def restart(self) -> None:
        """Drop all connections, refuse new ones for a while, and come back with an empty prefix cache."""
        self._listening.close()
        for connection in list(self.connections):
            connection.drop()
        self.script.prefixes.forget()
        self._restarting = asyncio.create_task(self._come_back())

    async def _come_back(self) -> None:
        await asyncio.sleep(self.script.faults.down_s)
        await self.listen()


def control(**faults: float) -> bytes:
    """Build the body for `POST /control`."""
    known = {field.name for field in fields(Faults)}
    assert known >= faults.keys(), f"unknown: {faults.keys() - known}"
    return json.dumps(asdict(Faults(**faults))).encode()  # type: ignore[arg-type]


async def _serve(port: int) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    await Server(port).listen()
    threading.Thread(target=wait_for_end, daemon=True).start()
    await ended.wait()


def main() -> None:
    """Serve until standard input closes."""
    uvloop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
