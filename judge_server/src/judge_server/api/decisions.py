"""`POST /v1/systemone`: any judge asked as a decision model."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import StrictRoute
from judge_server.api.http.responses import run_while_connected
from judge_server.api.idempotency import IdempotencyKey, record_id_of, recorder_of
from judge_server.api.service import Service, service_of
from judge_server.errors import InvalidRequest, JudgingFailed
from judge_server.observability.logs import bind_log_context
from judge_server.ports import RubricSource
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import RecordSink
from judge_server.scoring.scorer import Scorer
from trainer_client import wire
from trainer_client.wire import FieldError
from trainer_client.wire.decisions import (
    ChoiceAnswer,
    ChoiceQuestion,
    LevelAnswer,
    LevelQuestion,
    NoulAnswer,
    NoulQuestion,
    SystemOneAnswer,
    SystemOneRequest,
    SystemOneUsage,
)

Question = NoulQuestion | ChoiceQuestion | LevelQuestion
Answer = NoulAnswer | ChoiceAnswer | LevelAnswer


async def answer_questions(
    judge: AnyJudge,
    judge_name: str,
    rubrics: RubricSource,
    request: SystemOneRequest,
    *,
    request_id: str,
    project_id: str,
    recorder: RecordSink | None = None,
    record_id: bytes | None = None,
) -> SystemOneAnswer:
    """Answer the questions of a request, and record their verdicts if there is a recorder.

    Raises:
        InvalidRequest: the judge returns no probabilities.
        JudgingFailed: no question could be answered.
        Overloaded: the judge's queue is full.
        NotReady: no judge is available.
    """
    if not judge.identity.capabilities.logprobs:
        message = f"{judge.identity.model} returns no probabilities, which the answers need; use another judge"
        raise InvalidRequest(f"model: {message}", errors=(wire.FieldError(field="model", message=message),))
    judged = await Scorer(judge, rubrics, recorder).verdicts(
        request.verdicts(judge_name), request_id=request_id, project_id=project_id, record_id=record_id
    )
    verdicts: dict[str, list[wire.Verdict]] = defaultdict(list)
    for verdict in judged.groups[0].responses[0].verdicts:
        verdicts[verdict.criterion.partition(".")[0]].append(verdict)
    answers: dict[str, Answer] = {}
    failures: dict[str, wire.Failure] = {}
    for number, (id_, question) in enumerate(request.questions.items()):
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
        id=request_id,
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
        choice=list(question.criteria)[shares.index(best)],
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


decisions_router = APIRouter(
    prefix="/v1", tags=["decisions"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

SYSTEM_ONE_EXAMPLE: dict[str, Any] = {
    "model": "default",
    "state": {"prompt": "Is 7 prime?", "response": "Yes: neither 2 nor 3 divides it."},
    "questions": {
        "prime": {"type": "noul", "instructions": "Does the response say that 7 is prime?"},
        "reason": {"type": "score", "instructions": "How good is its reason?", "criteria": ["none", "partial", "full"]},
    },
}


@decisions_router.post(
    "/systemone",
    summary="Answer typed questions about a state, in the form of System One",
    response_model=SystemOneAnswer,
    responses=problem_responses(413, 422, 429, 502, 503),
)
async def systemone(
    request: Request,
    body: Annotated[
        SystemOneRequest, Body(openapi_examples={"rubric": {"summary": "Two questions", "value": SYSTEM_ONE_EXAMPLE}})
    ],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Each question is judged by criteria that the judge answers with yes or no, and answered with probabilities.

    A `choice` is asked option by option, and a `score` level by level. A question that the judge failed to answer is
    missing from `answers` and named in `failures`; if no question is answered, the request fails. As for verdicts, a
    request that is repeated with its `Idempotency-Key` is recorded once.
    """
    bind_log_context(run=body.run)
    service = service_of(request)
    name = _judge_name(service, body.model)
    work = answer_questions(
        service.ready_judge(name),
        name,
        service.rubrics,
        body,
        request_id=request.state.request_id,
        project_id=project_of(request),
        recorder=recorder_of(request),
        record_id=await record_id_of(request, idempotency_key),
    )
    answer = await run_while_connected(request, work)
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


def _judge_name(service: Service, model: str) -> str:
    """Return the name of the judge that `model` means: its own name, or that of the model it judges with."""
    by_model = {judge.identity.model: name for name, judge in service.judges.items()}
    if model in service.names or model in by_model:
        return model if model in service.names else by_model[model]
    message = f"there is no judge {model!r}; use one of {', '.join(service.names)}"
    raise InvalidRequest(f"model: {message}", errors=(FieldError(field="model", message=message),))
