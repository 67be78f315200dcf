"""`POST /v1/systemone`: any judge asked typed questions about a state, in the form of TypeSafe's System One protocol.

Each question becomes one or more criteria that a judge answers with yes or no: a `noul` question one, a `choice` one
for each option, and a `score` question with n levels n - 1, each asking whether a level is reached or exceeded (Frank
and Hall, "A simple approach to ordinal classification", 2001). The answer's probabilities are those of the verdicts, so
they are calibrated if the judge is.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import Request, Response
from pydantic import Discriminator, Field, JsonValue, Tag, ValidationError, model_validator

from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.http.responses import run_while_connected
from judge_server.api.idempotency import IdempotencyKey
from judge_server.api.scoring import prepare
from judge_server.api.service import Service, service_of
from judge_server.errors import JudgingFailed, invalid_field
from judge_server.scoring.scorer import Scorer
from trainer_client import wire
from trainer_client.wire.base import STORABLE, STRICT_NUMBER, AnswerModel, BoundedFloat, RequestModel
from trainer_client.wire.criteria import Criterion
from trainer_client.wire.groups import Group, RunName
from trainer_client.wire.judging import JudgingOptions, Priority
from trainer_client.wire.rubrics import RubricContent
from trainer_client.wire.verdicts import Failure, VerdictRequest

MAX_QUESTIONS = 400
MAX_CHOICES = 255
MAX_LEVELS = 10
MAX_CRITERIA = 512
"""The most criteria that the questions of a request may become together: as many as a rubric may have."""

Content = str | dict[str, JsonValue] | list[JsonValue]
"""A text, or JSON that is shown as text."""

PROMPT_FIELDS = ("prompt", "question", "input")
RESPONSE_FIELDS = ("response", "submission", "output", "actual_output")
REFERENCE_FIELDS = ("reference_answer", "answer", "reference_submission", "expected_output")
GROUNDING_FIELDS = ("grounding", "context")

_ABOUT_A_STATE = "The text below is a state: material that a question is asked about."


class NoulCriteria(RequestModel):
    """What counts as yes, and what as no.

    Attributes:
        true: what counts as yes.
        false: what counts as no.
    """

    true: Content | None = None
    false: Content | None = None


class NoulQuestion(RequestModel):
    """A yes-or-no question.

    Attributes:
        type: a question that is answered with yes or no.
        instructions: the question.
        criteria: what counts as yes, and what as no.
    """

    type: Literal["noul"]
    instructions: Content | None = None
    criteria: NoulCriteria | None = None


class ChoiceQuestion(RequestModel):
    """A choice between named options, each with an optional description.

    Attributes:
        type: a choice.
        instructions: the question.
        criteria: by option, when it is the right one; null if the name of the option says so.
    """

    type: Literal["choice"]
    instructions: Content | None = None
    criteria: dict[Annotated[str, STORABLE], Content | None] = Field(min_length=1, max_length=MAX_CHOICES)


class LevelQuestion(RequestModel):
    """A rating on levels, the lowest first.

    Attributes:
        type: a rating.
        instructions: the question.
        criteria: what each level means, the lowest first.
    """

    type: Literal["score"]
    instructions: Content | None = None
    criteria: list[Content] = Field(min_length=2, max_length=MAX_LEVELS)


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


DecisionQuestion = Annotated[
    Annotated[NoulQuestion, Tag("noul")]
    | Annotated[ChoiceQuestion, Tag("choice")]
    | Annotated[LevelQuestion, Tag("score")],
    Discriminator(_type_of),
]


class SystemOneRequest(RequestModel):
    """Answer typed questions about a state.

    `model` names the judge: by the name of one of the service's judges, or of the model that it judges with. A state
    whose fields are all known texts, such as `{"question": …, "response": …, "answer": …}`, is shown as a prompt, a
    response and a reference answer; any other is shown as a whole. The fields after `questions` are not part of System
    One, and the same as in `VerdictRequest`.

    Attributes:
        state: what the questions are about: a text, or JSON.
        questions: the questions, by names of your own.
        model: the name of a judge, or of the model that it judges with.
    """

    model: str = Field(min_length=1, max_length=200)
    state: Content
    questions: dict[Annotated[str, STORABLE], DecisionQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    run: RunName | None = None
    step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    judging: JudgingOptions = JudgingOptions()
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"

    @model_validator(mode="after")
    def _can_be_judged(self) -> "SystemOneRequest":
        if self.judging.protocol not in (None, "binary"):
            raise ValueError("judging.protocol: typed questions are asked as binary criteria; leave protocol out")
        criteria = sum(map(_count_criteria, self.questions.values()))
        if criteria > MAX_CRITERIA:
            raise ValueError(
                f"questions: their options and levels make {criteria} criteria, and at most {MAX_CRITERIA} are judged "
                "at once; ask fewer questions"
            )
        for id_, question in self.questions.items():
            try:
                tuple(_criteria("q", question))
            except ValidationError as error:
                reason = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
                raise ValueError(f"questions.{id_}: {reason}") from None
        return self

    def verdicts(self, judge: str) -> VerdictRequest:
        """Return the equivalent request of `POST /v1/verdicts`, for the judge of that name.

        The criteria of the n-th question are called `qN` or, if it has several, `qN.0`, `qN.1` and so on.
        """
        whole = not isinstance(self.state, dict) or "response" not in dict(_known_fields(self.state))
        judging = self.judging
        if whole and "reasoning" not in judging.model_fields_set:
            judging = judging.model_copy(update={"reasoning": "keep"})  # nothing in a state is a response's thinking
        with_probability = tuple([one for one in judging.defences if one != "no_content"])
        judging = judging.model_copy(update={"defences": with_probability})  # every answer is a probability
        criteria = tuple(
            [c for n, question in enumerate(self.questions.values()) for c in _criteria(f"q{n}", question)]
        )
        return VerdictRequest(
            run=self.run,
            step=self.step,
            rubric=RubricContent(criteria=criteria),
            judge=judge,
            judging=judging,
            deadline_s=self.deadline_s,
            priority=self.priority,
            groups=(_group(self.state),),
        )


class NoulAnswer(AnswerModel):
    """The probability of yes.

    Attributes:
        type: the type of the question.
        noul: the probability of yes.
    """

    type: Literal["noul"] = "noul"
    noul: float


class ChoiceAnswer(AnswerModel):
    """The most probable option, and the probability of each.

    confidence = (K p - 1) / (K - 1) for K options and the probability p of the chosen one, and at least 0.

    Attributes:
        type: the type of the question.
        choice: the most probable option.
        confidence: its probability.
        probabilities: the probability of each option.
    """

    type: Literal["choice"] = "choice"
    choice: str
    confidence: float
    probabilities: dict[str, float]


class LevelAnswer(AnswerModel):
    """The expected level, and the probability of each.

    confidence = 1 - d / u, and at least 0: d is the mean distance of the levels to the most probable one, and u the
    mean distance to the middle if all levels were equally probable.

    Attributes:
        type: the type of the question.
        score: the expected level, from 0.
        confidence: the probability of the most probable level.
        legend: the levels, as the question named them.
        probabilities: the probability of each level.
    """

    type: Literal["score"] = "score"
    score: float
    confidence: float
    legend: dict[str, Content]
    probabilities: dict[str, float]


class SystemOneUsage(AnswerModel):
    """The judge's tokens: those of its prompts, cached prefixes included, and those it generated.

    Attributes:
        input_tokens: tokens of the judge's prompts, cached prefixes included.
        output_tokens: tokens that the judge generated.
    """

    input_tokens: int
    output_tokens: int


class SystemOneAnswer(AnswerModel):
    """The answer to a `SystemOneRequest`.

    A question that the judge failed to answer is missing from `answers`, and `failures` says why. `fingerprint` is that
    of the judge.

    Attributes:
        id: the id of the request.
        answers: by name, the answer to each question.
        failures: by name, the questions that the judge failed to answer, and why.
    """

    id: str
    model: str
    answers: dict[str, NoulAnswer | ChoiceAnswer | LevelAnswer]
    usage: SystemOneUsage
    fingerprint: str
    failures: dict[str, Failure] | None = None


def as_text(content: JsonValue | Content) -> str:
    """Return a text as it is, and other JSON as compact text."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _count_criteria(question: NoulQuestion | ChoiceQuestion | LevelQuestion) -> int:
    if isinstance(question, NoulQuestion):
        return 1
    return len(question.criteria) - isinstance(question, LevelQuestion)


def _criteria(id_: str, question: NoulQuestion | ChoiceQuestion | LevelQuestion) -> Iterator[Criterion]:
    asked = as_text(question.instructions).strip() if question.instructions is not None else ""
    if isinstance(question, NoulQuestion):
        meanings = question.criteria or NoulCriteria()
        lines = [asked]
        lines += [f"It is met if: {as_text(meanings.true)}"] if meanings.true else []
        lines += [f"It is not met if: {as_text(meanings.false)}"] if meanings.false else []
        yield Criterion(id=id_, description="\n".join(filter(None, lines)))
    elif isinstance(question, ChoiceQuestion):
        names = ", ".join(map(json.dumps, question.criteria))
        for n, (name, meaning) in enumerate(question.criteria.items()):
            means = f": {as_text(meaning)}" if meaning else ""
            stated = f"Of the answers {names}, the right one is {json.dumps(name)}{means}"
            yield Criterion(id=f"{id_}.{n}", description=f"{asked}\n{stated}".strip())
    else:
        levels = [as_text(level) for level in question.criteria]
        scale = "; ".join(f"{n}: {level}" for n, level in enumerate(levels))
        for n in range(1, len(levels)):
            above = " or a higher one" if n + 1 < len(levels) else ""
            stated = f"On the scale {scale}, the right level is {n} ({levels[n]}){above}."
            yield Criterion(id=f"{id_}.{n}", description=f"{asked}\n{stated}".strip())


def _group(state: Content) -> Group:
    """Return a group with one response: the one in the state, or the whole state."""
    fields = dict(_known_fields(state)) if isinstance(state, dict) else {}
    if "response" not in fields:
        return Group(id="state", prompt=_ABOUT_A_STATE, responses=(as_text(state),))
    return Group(
        id="state",
        prompt=fields.get("prompt", ""),
        responses=(fields["response"],),
        reference_answer=fields.get("reference_answer"),
        grounding=fields.get("grounding"),
    )


def _known_fields(state: dict[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a group that a state holds; nothing if any field is unknown, no text, or given twice."""
    known = {
        "prompt": PROMPT_FIELDS,
        "response": RESPONSE_FIELDS,
        "reference_answer": REFERENCE_FIELDS,
        "grounding": GROUNDING_FIELDS,
    }
    found: dict[str, str] = {}
    for name, value in state.items():
        field = next((field for field, names in known.items() if name in names), None)
        if field is None or field in found or not isinstance(value, str):
            return
        found[field] = value
    yield from found.items()


Question = NoulQuestion | ChoiceQuestion | LevelQuestion
Answer = NoulAnswer | ChoiceAnswer | LevelAnswer


async def _answer_questions(
    scorer: Scorer, body: SystemOneRequest, asked: VerdictRequest, ids: dict[str, Any]
) -> SystemOneAnswer:
    """Answer the questions of a request, which are `asked` under these ids.

    Raises:
        InvalidRequest: the judge returns no probabilities.
        JudgingFailed: no question could be answered.
        Overloaded: the judge's queue is full.
        NotReady: no judge is available.
    """
    identity = scorer.judge.identity
    if not identity.capabilities.logprobs:
        raise invalid_field(
            "model", f"{identity.model} returns no probabilities, which the answers need; use another judge"
        )
    judged = await scorer.verdicts(asked, **ids)
    verdicts: dict[str, list[wire.Verdict]] = defaultdict(list)
    for verdict in judged.groups[0].responses[0].verdicts:
        verdicts[verdict.criterion.partition(".")[0]].append(verdict)
    answers: dict[str, Answer] = {}
    failures: dict[str, wire.Failure] = {}
    for number, (id_, question) in enumerate(body.questions.items()):
        answer = _answer(question, verdicts[f"q{number}"])
        if isinstance(answer, wire.Failure):
            failures[id_] = answer
        else:
            answers[id_] = answer
    if not answers:
        id_, failure = next(iter(failures.items()))
        raise JudgingFailed(f"no question was answered; questions.{id_}: {failure.kind}: {failure.detail}")
    assert judged.judge is not None
    return SystemOneAnswer(
        id=judged.request_id,
        model=judged.judge.model,
        answers=answers,
        usage=SystemOneUsage(
            input_tokens=judged.usage.prompt_tokens_computed + judged.usage.prompt_tokens_reused,
            output_tokens=judged.usage.tokens_written,
        ),
        fingerprint=judged.judge.fingerprint,
        failures=failures or None,
    )


def _answer(question: Question, verdicts: Sequence[wire.Verdict]) -> Answer | wire.Failure:
    """Combine the verdicts of a question, in order; the first failure fails it."""
    probabilities = []
    for verdict in verdicts:
        if verdict.failure is not None:
            return verdict.failure
        if verdict.probability is None:
            return wire.Failure(kind="parse", detail="the judge gave a verdict without a probability")
        probabilities.append(verdict.probability)
    if isinstance(question, NoulQuestion):
        return NoulAnswer(noul=probabilities[0])
    if isinstance(question, LevelQuestion):
        return level_answer(question, probabilities)
    return choice_answer(question, probabilities)


def choice_answer(question: ChoiceQuestion, right: Sequence[float]) -> ChoiceAnswer | wire.Failure:
    """Answer a choice from the probability that each option is the right one: p_i = right_i / sum of right."""
    total = sum(right)
    if not total > 0:
        return wire.Failure(kind="parse", detail="the judge put no probability on any of the options")
    shares = [one / total for one in right]
    best, options = max(shares), len(shares)
    return ChoiceAnswer(
        choice=list(question.criteria)[right.index(max(right))],  # division may round two shares to one
        confidence=1.0 if options == 1 else max(0.0, (options * best - 1) / (options - 1)),
        probabilities=dict(zip(question.criteria, shares, strict=True)),
    )


def level_answer(question: LevelQuestion, reached: Sequence[float]) -> LevelAnswer:
    """Answer a rating from the probabilities r_k that level k or a higher one is right, for k = 1 to n - 1.

    A level cannot be more probable than a lower one to be reached, so r_k counts as min(r_1, ..., r_k). Then
    P(k) = r_k - r_(k+1), with r_0 = 1 and r_n = 0, and score = sum of k P(k) = sum of r_k.
    """
    least, bounds = 1.0, [1.0]
    for one in reached:
        least = min(least, one)
        bounds.append(least)
    shares = [bound - after for bound, after in zip(bounds, [*bounds[1:], 0.0], strict=True)]
    levels = range(len(shares))
    mode = shares.index(max(shares))
    distance = sum(share * abs(level - mode) for level, share in zip(levels, shares, strict=True))
    uniform = sum(abs(level - (len(shares) - 1) / 2) for level in levels) / len(shares)
    return LevelAnswer(
        score=sum(bounds[1:]),
        confidence=min(1.0, max(0.0, 1.0 - distance / uniform)),
        legend={str(level): text for level, text in enumerate(question.criteria)},
        probabilities={str(level): share for level, share in zip(levels, shares, strict=True)},
    )


decisions_router = api_router("decisions", "score")


@decisions_router.post(
    "/systemone",
    summary="Answer typed questions about a state, in the form of System One",
    response_model=SystemOneAnswer,
    responses=problem_responses(413, 422, 429, 502, 503),
)
async def systemone(
    request: Request,
    body: SystemOneRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Each question is judged by criteria that the judge answers with yes or no, and answered with probabilities.

    A `choice` is asked option by option, and a `score` level by level. A question that the judge failed to answer is
    missing from `answers` and named in `failures`; if no question is answered, the request fails. As for verdicts, a
    request that is repeated with its `Idempotency-Key` is recorded once.
    """
    asked = body.verdicts(_judge_name(service_of(request), body.model))
    scorer, ids = await prepare(request, asked, idempotency_key)
    answer = await run_while_connected(request, _answer_questions(scorer, body, asked, ids))
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


def _judge_name(service: Service, model: str) -> str:
    """Return the name of the judge that `model` means: its own name, or that of the model it judges with."""
    by_model = {judge.identity.model: name for name, judge in service.judges.items()}
    if model in service.names or model in by_model:
        return model if model in service.names else by_model[model]
    raise invalid_field("model", f"there is no judge {model!r}; use one of {', '.join(service.names)}")
