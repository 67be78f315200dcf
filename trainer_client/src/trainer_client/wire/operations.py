"""Long-running operations, as clients see them and as workers and the store exchange them.

Operations on the wire: long work as it is asked for, as it stands, and what came of it.

Knows nothing of where operations are kept, nor of who works on them.

What crosses between those who work on operations and the store that keeps them: chunks, leases, outcomes.

An operation is split into chunks, each of some inputs. A chunk is worked on under a lease, so that a worker that dies
holds it up no longer than that; and it is finished once, with all its results, whoever finishes it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, JsonValue, field_validator, model_validator

from trainer_client.wire.base import AnswerModel, BoundedFloat, Flag, RequestDict, RequestList, RequestModel
from trainer_client.wire.groups import Group
from trainer_client.wire.judging import Priority
from trainer_client.wire.rewards import RewardRequest, Usage
from trainer_client.wire.strict_json import NotStrictJsonError, strict_json
from trainer_client.wire.verdicts import VerdictRequest

OperationKind = Literal["score", "generate_rubrics", "validate_rubrics", "evaluate_judge"]
OperationState = Literal["queued", "running", "done", "failed", "cancelled"]

TERMINAL_STATES: frozenset[OperationState] = frozenset({"done", "failed", "cancelled"})
"""States that change no more, unless somebody asks for another try."""

MAX_INPUTS = 100_000
MAX_PAGE_RESULTS = 1000
"""Results that one page may have."""

CHUNK_DEADLINE_S = 600.0
"""Seconds that the judge has for one chunk of an operation, unless the request says otherwise."""


def _parse_jsonl(given: Any) -> Any:
    """A list from the text of a JSONL file, each line as strict JSON; anything else as it is."""
    if not isinstance(given, str):
        return given
    read = []
    for number, line in enumerate(StringIO(given, newline="\n"), 1):
        if line.strip():
            try:
                read.append(strict_json(line))
            except NotStrictJsonError as error:
                at = f", {error.field}" if error.field else ""
                raise ValueError(f"line {number}{at}: {error}") from None
            if len(read) > MAX_INPUTS:
                break  # one too many, which is refused like a list that is too long
    return read


class ScoreOperation(RewardRequest):
    """Score many groups: a `POST /v1/rewards` of any length, judged as bulk work unless `priority` says otherwise.

    `groups` is a list, or the text of a JSONL file with a group a line. `deadline_s` is for each chunk of the work.
    """

    kind: Literal["score"] = "score"
    deadline_s: BoundedFloat = Field(default=CHUNK_DEADLINE_S, gt=0, le=3600)
    priority: Priority = "bulk"
    groups: RequestList[Group] = Field(min_length=1, max_length=MAX_INPUTS)

    _read_lines = field_validator("groups", mode="before")(_parse_jsonl)


class LabelledGroup(Group):
    """A group whose verdicts are known: for each response, by criterion id, whether it is satisfied."""

    labels: RequestList[RequestDict[str, bool]]

    @model_validator(mode="after")
    def _labels_are_of_responses(self) -> "LabelledGroup":
        if len(self.labels) != len(self.responses):
            raise ValueError(f"{len(self.responses)} responses have {len(self.labels)} labels; give one object each")
        if not any(self.labels):
            raise ValueError('no criterion is labelled; write labels such as [{"criterion-id": true}]')
        return self


class EvaluateOperation(VerdictRequest):
    """Compare a judge's verdicts with labels: a `POST /v1/verdicts` of any length over labelled groups.

    Criteria without a label are judged and count for nothing.
    """

    kind: Literal["evaluate_judge"] = "evaluate_judge"
    deadline_s: BoundedFloat = Field(default=CHUNK_DEADLINE_S, gt=0, le=3600)
    priority: Priority = "bulk"
    groups: RequestList[LabelledGroup] = Field(min_length=1, max_length=MAX_INPUTS)

    _read_lines = field_validator("groups", mode="before")(_parse_jsonl)


class GenerateOperation(RequestModel):
    """Have a model write rubrics, one for each input.

    Attributes:
        generator: the kind of generator.
        inputs: what its inputs hold, a list of objects or the text of a JSONL file.
        parameters: what it is told.
        publish: whether the rubrics go into the store.
        prefix: what their names begin with.
    """

    kind: Literal["generate_rubrics"] = "generate_rubrics"
    generator: str = Field(min_length=1, max_length=100)
    inputs: RequestList[dict[str, JsonValue]] = Field(min_length=1, max_length=MAX_INPUTS)
    parameters: dict[str, JsonValue] = Field(default={})
    publish: Flag = True
    prefix: str = Field(default="", max_length=200)

    _read_lines = field_validator("inputs", mode="before")(_parse_jsonl)


class ValidateOperation(RequestModel):
    """Have a model judge whether the criteria of published rubrics are valid; each reference is a version."""

    kind: Literal["validate_rubrics"] = "validate_rubrics"
    references: RequestList[Annotated[str, Field(min_length=1, max_length=265)]] = Field(
        min_length=1, max_length=MAX_INPUTS
    )


OperationRequest = Annotated[
    ScoreOperation | GenerateOperation | ValidateOperation | EvaluateOperation, Field(discriminator="kind")
]
"""What `POST /v1/operations` takes; `kind` says which."""


class OperationProgress(AnswerModel):
    """How far an operation is.

    Attributes:
        done, total: inputs that need no more work, of how many; total is None until they are counted.
        known: those of the done that an earlier attempt had done.
        made: inputs that gave a result; `added` counts those that are new in the store, `unpublished` those that the
            store does not take.
        discarded: inputs that gave none, by reason.
        failed: inputs on which a judge or a model failed; another attempt tries those again that have no result.
        refused, repeated: lines of the input that could not be read, and those that repeat an earlier one.
        calls, tokens_computed, tokens_reused, tokens_written: what the model was asked.
        seconds: how long this attempt has taken.
        rate: inputs per second in this attempt; None until one is done.
        eta_s: seconds that the rest will take at this rate.
    """

    done: int = 0
    total: int | None = None
    known: int = 0
    made: int = 0
    added: int = 0
    unpublished: int = 0
    discarded: dict[str, int] = Field(default={})
    failed: int = 0
    refused: int = 0
    repeated: int = 0
    calls: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0
    seconds: float = 0.0
    rate: float | None = None
    eta_s: float | None = None


class Operation(AnswerModel):
    """An operation as it stands.

    Attributes:
        request: what was asked for, without its inputs where those are many.
        revision: grows with every change.
        usage: what its finished chunks, and tries of others that came to an answer, cost the judge.
        summary: what came of all of it together, for kinds that say such a thing, once it is done.
        problem: why it failed, or the last thing that went wrong.
        tries: how often it was begun: 1, and one more for each retry.
        expires_at: when it may be forgotten, results and all; None until it has ended, or where it is kept for good.
    """

    id: str
    project_id: str
    kind: OperationKind
    request: dict[str, JsonValue]
    state: OperationState
    revision: int
    progress: OperationProgress = OperationProgress()
    usage: Usage = Usage()
    summary: dict[str, JsonValue] | None = None
    problem: str | None = None
    tries: int = 1
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expires_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether it changes no more."""
        return self.state in TERMINAL_STATES


class OperationList(AnswerModel):
    """A project's operations, the newest first."""

    operations: tuple[Operation, ...]


class ResultPage(AnswerModel):
    """Results in the order in which they were made. `next_after` asks for the following page.

    `next_after` is None once the operation has ended and all its results were read: until then more may come.
    """

    results: tuple[dict[str, JsonValue], ...]
    next_after: int | None


ChunkState = Literal["queued", "running", "waiting", "done", "failed"]
"""`waiting` is the chunk that finishes an operation, until all others have ended."""

MAX_ATTEMPTS = 5
"""How often a chunk is begun before it is given up; attempts that found no service to ask are not counted."""

WILL_RETRY_HEADER = "Adjudge-Will-Try-Again"
"""A header of what a worker asks: `true` where it will ask again if verdicts fail that another attempt may mend."""


class ChunkRef(NamedTuple):
    """Which chunk: the `chunk`th of an operation, from 0."""

    project_id: str
    operation_id: str
    chunk: int


class NewChunk(NamedTuple):
    """Some inputs of an operation; `body` is what its kind makes of them, in JSON."""

    inputs: int
    body: JsonValue


class Submission(NamedTuple):
    """What its submitter calls a submission, and a digest of all that was asked for in it, as it came."""

    key: str
    asked: bytes


class NewOperation(NamedTuple):
    """An operation to be kept; under the same `submission` it is made once.

    `finishes` says whether one more chunk, without inputs, is worked on when all others have ended.
    """

    id: str
    project_id: str
    kind: OperationKind
    request: dict[str, Any]
    chunks: Sequence[NewChunk]
    created_at: datetime
    submission: Submission | None = None
    has_final_chunk: bool = False


class LeasedChunk(NamedTuple):
    """A chunk under a lease: `attempt` counts from 1, `body` is None for the chunk that finishes an operation."""

    ref: ChunkRef
    kind: OperationKind
    request: dict[str, Any]
    body: Any
    inputs: int
    attempt: int
    owner: str

    @property
    def last_attempt(self) -> bool:
        """Whether there will be no other."""
        return self.attempt >= MAX_ATTEMPTS


class ChunkOutcome(NamedTuple):
    """What came of a chunk.

    Attributes:
        results: an object each, in the order of the inputs.
        usage: what it cost the judge.
        counts: what to add to the operation's progress, by field; `done` is the chunk's inputs unless given.
        discarded: inputs that gave no result, by reason.
        summary: of the whole operation, from the chunk that finishes it.
    """

    results: Sequence[Mapping[str, JsonValue]] = ()
    usage: Usage = Usage()
    counts: Mapping[str, int] = {}
    discarded: Mapping[str, int] = {}
    summary: dict[str, JsonValue] | None = None


class OperationCounts(NamedTuple):
    """What a store holds at a moment, over all projects.

    Attributes:
        operations: how many there are of each kind in each state, those that are kept after their end included.
        chunks: how many chunks the operations that have not ended have, of each kind in each state.
        oldest_due_at: since when the chunk that has waited longest could have been begun; None where none waits.
    """

    operations: Mapping[tuple[OperationKind, OperationState], int]
    chunks: Mapping[tuple[OperationKind, ChunkState], int]
    oldest_due_at: datetime | None
