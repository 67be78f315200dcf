"""Store a model's replies in a JSONL file, so that an interrupted measurement can continue.

The store holds replies, and verdicts are parsed from them each time. So a changed calibration is measured without
calling the model, while a changed prompt leads to a new call, since the prompt is part of the key.
"""

import json
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

from judge_server.engines import engine_from_url
from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.errors import EngineStartError
from judge_server.judging.questions import CallDigests
from judge_server.ports import Batch, Call, CallFailure, Capabilities, Engine, EngineIdentity, Reply, TokenChoice

FOLDER = Path(".cache/agreement")


@dataclass(frozen=True, slots=True)
class StoredReply:
    """One line of the file: a model's reply to one question, and its cost.

    Attributes:
        key: the digest of weights, engine build, system message, shared text, question and answer form.
        model, weights, engine: the model's name, the SHA-256 of its file, the engine's build.
        masses: the probability of each option as the next token, before any constraint; None for a written answer.
        tokens_computed, tokens_reused: prompt tokens that were computed, and reused.
        tokens_written: tokens of the reply.
        seconds: the time of the call.
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
        """The total probability of all options; 0 for a written answer."""
        return sum(self.masses or ())

    @property
    def raw_probability(self) -> float | None:
        """yes / (yes + no) for a yes-or-no question; None if both are 0, and for any other question."""
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
    """The replies in one file, by key. Invalid lines, such as an incomplete last one, are dropped with a message."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._replies = {reply.key: reply for reply in _read(file)}

    @classmethod
    def of_model(cls, model: str, folder: Path | None = None) -> "ReplyStore":
        """Open the store of a model's replies; `folder` defaults to `FOLDER`."""
        return cls((folder or FOLDER) / f"{slug(model)}.jsonl")

    @property
    def latest(self) -> StoredReply | None:
        """The reply that was read or added last; None if there is none."""
        return next(reversed(self._replies.values()), None)

    def get(self, key: str) -> StoredReply | None:
        """Return the reply with this key, if there is one."""
        return self._replies.get(key)

    def add(self, reply: StoredReply) -> None:
        """Append a reply to the file, without waiting for the disk."""
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
                print(f"{file}:{number}: dropped an invalid line; its question will be asked again", file=sys.stderr)
                continue
            yield reply


def slug(model: str) -> str:
    """Convert a model's reference to a file name: of an engine's URL, the scheme and the model's own name."""
    if _is_engine_url(model):
        url = urlsplit(model)
        model = f"{url.scheme} {Path(url.netloc + url.path).name}"
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.")


def _is_engine_url(model: str) -> bool:
    return "://" in model and not model.startswith("hf://")


class StoredEngine:
    """An engine that answers from a store, and calls another engine for missing replies, which it adds to the store.

    Args:
        store: the replies.
        engine: the engine to call; None to answer only from the store. The weights and the engine build are then those
            of the store's latest reply.

    Attributes:
        asked: number of calls to the other engine.
    """

    fatal_error = ""
    concurrent_calls = None
    pool = None

    def __init__(self, store: ReplyStore, engine: Engine | None) -> None:
        self._store = store
        self._engine = engine
        self._identity: EngineIdentity | None = None
        self.asked = 0

    async def start(self) -> EngineIdentity:
        """Load the model if it is not loaded yet."""
        if self._identity is None:
            self._identity = self._identity_of_store() if self._engine is None else await self._engine.start()
        return self._identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls in order."""
        for index, call in enumerate(batch.calls):
            outcome = await self.ask(replace(batch, calls=(call,)))
            yield index, outcome if isinstance(outcome, CallFailure) else outcome.reply

    async def ask(self, batch: Batch) -> StoredReply | CallFailure:
        """Answer a batch of one call, from the store if possible."""
        known = self.find(batch)
        if known is not None:
            return known
        if self._engine is None:
            return CallFailure("parse", "the call is not in the store")
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
        """Return the stored reply to a batch of one call, if there is one."""
        return self._store.get(self._key(batch))

    async def count_tokens(self, batch: Batch) -> int:
        """Return the other engine's count of tokens; 0 without an engine."""
        return 0 if self._engine is None else await self._engine.count_tokens(batch)

    async def ready(self) -> bool:
        """Whether the other engine is ready."""
        return self._engine is None or await self._engine.ready()

    async def close(self) -> None:
        """Do nothing: the caller closes the other engine."""

    def _key(self, batch: Batch) -> str:
        identity, call = self._started, _only(batch)
        digests = CallDigests(f"{identity.weights_digest}\0{identity.engine}", batch)
        return digests.of(call)[0].hex()

    def _stored(self, batch: Batch, reply: Reply, seconds: float) -> StoredReply:
        if reply.masses is None and isinstance(_only(batch).answer, TokenChoice):
            raise ValueError("the engine does not return probabilities; use one that does, such as llama.cpp")
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
            raise EngineStartError(f"{self._store.file} has no replies; run python -m benchmarks.agreement first")
        able = Capabilities(True, True, True, prompt_logprobs=False, prefix_in_flight=False)
        return EngineIdentity(latest.model, latest.weights, latest.engine, "", "", 8192, 1, able)


def _only(batch: Batch) -> Call:
    """Return the only call of a batch; it must not ask for reasons or thoughts."""
    (call,) = batch.calls
    if call.reasoning is not None or call.think_tokens:
        raise ValueError("only replies without reasons and thoughts can be stored")
    return call


def engine_of(model: str) -> Engine:
    """Create the engine of a model: llama.cpp for a catalogue name, an `hf://` address or a path; else an engine's URL.

    vLLM reads prompts several times as fast as llama.cpp on a CPU with AMX: `vllm:///FOLDER?context=8192`.
    """
    if _is_engine_url(model):
        return engine_from_url(model)
    return LlamaCppEngine(model)


@asynccontextmanager
async def stored_engine(model: str) -> AsyncIterator[StoredEngine]:
    """Open a model's engine with its store of replies. `start` loads the model; the end of the block releases it."""
    inner = engine_of(model)
    try:
        yield StoredEngine(ReplyStore.of_model(model), inner)
    finally:
        await inner.close()
