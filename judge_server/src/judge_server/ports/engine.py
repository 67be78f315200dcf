"""The engine port: batches of constrained questions to a model, and its replies."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from trainer_client.wire import FailureKind


@dataclass(frozen=True, slots=True)
class Option:
    """One permitted answer: the label that a prompt asks for, and every spelling a model may use for it.

    `description` says when the answer applies, to a model that takes options apart from the prompt.
    """

    label: str
    spellings: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class LabelChoice:
    """An answer picked from labels: `lead` is written on behalf of the model, which then picks a label.

    If the engine cannot write on behalf of the model, the user message `ask` asks for the label instead.
    """

    labels: tuple[str, ...]
    lead: str = ""
    ask: str = ""

    @property
    def reserved_tokens(self) -> int:
        """The most tokens of a label, plus one to end it. No tokenizer makes more tokens than there are bytes."""
        return max(len(label.encode()) for label in self.labels) + 1


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """An answer of one token, whose probabilities are read; `then` is an optional label choice after it.

    `lead` is written on behalf of the model before that token. An engine that cannot do so lets the model write it, and
    reads the token after it.
    """

    options: tuple[Option, ...]
    then: LabelChoice | None = None
    lead: str = ""

    def lead_end(self, text: str) -> int:
        """Return where the lead ends that a text begins with, however it is spaced; 0 if it begins otherwise.

        The first lines of the lead may be missing, because servers take thinking out of a text.
        """
        lines = self.lead.splitlines()
        for first in range(len(lines)):
            words = " ".join(lines[first:]).split()
            if words and (found := re.match(r"\s*" + r"\s*".join(map(re.escape, words)), text)):
                return found.end()
        return 0


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """An answer written as JSON. `schema` is the JSON Schema it must satisfy, as canonical JSON text."""

    schema: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class TextOutput:
    """An answer as free text, to the end of the model's turn or to `max_tokens`."""

    max_tokens: int


AnswerForm = TokenChoice | LabelChoice | JsonOutput | TextOutput


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A rationale before the answer: at most `max_tokens` tokens, then the user message `ask` asks for the answer."""

    max_tokens: int
    ask: str


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How written text is sampled. Without it, decoding is greedy."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Call:
    """One question about the shared text of its batch, and the form of its answer.

    The model may first think (up to `think_tokens`, 0 for none; the thoughts are dropped), then writes its `reasoning`
    if asked, then answers in the form asked for.
    """

    question: str
    answer: AnswerForm
    reasoning: Reasoning | None = None
    think_tokens: int = 0
    sample: SamplingOptions | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that share everything before their question, so that an engine computes that part once.

    The first user message of each call is `shared + question`, with the `images` (data URLs) between them; `system` is
    the system message. Batches of different `cache_salt` reuse nothing of each other in an engine's prefix cache, so
    that no caller can tell from the time of a call what others have asked.
    """

    system: str
    shared: str
    calls: tuple[Call, ...]
    images: tuple[str, ...] = ()
    cache_salt: str = ""


IMAGE_TOKENS = 1024
"""The prompt tokens that an image is estimated to take."""

MASS_TOLERANCE = 1e-3
"""How far the probabilities of one token may exceed a sum of 1, because servers round their logarithms."""


class Reply(NamedTuple):
    """The model's reply to one call.

    Attributes:
        masses: for a `TokenChoice`, the probability of each option (all its spellings together) as the next token
            **before** any constraint; each in [0, 1], with a sum of at most 1. None if the engine cannot read them.
        chosen: for a `LabelChoice`, the label picked; after a token choice it is picked given the option of greatest
            mass. None if the engine cannot hold the model to the labels.
        masses_normalized: whether the masses sum to 1 because the engine reports only the options' shares, so that
            their sum does not tell how much of the distribution lies on them.
        text: for `JsonOutput` and `TextOutput`, the text written. For the other forms, on an engine that cannot
            constrain or read probabilities, the model's text, which `judge_server.judging.replies` reads.
        cut: whether the text ended at its token limit.
        reasoning: the rationale, if one was asked for.
        tokens_computed: prompt tokens that were computed.
        tokens_reused: prompt tokens whose computation was reused.
        tokens_written: tokens that the model wrote.
        counts_clipped: whether the engine reported impossible token counts, which were clipped to possible ones.
    """

    masses: tuple[float, ...] | None = None
    chosen: str | None = None
    text: str | None = None
    cut: bool = False
    reasoning: str | None = None
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    counts_clipped: bool = False
    masses_normalized: bool = False


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call has no reply.

    `retry_after_s` is the delay that the engine asked for, if any; infinity if asking again is of no use.
    """

    kind: FailureKind
    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, as determined when it starts.

    Attributes:
        logprobs: token choices are answered with the masses of their options before any constraint.
        token_menus: token and label choices are constrained to what is on offer; without it the model's text is read.
        json_schema: JSON outputs are constrained to their schema.
        prompt_logprobs: the probabilities of given tokens can be read.
        prefix_in_flight: calls submitted together share the computation of their prefix.
        seeds: a sampled answer can be repeated by its seed.
        typed_questions: the model is a decision model: it answers token and label choices, each as a typed question
            about a state, and writes nothing.
        images: a batch may have images.
    """

    logprobs: bool
    token_menus: bool
    json_schema: bool
    prompt_logprobs: bool
    prefix_in_flight: bool
    seeds: bool = True
    typed_questions: bool = False
    images: bool = False


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """The properties of an engine that can change a verdict (they enter the judge fingerprint), and its capacity.

    The capacity is `context_tokens` in a prompt and `concurrent_batches` at a time; it is not in the fingerprint.
    `asks` is the digest of the only question that the weights can answer, as a probe's can; '' for any other model.
    """

    model: str
    weights_digest: str
    engine: str
    chat_template_digest: str
    decoding: str
    context_tokens: int
    concurrent_batches: int
    capabilities: Capabilities
    asks: str = ""


BreakerState = Literal["closed", "open", "half_open"]

MemberState = BreakerState | Literal["gone"]
"""The state of a member's circuit breaker, or that its health checks fail."""


class MemberView(NamedTuple):
    """A member's status for operators: its name without credentials, its state, and its current load."""

    name: str
    state: MemberState
    load: int


class PoolState(Protocol):
    """The state of several engines that act as one."""

    @property
    def capacity(self) -> int:
        """How many batches the members that are up take together now."""

    def members(self) -> list[MemberView]:
        """Return each member's name, state and number of calls in flight."""


class Engine(Protocol):
    """A model that answers batches of constrained questions."""

    @property
    def pool(self) -> PoolState | None:
        """The pool that this engine is; None for a single engine, whose identity states its capacity."""

    @property
    def fatal_error(self) -> str:
        """Why the engine can never answer again without a restart of its process; empty while it may answer."""

    @property
    def concurrent_calls(self) -> int | None:
        """How many calls it works on at a time, over all batches; None if it limits only batches."""

    async def start(self) -> EngineIdentity:
        """Load the model and warm it up. Raises `EngineStartError`, which says what to do, if that fails."""

    def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the batch's calls, yielding (index, outcome) as each becomes known.

        Closing the iterator early, or cancelling the task that waits for it, stops the computation.
        """

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the batch's longest prompt, chat template and answer included.

        Raises `EngineUnavailable` if the engine cannot be asked.
        """

    async def ready(self) -> bool:
        """Whether the engine could answer a batch now."""

    async def close(self) -> None:
        """Release the model; calls in flight fail."""


@runtime_checkable
class SleepingEngine(Protocol):
    """What an engine has besides the methods of `Engine` if it can release its model's memory while it stays started.

    Both methods are called while no batch is at the engine, one at a time, and may be repeated.
    """

    async def sleep(self) -> None:
        """Release the model's memory.

        Raises:
            CannotSleep: it cannot, the way it was started; the model is as it was.
            EngineUnavailable: it failed; how far it came is unknown.
        """

    async def wake(self) -> None:
        """Load the same model again, so that calls get the answers that they got before, also after a failed `sleep`.

        Raises `EngineUnavailable`, which says why, if it cannot now.
        """


class Adapter(NamedTuple):
    """A LoRA adapter: the name that it was asked for by, its resolved path, and the SHA-256 of its content, in hex."""

    name: str
    path: Path
    sha256: str

    @property
    def id(self) -> str:
        """A short name that only this content has."""
        return self.sha256[:12]


@runtime_checkable
class LoadingEngine(Protocol):
    """What an engine has besides the methods of `Engine` if it can change its weights while it stays started."""

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Answer with this adapter on the weights of the engine's URL, or with these alone, and return the identity.

        The identity's weights follow from the content of the files alone, wherever they are. Only where the engine
        cannot see them do they follow from `version`. Called while no batch is at the engine and it is awake.

        Raises:
            CannotLoad: it cannot; the weights are those before.
            EngineUnavailable: it failed; which weights it has is unknown, and no call comes until a later `load`.
        """
