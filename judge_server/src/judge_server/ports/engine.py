"""What judging asks of a model: batches of constrained questions, and what comes back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from trainer_client.wire import FailureKind


@dataclass(frozen=True, slots=True)
class Option:
    """One permitted answer: the label a prompt asks for, and every spelling a model may give it."""

    label: str
    spellings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelChoice:
    """An answer picked among labels: `lead` is written for the model, then it picks one of them.

    Where an engine can write nothing for the model, `ask` is what the user asks for it.
    """

    labels: tuple[str, ...]
    lead: str = ""
    ask: str = ""

    @property
    def reserved_tokens(self) -> int:
        """The most tokens a label can take, and one that ends it: no tokenizer makes more tokens than bytes."""
        return max(len(label.encode()) for label in self.labels) + 1


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """An answer of one token, whose probabilities are read; then, where asked, a choice that follows it."""

    options: tuple[Option, ...]
    then: LabelChoice | None = None


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """An answer written as JSON. `schema` is the JSON Schema it must satisfy, as canonical JSON text."""

    schema: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class TextOutput:
    """An answer in words, up to the end of the model's turn or to `max_tokens`."""

    max_tokens: int


AnswerForm = TokenChoice | LabelChoice | JsonOutput | TextOutput


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasons written before the answer: at most `max_tokens` of them, then the user asks `ask` for the answer."""

    max_tokens: int
    ask: str


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How what is written is sampled; without one, everything is decoded greedily."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Call:
    """One question about the shared text of its batch, and the form its answer takes.

    The model may first think (`think_tokens`, 0 for not at all; the thoughts are dropped), then give its `reasoning`,
    then answers in the form asked for.
    """

    question: str
    answer: AnswerForm
    reasoning: Reasoning | None = None
    think_tokens: int = 0
    sample: SamplingOptions | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that share everything before their question, so that an engine computes it once.

    The first user message of each call is `shared + question`; `system` is the system message.
    """

    system: str
    shared: str
    calls: tuple[Call, ...]


MASS_TOLERANCE = 1e-3
"""How far probabilities of one token may exceed a sum of 1, as servers round their logarithms."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered to one call.

    Attributes:
        masses: for a `TokenChoice`, the probability of all spellings of each option together as the next token **before**
            any constraint (each in [0, 1], their sum at most 1); None where the engine cannot read them.
        chosen: for a `LabelChoice` (also the one that follows a menu, given the option of greatest mass), the label
            picked; None where the engine cannot hold the model to the labels.
        text: for `Written` and `TextOutput`, what was written. For the other forms, on an engine that cannot constrain or
            read probabilities, what the model said instead, to be read by `judge_server.judging.replies`.
        cut: the text ended at its limit of tokens.
        reasoning: the reasons given first, where they were asked for.
        tokens_computed: prompt tokens that were computed.
        tokens_reused: prompt tokens whose computation was reused.
        tokens_written: tokens the model wrote.
        miscounted: the engine's own counts of tokens could not be, and these are clipped to what can.
    """

    masses: tuple[float, ...] | None = None
    chosen: str | None = None
    text: str | None = None
    cut: bool = False
    reasoning: str | None = None
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    count_clipped_reply: bool = False


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Why a call has no reply; `retry_after_s` is how long the engine asked to be left alone, if it did."""

    kind: FailureKind
    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do, as found when it started.

    Attributes:
        logprobs: menus are answered with the masses of their options before any constraint.
        token_menus: answers to menus and choices are held to what is on offer; without it the model's text is read.
        json_schema: written answers are held to their schema.
        prompt_logprobs: the probabilities of given tokens can be read.
        prefix_in_flight: calls submitted together share the computation of their prefix.
        seeds: a sampled answer can be repeated by its seed.
    """

    logprobs: bool
    token_menus: bool
    json_schema: bool
    prompt_logprobs: bool
    prefix_in_flight: bool
    seeds: bool = True


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine is: everything about it that can change a verdict (it enters the judge fingerprint), and what
    it can take: `context_tokens` in a prompt, `concurrent_batches` at a time."""

    model: str
    weights_digest: str
    engine: str
    chat_template_digest: str
    decoding: str
    context_tokens: int
    concurrent_batches: int
    capabilities: Capabilities


class Engine(Protocol):
    """A model that answers batches of constrained questions."""

    @property
    def fatal_error(self) -> str:
        """Why it will never answer again, and its process must be started anew, in words; empty while it may answer."""

    @property
    def concurrent_calls(self) -> int | None:
        """How many calls it works on at a time, of whatever batches; None where it bounds batches only."""

    async def start(self) -> EngineIdentity:
        """Load the model and warm it up; raises `EngineStartError` with the way out when it cannot."""

    def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the batch's calls, each as (its index, outcome), as soon as it is known.

        Closing the iterator before its end, or cancelling the task that waits for it, stops what is being computed.
        """

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes, chat template and answer included.

        Raises `EngineUnavailable` when it cannot be asked.
        """

    async def ready(self) -> bool:
        """Whether the engine could answer a batch now."""

    async def close(self) -> None:
        """Release the model; calls in flight fail."""
