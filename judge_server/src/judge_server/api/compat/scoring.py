"""What the routes of all trainers share: query parameters, and scoring a translated request."""

import asyncio
import hashlib
import json
from typing import Annotated, Any, Literal

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError, field_validator

from judge_server.api.auth import project_of
from judge_server.api.http.bodies import refuse_many_values
from judge_server.api.http.requests import refuse_unusable_patterns
from judge_server.api.service import Service, service_of
from judge_server.errors import JudgingFailed, ServiceError, invalid_request
from judge_server.ledger.recorder import TRANSIENT_FAILURES
from judge_server.observability.logs import bind_log_context
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_inline_or_in_thread
from judge_server.scoring.planner import JudgedRequest
from trainer_client.wire import (
    COMPARES_RESPONSES,
    ComponentsBy,
    Group,
    ResponseReward,
    RewardAnswer,
    RewardMode,
    RewardOptions,
    RewardRequest,
    Verdict,
)
from trainer_client.wire.base import NotStrictJsonError, RequestModel, strict_json
from trainer_client.wire.groups import Prompt, RubricChoice, RubricRef, RunName
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName
from trainer_client.wire.problems import field_errors


def _judges_one_response(mode: Any) -> Any:
    if mode in COMPARES_RESPONSES:
        raise ValueError(
            f"mode {mode!r} compares the responses of a group, and this trainer sends one response at a time; use "
            "another mode, or call the client from a reward function that gets whole groups "
            "(docs/how-to/train-with-another-trainer.md)"
        )
    return mode


class CompatParameters(BaseModel):
    """The query of a trainer's reward URL. An unknown parameter is refused, so that a misspelt one cannot pass.

    Attributes:
        rubric: the reference of a published rubric, for rows that name none. With its version, such as `math/short@3`,
            the rubric stays the same for the whole training run.
        mode: how verdicts become a reward.
        use: `probability` for soft rewards.
        components: answer each response's component rewards too: of each criterion, kind or first tag.
        judge: the name of the judge.
        run: the training run under which everything is recorded.
        on_failure: what a response gets if judging fails: an error, or the number of a failure policy.
        deadline_s: seconds within which the service judges a response, repeated attempts included.
        end: the text with which the policy ends its responses, such as `<|im_end|>`. The judge does not see it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rubric: RubricRef | None = None
    mode: Annotated[RewardMode, BeforeValidator(_judges_one_response)] = "weighted_mean"
    use: Literal["verdict", "probability"] = "verdict"
    components: ComponentsBy | None = None
    judge: JudgeName = DEFAULT_JUDGE
    run: RunName | None = None
    on_failure: Literal["error", "zero", "zero_unparseable", "skip"] = "error"
    deadline_s: float = Field(default=60.0, gt=0, le=3600)
    end: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    def judged_text(self, response: str) -> str:
        """The response without the end of its turn."""
        return response.removesuffix(self.end) if self.end is not None else response

    def request(self, groups: tuple[Group, ...], *, step: int | None = None) -> RewardRequest:
        """The request of `POST /v1/rewards`.

        A response that fails gets no reward there: `judge_server.api.compat.scoring` tries again, and raises the error.

        Raises:
            InvalidRequest: the parameters and the rows do not make a request, for example because no rubric is named.
        """
        try:
            return RewardRequest(
                run=self.run,
                step=step,
                rubric=self.rubric,
                judge=self.judge,
                reward=RewardOptions(mode=self.mode, use=self.use, components=self.components),
                on_failure="null" if self.on_failure == "error" else self.on_failure,
                deadline_s=self.deadline_s,
                groups=groups,
            )
        except ValidationError as error:
            raise invalid_request(field_errors(error.errors(include_url=False))) from None


class JudgeInputs(RequestModel):
    """The judge's inputs in a row's label. `prompt` replaces the one that the trainer sends, with its chat template.

    Attributes:
        ground_truth: the right answer that final answers are compared with.
    """

    prompt: Prompt | None = None
    rubric: RubricChoice | None = None
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None

    @field_validator("rubric", mode="before")
    @classmethod
    def _criteria_are_a_rubric(cls, rubric: Any) -> Any:
        return {"criteria": rubric} if isinstance(rubric, list) else rubric

    @field_validator("reference_answer", "ground_truth", mode="before")
    @classmethod
    def _numbers_are_text(cls, value: Any) -> Any:
        return _number_as_text(value)


def _number_as_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def _fields_of_label(label: Any) -> Any:
    """The judge's inputs in a row's label: an object, or JSON text of one, has them; any other is the ground truth."""
    value = _object_in(label) if isinstance(label, str) and label.lstrip().startswith("{") else label
    if value is None or value == "":
        return {}
    if isinstance(value, bool | list):
        raise ValueError(f"a label of type {type(value).__name__} cannot be read; send text, a number or an object")
    return value if isinstance(value, dict | JudgeInputs) else {"ground_truth": value}


def _object_in(text: str) -> Any:
    """The object of a JSON text; the text itself if it is none, such as a set in LaTeX."""
    try:
        refuse_many_values(text.encode("utf-8", "surrogatepass"))
        return strict_json(text)
    except NotStrictJsonError as error:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return text
        raise ValueError(str(error)) from None


Label = Annotated[JudgeInputs, BeforeValidator(_fields_of_label, json_schema_input_type=JsonValue)]
"""A row's label: an object, or JSON text of one, has the judge's inputs; any other text or number is the ground truth.
Empty text and null mean that the row has none. It is read where the body is: see `judge_server.api.http.bodies`."""


async def read_group(request: Request, prompt: Any, response: str, inputs: JudgeInputs, field: str) -> Group:
    """As `group_of`, in the thread for long work if the request is large."""
    large = len(await request.body()) > LARGE_CHARACTERS
    return await run_inline_or_in_thread(large, group_of, prompt, response, inputs, field)


def group_of(prompt: Any, response: str, inputs: JudgeInputs, field: str) -> Group:
    """A group of one response. Equal prompts with equal inputs have equal ids, so that the console shows them together.

    Raises:
        InvalidRequest: the prompt cannot be judged; `field` is its name in the request.
    """
    fields = inputs.model_dump(exclude={"prompt", "rubric"}, exclude_none=True)
    shared = {"prompt": prompt if inputs.prompt is None else inputs.prompt}
    try:
        group = Group.model_validate({"id": "g", "responses": [response], **shared, **fields})
    except ValidationError as error:
        causes = field_errors(error.errors(include_url=False))
        raise invalid_request(tuple(each.model_copy(update={"field": field}) for each in causes)) from None
    group = group.model_copy(update={"rubric": inputs.rubric})
    text = json.dumps(group.model_dump(mode="json", exclude={"id", "responses"}), sort_keys=True)
    return group.model_copy(update={"id": hashlib.sha256(text.encode()).hexdigest()[:32]})


FIRST_RETRY_AFTER_S = 1.0
"""The seconds before the second attempt; each further one waits twice as long."""

LONGEST_RETRY_WAIT_S = 15.0
"""Maximum wait between two attempts, well below the trainers' own timeouts (120 and 180)."""


async def score_responses(request: Request, work: RewardRequest) -> list[ResponseReward]:
    """The scored responses of all groups in order, each with a reward.

    Raises:
        JudgingFailed: a response has no reward when the deadline has passed.
        ServiceError: the request is refused, or was not served before the deadline.
    """
    bind_log_context(run=work.run)
    service, project_id = service_of(request), project_of(request)
    held = _LastRecord()
    try:
        answer = await _score_until_deadline(service, held, work, request.state.request_id, project_id)
    finally:
        if service.recorder is not None and held.judged is not None:
            service.recorder.record(held.judged)
    responses = [response for group in answer.groups for response in group.responses]
    for response in responses:
        if response.reward is None:
            raise JudgingFailed(f"A response has no reward: {_why(response.verdicts)}")
    return responses


async def _score_until_deadline(
    service: Service, held: "_LastRecord", work: RewardRequest, request_id: str, project_id: str
) -> RewardAnswer:
    now = asyncio.get_running_loop().time
    deadline, wait = now() + work.deadline_s, FIRST_RETRY_AFTER_S
    while True:
        left = deadline - now()
        attempt = work.model_copy(update={"deadline_s": max(left, 0.001)})
        try:
            own = [group.rubric for group in work.groups]
            await refuse_unusable_patterns(service.checker, project_id, work.rubric, own, deadline_s=attempt.deadline_s)
            scorer = service.scorer(work.judge, held)
            answer = await scorer.score(attempt, request_id=request_id, project_id=project_id)
        except ServiceError as error:
            pause = max(wait, float(error.retry_after_s or 0))
            if not error.retryable or now() + pause >= deadline:
                raise
        else:
            pause = wait
            if not _would_another_attempt_help(answer) or now() + pause >= deadline:
                return answer
        await asyncio.sleep(pause)
        wait = min(2 * wait, LONGEST_RETRY_WAIT_S)


class _LastRecord:
    """Holds what the last attempt judged, so that the ledger has a response once, as it was rewarded."""

    judged: JudgedRequest | None = None

    def record(self, judged: JudgedRequest) -> None:
        """Replace what was judged before."""
        self.judged = judged


def _would_another_attempt_help(answer: RewardAnswer) -> bool:
    unscored = [r for group in answer.groups for r in group.responses if r.reward is None]
    failures = [v.failure for response in unscored for v in response.verdicts if v.failure is not None]
    return any(failure.kind in TRANSIENT_FAILURES for failure in failures)


def _why(verdicts: tuple[Verdict, ...]) -> str:
    for verdict in verdicts:
        if verdict.failure is not None:
            return f"judging criterion {verdict.criterion!r} failed ({verdict.failure.kind}): {verdict.failure.detail}"
    uncertain = [verdict.criterion for verdict in verdicts if verdict.status == "uncertain"]
    return f"the verdict on criterion {uncertain[0]!r} is uncertain" if uncertain else "no criterion has a verdict"
