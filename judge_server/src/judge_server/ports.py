"""What judging needs from outside itself, each as a small Protocol, and the plain values that cross.

Adapters live elsewhere: engines in `judge_server.engines`, caches in `judge_server.cache`, the rubric store in a
package of its own that this one must not import. `services` plugs them together.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainer_client.wire import FailureKind, RubricContent, RubricPage, RubricVersion


@dataclass(frozen=True, slots=True)
class Option:
    """One permitted answer: the label a prompt asks for, and every spelling a model may give it."""

    label: str
    spellings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A second constrained answer that follows the first: `lead` is written for the model, then it picks a label."""

    lead: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One question about the shared text of its batch, with the menu of permitted answers."""

    question: str
    menu: tuple[Option, ...]
    then: Choice | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that share everything before their question, so that an engine computes it once.

    The user message of each call is `shared + question`; `system` is the system message.
    """

    system: str
    shared: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered to one call.

    `masses` holds, per option, the probability of all its spellings together as the next token **before** any
    constraint (each in [0, 1], their sum at most 1). `chosen` is the label picked for `Call.then`, given the option
    of greater mass. Token counts are of the prompt.
    """

    masses: tuple[float, ...]
    chosen: str | None = None
    tokens_computed: int = 0
    tokens_reused: int = 0


@dataclass(frozen=True, slots=True)
class CallFailed:
    """Why a call has no reply."""

    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Everything about an engine that can change a verdict; it enters the judge fingerprint."""

    model: str
    weights_digest: str
    engine: str
    chat_template_digest: str
    decoding: str
    context_tokens: int
    concurrent_batches: int


class Engine(Protocol):
    """A model that answers batches of constrained questions."""

    async def start(self) -> EngineIdentity:
        """Load the model and warm it up; raises `EngineStartError` with the way out when it cannot."""

    def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailed]]:
        """Answer the batch's calls, each as (its index, outcome), as soon as it is known."""

    async def count_tokens(self, batch: Batch) -> int:
        """How many tokens the batch's longest prompt takes, chat template and answer included.

        Raises `EngineGone` when it cannot be asked.
        """

    async def ready(self) -> bool:
        """Whether the engine could answer a batch now."""

    async def close(self) -> None:
        """Release the model; calls in flight fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict as it is kept under its call digest: no run, no criterion id, no response."""

    score: float
    probability: float | None
    menu_mass: float | None
    step: int | None


class VerdictCache(Protocol):
    """Findings by call digest. The first one stored under a digest stands. Failures are never stored.

    A cache that cannot be reached knows nothing and keeps nothing: a request is judged all the same.
    """

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, Finding]:
        """The findings known for these digests."""

    async def put_many(self, findings: Mapping[bytes, Finding]) -> None:
        """Store findings, leaving those already there untouched."""

    async def ready(self) -> bool:
        """Whether it can be reached."""

    async def close(self) -> None:
        """Release connections."""


class RubricSource(Protocol):
    """Where named rubrics come from."""

    async def find(self, project_id: str, reference: str) -> RubricVersion | None:
        """The version that `name`, `name@3` or `sha256:…` stands for; None if there is none."""

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference that looks most like this one, for an error message."""

    async def publish(self, project_id: str, name: str, content: RubricContent) -> tuple[RubricVersion, bool]:
        """Add a version, or return the one that has this content already; True if it was added."""

    async def list(self, project_id: str, *, prefix: str, after: str | None, limit: int) -> RubricPage:
        """Rubrics by name, newest version of each, `limit` a page; `ValueError` where `after` is no cursor of ours."""

    async def ready(self) -> bool:
        """Whether the store can be read."""
