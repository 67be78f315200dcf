"""The messages between an api and a judge process: calls to answer, and outcomes as they become known.

They are internal to a deployment: both ends must have the same `PROTOCOL_VERSION`. Under one version, a newer end may
send additional fields, which have defaults and which an older end may ignore. Anything that an older end would
misunderstand or needs raises the version; so does any change to a judge's identity. Digests are sent as hex, and a
question shared by many responses is sent once.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from judge_server.judging.calibration import UNSCALED, ProbabilityMap
from judge_server.judging.plan import PendingVerdict, PlannedCall, ResponsePlan
from judge_server.judging.questions import Question, Reading
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.judging.results import NO_COSTS, Caller, Costs, Outcomes
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    EngineIdentity,
    JsonOutput,
    JudgeResult,
    LabelChoice,
    TokenChoice,
)
from judge_server.scheduling.weights import WeightsReport
from trainer_client.wire.judges import SleepState

PROTOCOL_VERSION = 6
"""Raised whenever one end would misunderstand the other."""

MAX_DEADLINE_S = 86_400.0
"""The longest deadline that a judge accepts from an api."""

Shard = list[tuple[ResponsePlan, list[PlannedCall]]]
"""Plans, each with the calls of it that are to be made."""


class ProtocolMessage(BaseModel):
    """Base of all messages. Unknown fields are ignored: a newer end of the same protocol may send them."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Handshake(ProtocolMessage):
    """A judge's identity, and whether it can judge now. Without an identity, it has not started yet.

    `heartbeat_s` is the longest time between two lines of an answer in progress; 0 for no guarantee. A judge that is
    asleep is ready, because it takes calls and answers them when it is awake. `weights` says which weights it has.
    """

    protocol: int
    version: str
    identity: EngineIdentity | None
    ready: bool
    heartbeat_s: float = 0.0
    sleep_state: SleepState = "awake"
    weights: WeightsReport | None = None


@dataclass(frozen=True, slots=True)
class QuestionMessage:
    """A question, the number of verdicts in its reply, and, if there are several, the question about each alone."""

    call: Call
    verdicts: int
    reading: Reading
    alone: tuple["QuestionMessage", ...] = ()
    scaling: ProbabilityMap = UNSCALED
    min_choice_mass: float = MIN_CHOICE_MASS

    @classmethod
    def of(cls, question: Question) -> "QuestionMessage":
        """Convert a question to its message."""
        places = range(len(question.criteria)) if question.alone is not None and len(question.criteria) > 1 else ()
        alone = tuple([QuestionMessage.of(question.alone(place)) for place in places if question.alone])
        return cls(
            question.call, len(question.criteria), question.reading, alone, question.scaling, question.min_choice_mass
        )

    def check(self) -> None:
        """Raise `ValueError` if an answer of this form cannot be read as the question says."""
        answer, reading = self.call.answer, self.reading
        if isinstance(reading, tuple):
            fits = isinstance(answer, JsonOutput) and len(reading) == self.verdicts > 0
        else:
            labels: tuple[str, ...] = ()
            if isinstance(answer, TokenChoice):
                labels = tuple([option.label for option in answer.options])
            elif isinstance(answer, LabelChoice) and reading == "grade":
                labels = answer.labels
            readable = reading == "yes_no" or all(label.isdecimal() for label in labels)
            fits = self.verdicts == 1 and readable and (len(labels) == 2 if reading == "yes_no" else len(labels) > 1)
        if not fits or len(self.alone) not in (0, self.verdicts):
            raise ValueError(f"a {type(answer).__name__} cannot be read as {self.verdicts} verdicts of {reading}")
        for sent in self.alone:
            sent.check()

    def question(self) -> Question:
        """Convert the message back to a question. Its criteria have no names."""
        singles = [sent.question() for sent in self.alone]
        alone = singles.__getitem__ if singles else None
        return Question(self.call, ("",) * self.verdicts, self.reading, alone, self.scaling, self.min_choice_mass)


@dataclass(frozen=True, slots=True)
class PlanMessage:
    """The calls about one response: its texts, and per call (index of the question, digests of its verdicts)."""

    system: str
    system_alone: str
    shared: str
    calls: tuple[tuple[int, tuple[str, ...]], ...]
    images: tuple[str, ...] = ()
    cache_salt: str = ""


class ShardRequest(ProtocolMessage):
    """Calls to answer within `deadline_s`, by the judge with this identity only.

    `batch` is the one of the caller. It is sent apart, because an older end of this protocol refuses a longer caller.
    """

    protocol: int = PROTOCOL_VERSION
    identity: str
    caller: Caller
    batch: str = ""
    deadline_s: Annotated[float, Field(ge=0, le=MAX_DEADLINE_S, allow_inf_nan=False)]
    questions: tuple[QuestionMessage, ...]
    plans: tuple[PlanMessage, ...]

    @classmethod
    def of(cls, shard: Shard, caller: Caller, identity: str, deadline_s: float) -> "ShardRequest":
        """Convert a shard to its message."""
        places: dict[int, int] = {}
        questions: list[Question] = []
        plans = []
        for plan, planned_calls in shard:
            calls = []
            for one in planned_calls:
                place = places.setdefault(id(one.question), len(questions))
                if place == len(questions):
                    questions.append(one.question)
                calls.append((place, tuple([digest.hex() for digest in one.digests])))
            batch = plan.batch
            sent = (batch.system, plan.system_alone, batch.shared, tuple(calls), batch.images, batch.cache_salt)
            plans.append(PlanMessage(*sent))
        return cls(
            identity=identity,
            caller=caller,
            batch=caller.batch,
            deadline_s=deadline_s,
            questions=tuple([QuestionMessage.of(question) for question in questions]),
            plans=tuple(plans),
        )

    @field_serializer("caller")
    def _without_batch(self, caller: Caller) -> tuple[str, str, float]:
        return caller.run, caller.priority, caller.share

    @property
    def batch_caller(self) -> Caller:
        """The caller with its batch."""
        return self.caller._replace(batch=self.batch)

    def response_plans(self) -> list[ResponsePlan]:
        """Convert the message to plans.

        Raises `ValueError` for a plan without calls, a call with a missing question or the wrong number of digests, and
        a question whose answer cannot be read as it says.
        """
        for sent_question in self.questions:
            sent_question.check()
        questions = [sent.question() for sent in self.questions]
        plans = []
        for sent in self.plans:
            if any(not 0 <= place < len(questions) for place, _ in sent.calls):
                raise ValueError(f"a plan refers to a question that is not among the {len(questions)} sent")
            if not sent.calls:
                raise ValueError("a plan has no calls; leave it out")
            if any(len(digests) != self.questions[place].verdicts for place, digests in sent.calls):
                raise ValueError("a call has a different number of digests than its question has verdicts")
            planned_calls = tuple(
                [
                    PlannedCall(questions[place], tuple([bytes.fromhex(d) for d in digests]))
                    for place, digests in sent.calls
                ]
            )
            calls = tuple([one.question.call for one in planned_calls])
            batch = Batch(sent.system, sent.shared, calls, sent.images, sent.cache_salt)
            pending = PendingVerdict("", "judge", tuple([digest for one in planned_calls for digest in one.digests]))
            plans.append(ResponsePlan((pending,), batch, planned_calls, system_alone=sent.system_alone))
        return plans


class ResultEvent(ProtocolMessage):
    """One line of an answer: outcomes by digest, their cost, and which were `cached` or `joined`.

    A line without outcomes is a heartbeat.
    """

    outcomes: dict[str, JudgeResult | CallFailure] = Field(default={})
    account: Costs = NO_COSTS
    cached: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    @classmethod
    def of(cls, outcomes: Outcomes) -> "ResultEvent":
        """Build the event for new outcomes."""
        return cls.model_construct(
            outcomes={digest.hex(): outcome for digest, outcome in outcomes.by_digest.items()},
            account=outcomes.costs,
            cached=tuple([digest.hex() for digest in outcomes.by_digest if digest in outcomes.cached]),
            joined=tuple([digest.hex() for digest in outcomes.by_digest if digest in outcomes.joined]),
        )

    def read(self) -> Outcomes:
        """Return the outcomes, without what they cost."""
        return Outcomes(
            {bytes.fromhex(digest): outcome for digest, outcome in self.outcomes.items()},
            cached=set(map(bytes.fromhex, self.cached)),
            joined=set(map(bytes.fromhex, self.joined)),
        )


class TokenCount(ProtocolMessage):
    """The number of tokens of a prompt."""

    tokens: int
