"""Replies of a model kept in a JSONL file, so that a stopped measurement goes on where it stopped.

What is kept is the model's reply, and the verdict is read from it anew every time. So a changed calibration is
measured without asking the model again, and a changed prompt is asked, since the prompt is part of the key.
"""

import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.errors import EngineStartError
from judge_server.judging.fingerprint import CallDigests
from judge_server.ports import Batch, Call, CallFailure, Capabilities, Engine, EngineIdentity, Reply, TokenChoice

FOLDER = Path(".cache/agreement")


@dataclass(frozen=True, slots=True)
class StoredReply:
    """One line of the file: a model's reply to one question, and what the reply cost.

    Attributes:
        key: the digest of weights, engine build, system message, shared text, question and answer form.
        model, weights, engine: the model's name, the SHA-256 of its file, the engine's build.
        masses: the probability of each option as the next token, before any constraint; None where the answer is
            written.
        tokens_computed, tokens_reused: prompt tokens.
        seconds: how long the engine took.
        chosen, text, cut: as in `Reply`.
    """

    key: str
    model: str
    weights: str
    engine: str
    masses: tuple[float, ...] | None
    tokens_computed: int
    tokens_reused: int
    tokens_written: int
    seconds: float
    chosen: str | None = None
    text: str | None = None
    cut: bool = False

    @property
    def choice_mass(self) -> float:
        """The probability of all options together; 0 where the answer is written."""
        return sum(self.masses or ())

    @property
    def raw_probability(self) -> float | None:
        """Of a yes-or-no question, yes / (yes + no); None where both are 0, and of any other question."""
        if self.masses is None or len(self.masses) != 2 or not self.choice_mass:
            return None
        return self.masses[0] / self.choice_mass

    @property
    def reply(self) -> Reply:
        """The reply as the engine gave it."""
        return Reply(
            self.masses,
            self.chosen,
            self.text,
            self.cut,
            tokens_computed=self.tokens_computed,
            tokens_reused=self.tokens_reused,
            tokens_written=self.tokens_written,
        )


_FIELDS = frozenset(field.name for field in fields(StoredReply))


class ReplyStore:
    """The replies in one file, by key. A line that is no record, such as a torn last one, is dropped with a note."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._replies = {reply.key: reply for reply in _read(file)}

    @classmethod
    def of_model(cls, model: str, folder: Path | None = None) -> "ReplyStore":
        """The store of a model's replies; `folder` is `FOLDER` unless given."""
        return cls((folder or FOLDER) / f"{slug(model)}.jsonl")

    @property
    def latest(self) -> StoredReply | None:
        """The reply that was read or added last."""
        return next(reversed(self._replies.values()), None)

    def get(self, key: str) -> StoredReply | None:
        """The reply under a key, if there is one."""
        return self._replies.get(key)

    def add(self, reply: StoredReply) -> None:
        """Append a reply to the file; it is on its way to the disk when this returns."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            torn = file.tell() > 0 and (file.seek(-1, 2), file.read(1))[1] != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(asdict(reply)).encode() + b"\n")
        self._replies.pop(reply.key, None)
        self._replies[reply.key] = reply


def _read(file: Path) -> Iterator[StoredReply]:
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            try:
                known = {name: value for name, value in json.loads(line).items() if name in _FIELDS}
                if known["masses"] is not None:
                    known["masses"] = tuple(known["masses"])
                reply = StoredReply(**known)
            except (ValueError, TypeError, KeyError, AttributeError):
                print(f"{file}:{number}: dropped a line that is no record; it is asked again", file=sys.stderr)
                continue
            yield reply


def slug(model: str) -> str:
    """A model's reference as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.")


class StoredEngine:
    """An engine that asks another engine only for replies that are not in the store, and adds them to it.

    Args:
        store: the replies.
        engine: the engine to ask; None for one that knows the store's replies and can be asked nothing else. It takes
            weights and build from the store's latest reply.

    Attributes:
        asked: how many calls reached the other engine.
    """

    fatal_error = ""
    concurrent_calls = None

    def __init__(self, store: ReplyStore, engine: Engine | None) -> None:
        self._store = store
        self._engine = engine
        self._identity: EngineIdentity | None = None
        self.asked = 0

    async def start(self) -> EngineIdentity:
        """Load the model, unless it is loaded."""
        if self._identity is None:
            self._identity = self._identity_of_store() if self._engine is None else await self._engine.start()
        return self._identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls in order."""
        for index, call in enumerate(batch.calls):
            outcome = await self.ask(replace(batch, calls=(call,)))
            yield index, outcome if isinstance(outcome, CallFailure) else outcome.reply

    async def ask(self, batch: Batch) -> StoredReply | CallFailure:
        """Ask a batch of one call."""
        found = self.find(batch)
        if found is not None:
            return found
        if self._engine is None:
            return CallFailure("parse", "this call is not in the store")
        began = time.perf_counter()
        async for _, outcome in self._engine.answer(batch):
            if isinstance(outcome, CallFailure):
                return outcome
            self.asked += 1
            stored = self._stored(batch, outcome, time.perf_counter() - began)
            self._store.add(stored)
            return stored
        return CallFailure("engine", "the engine gave no answer to the call")

    def find(self, batch: Batch) -> StoredReply | None:
        """The stored reply to a batch of one call, if there is one."""
        return self._store.get(self._key(batch))

    async def count_tokens(self, batch: Batch) -> int:
        """As the other engine counts; 0 without one."""
        return 0 if self._engine is None else await self._engine.count_tokens(batch)

    async def ready(self) -> bool:
        """Whether the other engine is ready."""
        return self._engine is None or await self._engine.ready()

    async def close(self) -> None:
        """Do nothing: the other engine belongs to whoever made it."""

    def _key(self, batch: Batch) -> str:
        identity, call = self._started, _only(batch)
        digests = CallDigests(f"{identity.weights_digest}\0{identity.engine}", batch.system, batch.shared)
        return digests.of(call)[0].hex()

    def _stored(self, batch: Batch, reply: Reply, seconds: float) -> StoredReply:
        if reply.masses is None and isinstance(_only(batch).answer, TokenChoice):
            raise ValueError("the engine reads no probabilities; measure with one that does, such as llama.cpp")
        return StoredReply(
            self._key(batch),
            self._started.model,
            self._started.weights_digest,
            self._started.engine,
            reply.masses,
            reply.tokens_computed,
            reply.tokens_reused,
            reply.tokens_written,
            round(seconds, 4),
            reply.chosen,
            reply.text,
            reply.cut,
        )

    @property
    def _started(self) -> EngineIdentity:
        if self._identity is None:
            raise RuntimeError("the engine is not started")
        return self._identity

    def _identity_of_store(self) -> EngineIdentity:
        latest = self._store.latest
        if latest is None:
            raise EngineStartError(f"{self._store.file} holds no replies; run python -m benchmarks.agreement first")
        able = Capabilities(True, True, True, prompt_logprobs=False, prefix_in_flight=False)
        return EngineIdentity(latest.model, latest.weights, latest.engine, "", "", 8192, 1, able)


def _only(batch: Batch) -> Call:
    """The call of a batch that has one, which must ask for an answer without reasons."""
    (call,) = batch.calls
    if call.reasoning is not None or call.think_tokens:
        raise ValueError("only replies without reasons and thoughts are stored")
    return call


def engine_of(model: str) -> Engine:
    """The engine of a model: a catalogue name, an `hf://` address or a path."""
    return LlamaCppEngine(model)


@asynccontextmanager
async def stored_engine(model: str) -> AsyncIterator[StoredEngine]:
    """A model's engine with its store of replies. The model is loaded by `start` and released at the end."""
    inner = engine_of(model)
    try:
        yield StoredEngine(ReplyStore.of_model(model), inner)
    finally:
        await inner.close()
