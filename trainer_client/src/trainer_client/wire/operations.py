"""Long-running operations, as clients submit and follow them.

An operation is split into chunks of inputs, which workers process.
"""

from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from trainer_client.wire.base import (
    AnswerModel,
    BoundedFloat,
    Count,
    Flag,
    NotStrictJsonError,
    RequestDict,
    RequestList,
    RequestModel,
    strict_json,
)
from trainer_client.wire.groups import (
    MAX_RUN_CHARACTERS,
    Group,
    GroupId,
    Prompt,
    Response,
    ResponseLike,
    RubricChoice,
    RunName,
)
from trainer_client.wire.judging import JudgeName, JudgingOptions, Priority
from trainer_client.wire.rewards import RewardRequest
from trainer_client.wire.verdicts import Usage, VerdictRequest

OperationKind = Literal[
    "score", "reverify", "generate_rubrics", "validate_rubrics", "evaluate_judge", "discriminate_rubrics"
]
OperationState = Literal["queued", "running", "done", "failed", "cancelled"]

TERMINAL_STATES: frozenset[OperationState] = frozenset({"done", "failed", "cancelled"})
"""States that are final unless the operation is retried."""

MAX_INPUTS = 100_000

CHUNK_DEADLINE_S = 600.0
"""The default deadline for judging one chunk of an operation, in seconds. Bulk work waits behind training."""


def _parse_jsonl(given: Any) -> Any:
    """Parse the text of a JSONL file to a list, each line as strict JSON. Any other value is returned as it is."""
    if not isinstance(given, str):
        return given
    values = []
    for number, line in enumerate(StringIO(given, newline="\n"), 1):
        if line.strip():
            try:
                values.append(strict_json(line))
            except NotStrictJsonError as error:
                path = f", {error.field}" if error.field else ""
                raise ValueError(f"line {number}{path}: {error}") from None
            if len(values) > MAX_INPUTS:
                break  # the field's own bound refuses the list
    return values


class ScoreOperation(RewardRequest):
    """Score many groups: `POST /v1/rewards` for up to 100,000 groups, with `priority` `bulk` by default.

    `groups` is a list, or the text of a JSONL file with one group per line. `deadline_s` applies to each chunk.
    """

    kind: Literal["score"] = "score"
    deadline_s: BoundedFloat = Field(default=CHUNK_DEADLINE_S, gt=0, le=3600)
    priority: Priority = "bulk"
    groups: RequestList[Group] = Field(min_length=1, max_length=MAX_INPUTS)

    _read_lines = field_validator("groups", mode="before")(_parse_jsonl)


REVERIFIED_SUFFIX = "/reverified"
"""Run NAME is judged again under NAME/reverified, unless the request names another run."""


class ReverifyOperation(RequestModel):
    """Judge recorded groups of a run again, in a run of their own, and compare the rewards.

    A group is judged as its request was recorded, but for what this request says otherwise. A verdict that the ledger
    has of the same call, by the same judge, is not asked again. So `failed` asks for the failed verdicts only, although
    whole groups are rewarded.

    Attributes:
        run: the run to judge again.
        into: the run that the new records belong to; by default `RUN/reverified`. Required with another judge, options
            or rubric.
        verdicts: `failed` for the groups in which a verdict failed, `all` for every group.
        share: the share of these groups to judge, in (0, 1]; a hash of each group decides which.
        first_step, last_step: only groups of these training steps, both included.
        judge: the judge to ask, instead of the one that was asked.
        judging: options that replace the recorded ones of the same names.
        rubric: the rubric to judge by, instead of each group's own.
    """

    kind: Literal["reverify"] = "reverify"
    run: RunName
    into: RunName | None = None
    verdicts: Literal["failed", "all"] = "failed"
    share: BoundedFloat = Field(default=1.0, gt=0, le=1)
    first_step: Count | None = None
    last_step: Count | None = None
    judge: JudgeName | None = None
    judging: JudgingOptions = JudgingOptions()
    rubric: RubricChoice | None = None

    @model_validator(mode="after")
    def _new_run_is_another(self) -> "ReverifyOperation":
        if self.into == self.run:
            raise ValueError(
                f"into is the run itself, whose records stay as they are; name another run than {self.run!r}"
            )
        otherwise = [name for name in ("judge", "judging", "rubric") if name in self.model_fields_set]
        if self.into is None and otherwise:
            raise ValueError(
                f"name the new run with into, because {otherwise[0]} is given: {self.run + REVERIFIED_SUFFIX!r} is for "
                "what is judged as it was recorded, and records of several judges or rubrics do not belong in one run"
            )
        if self.into is None and len(self.run) > MAX_RUN_CHARACTERS - len(REVERIFIED_SUFFIX):
            raise ValueError(f"the run's name is too long to have {REVERIFIED_SUFFIX!r} added to it; set into")
        if self.first_step is not None and self.last_step is not None and self.first_step > self.last_step:
            raise ValueError(f"last_step {self.last_step} is before first_step {self.first_step}")
        return self

    @property
    def new_run(self) -> str:
        """The run that the new records belong to."""
        return self.into or self.run + REVERIFIED_SUFFIX


class LabelledGroup(Group):
    """A group with known verdicts.

    Attributes:
        labels: one object per response: by criterion id, whether it is met.
    """

    labels: RequestList[RequestDict[str, bool]]

    @model_validator(mode="after")
    def _labels_are_of_responses(self) -> "LabelledGroup":
        if len(self.labels) != len(self.responses):
            raise ValueError(
                f"{len(self.responses)} responses have {len(self.labels)} labels; give one object for each response"
            )
        if not any(self.labels):
            raise ValueError('no criterion is labelled; write labels such as [{"criterion-id": true}]')
        return self


class EvaluateOperation(VerdictRequest):
    """Compare a judge's verdicts with labels: `POST /v1/verdicts` for up to 100,000 labelled groups.

    Criteria without a label are judged, but do not enter the comparison.
    """

    kind: Literal["evaluate_judge"] = "evaluate_judge"
    deadline_s: BoundedFloat = Field(default=CHUNK_DEADLINE_S, gt=0, le=3600)
    priority: Priority = "bulk"
    groups: RequestList[LabelledGroup] = Field(min_length=1, max_length=MAX_INPUTS)

    _read_lines = field_validator("groups", mode="before")(_parse_jsonl)


def _as_list(given: Any) -> Any:
    """Put a single response into a list. A list is one of responses, so a conversation stands in a list of its own."""
    return [given] if isinstance(given, str | dict) else given


RatedResponses = Annotated[
    RequestList[ResponseLike],
    BeforeValidator(_as_list, json_schema_input_type=str | Response | tuple[ResponseLike, ...]),
]
"""A response, or a list of them."""


class PairedGroup(RequestModel):
    """A prompt with responses that are known to be good and bad; its other fields are those of a `Group`.

    Attributes:
        id: a name; by default the place of the group in its list, such as `line-1`.
        good: a response known to be good, or a list of them.
        bad: a response known to be bad, or a list of them.
        ground_truth: the right final answer, which programs compare with and the judge sees.
    """

    id: GroupId | None = None
    prompt: Prompt
    good: RatedResponses = Field(min_length=1, max_length=2048)
    bad: RatedResponses = Field(min_length=1, max_length=2048)
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None
    rubric: RubricChoice | None = None

    @property
    def responses(self) -> tuple[ResponseLike, ...]:
        """The good responses, then the bad ones."""
        return self.good + self.bad


class DiscriminateOperation(RewardRequest):
    """Measure how well rubrics tell good responses from bad ones: `POST /v1/rewards` for both, then a comparison.

    `groups` is a list, or the text of a JSONL file, of up to 100,000 prompts with a `good` and a `bad` response or
    lists of them. Rewards are compared within a prompt only.
    """

    kind: Literal["discriminate_rubrics"] = "discriminate_rubrics"
    deadline_s: BoundedFloat = Field(default=CHUNK_DEADLINE_S, gt=0, le=3600)
    priority: Priority = "bulk"
    groups: RequestList[PairedGroup] = Field(min_length=1, max_length=MAX_INPUTS)  # type: ignore[assignment]

    @field_validator("groups", mode="before")
    @classmethod
    def _read_lines(cls, given: Any) -> Any:
        groups = _parse_jsonl(given)
        if not isinstance(groups, list | tuple):
            return groups
        return [
            {"id": f"line-{number}", **group} if isinstance(group, dict) else group
            for number, group in enumerate(groups, 1)
        ]


class GenerateOperation(RequestModel):
    """Generate rubrics with a model, one for each input.

    Attributes:
        generator: the kind of generator.
        inputs: a list of objects, or the text of a JSONL file; the generator defines their fields.
        parameters: the generator's parameters.
        publish: whether to publish the rubrics in the store.
        prefix: the prefix of their names.
    """

    kind: Literal["generate_rubrics"] = "generate_rubrics"
    generator: str = Field(min_length=1, max_length=100)
    inputs: RequestList[dict[str, JsonValue]] = Field(min_length=1, max_length=MAX_INPUTS)
    parameters: dict[str, JsonValue] = Field(default={})
    publish: Flag = True
    prefix: str = Field(default="", max_length=200)

    _read_lines = field_validator("inputs", mode="before")(_parse_jsonl)


class ValidateOperation(RequestModel):
    """Judge whether the criteria of published rubrics are valid. Each reference selects one version.

    Attributes:
        references: the versions, as `name`, `name@3` or `name@alias`.
    """

    kind: Literal["validate_rubrics"] = "validate_rubrics"
    references: RequestList[Annotated[str, Field(min_length=1, max_length=265)]] = Field(
        min_length=1, max_length=MAX_INPUTS
    )


OperationRequest = Annotated[
    ScoreOperation
    | ReverifyOperation
    | GenerateOperation
    | ValidateOperation
    | EvaluateOperation
    | DiscriminateOperation,
    Field(discriminator="kind"),
]
"""The body of `POST /v1/operations`; `kind` selects the variant."""


class OperationProgress(AnswerModel):
    """The progress of an operation.

    Attributes:
        done: inputs that need no more work.
        total: all inputs; null until they are counted.
        known: done inputs that an earlier attempt finished.
        made: inputs that gave a result.
        added: results that are new in the store.
        unpublished: results that the store refused.
        discarded: inputs without a result, by reason.
        failed: inputs on which a judge or a model failed. A retry processes those that have no result.
        refused: lines of the input that could not be read.
        repeated: lines of the input that repeat an earlier one.
        calls, tokens_computed, tokens_reused, tokens_written: calls of the model and its tokens.
        seconds: the duration of this attempt so far.
        rate: inputs per second in this attempt; null until one is done.
        eta_s: seconds that the remaining inputs will take at this rate.
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
    """An operation and its current state.

    Attributes:
        request: the request, without its inputs if there are many.
        revision: a number that grows with every change.
        usage: the judging cost of its finished chunks, and of answered attempts of other chunks.
        summary: a summary of the whole operation once it is done, for kinds that have one.
        problem: why it failed, or the most recent problem.
        tries: how often it was started: 1, plus 1 for each retry.
        expires_at: when it may be deleted with its results; null until it has ended, or if it is kept forever.
        id: the id under which it is followed.
        progress: how far it is.
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
        """Whether the operation has reached a final state."""
        return self.state in TERMINAL_STATES


class OperationList(AnswerModel):
    """A page of the operations of a project, newest first.

    Attributes:
        operations: the operations.
    """

    operations: tuple[Operation, ...]
    next_cursor: str | None = None


class ResultPage(AnswerModel):
    """A page of results in the order in which they were produced.

    Attributes:
        results: the results.
        next_cursor: send it as `after` to get the next page; null once the operation has ended and all its results have
            been read. Until then, more may follow.
    """

    results: tuple[dict[str, JsonValue], ...]
    next_cursor: str | None
