"""A deterministic engine without a model, for tests and for measuring what everything around a model costs.

Never a default: its answers say nothing about a response.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import SplitResult

from judge_server.engines.options import Options
from judge_server.ports import Batch, Call, CallFailed, EngineIdentity, Reply

Script = Callable[[Batch, Call], Reply | CallFailed]


def by_hash(batch: Batch, call: Call) -> Reply:
    """Answer from a hash of the prompt: the same prompt always gets the same verdict, half of them are yes."""
    digest = hashlib.blake2b(f"{batch.system}\0{batch.shared}\0{call.question}".encode(), digest_size=8).digest()
    yes = digest[0] / 255
    chosen = call.then.labels[digest[1] % len(call.then.labels)] if call.then else None
    return Reply((yes * 0.9, (1 - yes) * 0.9), chosen, tokens_computed=len(call.question) // 4)


def always(satisfied: bool) -> Script:
    """Answer every call alike, and attribute it to the first label on offer."""

    def script(batch: Batch, call: Call) -> Reply:
        chosen = call.then.labels[0] if call.then else None
        return Reply((0.9, 0.05) if satisfied else (0.05, 0.9), chosen)

    return script


class ScriptedEngine:
    """Answers by a script: a function from a call to its outcome."""

    def __init__(
        self,
        script: Script = by_hash,
        *,
        delay_s: float = 0.0,
        context_tokens: int = 1_000_000,
        concurrent_batches: int = 64,
    ) -> None:
        self._script = script
        self._delay_s = delay_s
        self._context_tokens = context_tokens
        self._concurrent_batches = concurrent_batches
        self._running = False

    @classmethod
    def from_url(cls, url: SplitResult) -> "ScriptedEngine":
        """`scripted://hash`, `scripted://yes`, `scripted://no`, with `?delay_s=`, `?context=`, `?concurrency=`."""
        scripts: dict[str, Script] = {"hash": by_hash, "yes": always(True), "no": always(False)}
        if url.netloc not in scripts:
            raise ValueError(f"scripted://{url.netloc} is unknown; use scripted://{' or scripted://'.join(scripts)}")
        options = Options(url)
        engine = cls(
            scripts[url.netloc],
            delay_s=options.number("delay_s", 0.0),
            context_tokens=options.integer("context", 1_000_000),
            concurrent_batches=options.integer("concurrency", 64),
        )
        options.refuse_others()
        return engine

    async def start(self) -> EngineIdentity:
        """Nothing to load."""
        self._running = True
        return EngineIdentity(
            model="scripted",
            weights_digest="none",
            engine="scripted",
            chat_template_digest="none",
            decoding="scripted",
            context_tokens=self._context_tokens,
            concurrent_batches=self._concurrent_batches,
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailed]]:
        """Answer in order, after the delay asked for; each call is refused where it exceeds the context."""
        for index, call in enumerate(batch.calls):
            if self._delay_s or not index:
                await asyncio.sleep(self._delay_s)
            if not self._running:
                yield index, CallFailed("engine", "the scripted engine is closed")
            elif (tokens := _tokens(batch, call)) > self._context_tokens:
                yield (
                    index,
                    CallFailed("truncated_input", f"{tokens} tokens; the context holds {self._context_tokens}"),
                )
            else:
                yield index, self._script(batch, call)

    async def count_tokens(self, batch: Batch) -> int:
        """Four characters count as a token."""
        return max(_tokens(batch, call) for call in batch.calls)

    async def ready(self) -> bool:
        """Whether it was started and not closed."""
        return self._running

    async def close(self) -> None:
        """Calls from now on fail."""
        self._running = False


def _tokens(batch: Batch, call: Call) -> int:
    return (len(batch.system) + len(batch.shared) + len(call.question)) // 4 + 1
