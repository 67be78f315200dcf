"""The routes that change a judge: its sleep, for trainers that share their GPUs with it, and its weights.

`POST /v1/judges/{name}/sleep` and `/wake` take or replace the caller's lease on a judge, and answer when the judge has
followed (`judge_server.scheduling.sleep`). `PUT /v1/judges/{name}/weights` has it judge with other weights from then on
(`judge_server.scheduling.weights`), and `GET` says which it has. Changes need the scope `judges:write`, because a judge
serves all projects.
"""

import logging
import re
from typing import Annotated, Any

from fastapi import Header, Path, Request, Response

from judge_server.api.auth import identity_of, project_of, require_permission
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router, refuse_unusable_patterns
from judge_server.api.service import Service, service_of
from judge_server.errors import (
    CannotLoad,
    CannotSleep,
    InvalidRequest,
    NotFound,
    NotReady,
    ServiceError,
    invalid_field,
)
from judge_server.scheduling.sleep import Lease
from judge_server.scheduling.weights import WeightsOrder
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.drift import Baseline, drift_between, verdicts_of
from trainer_client.wire import VerdictAnswer, VerdictRequest
from trainer_client.wire.judges import JudgeLease, JudgeSleep, JudgeWeights, RestingState, WeightsChange
from trainer_client.wire.names import NAME_PATTERN

log = logging.getLogger("adjudge")

router = api_router("judges", "judges:write", prefix="/v1/judges")

Name = Annotated[
    str,
    Path(pattern=NAME_PATTERN, description="The judge's name.", examples=["default"]),
]
_RESPONSES = problem_responses(404, 413, 422)
_OTHERS = "another project"

weights_router = api_router("judges", "read", "judges:write", prefix="/v1/judges")

IfMatch = Annotated[
    str | None,
    Header(
        description="The tag of the weights to be replaced, in quotes: their ETag.", examples=['"w9284840f174dc59"']
    ),
]
_TAG = re.compile(r'"([^"]{1,1000})"')
_TAG_HEADERS: dict[str, Any] = {"ETag": {"description": "The tag, in quotes.", "schema": {"type": "string"}}}


@router.post("/{name}/sleep", name="put_judge_to_sleep", summary="Put a judge to sleep", responses=_RESPONSES)
async def sleep(request: Request, name: Name, body: JudgeLease) -> JudgeSleep:
    """The judge finishes the calls that its engine works on, and then releases the memory of its model.

    Later calls wait until it is awake or their deadline passes. It stays awake while another owner's lease says so.
    When no lease is left, it returns to its resting state: awake, unless the deployment chose otherwise.
    """
    return await _hold(request, name, body, "asleep")


@router.post("/{name}/wake", name="wake_judge", summary="Wake a judge", responses=_RESPONSES)
async def wake(request: Request, name: Name, body: JudgeLease) -> JudgeSleep:
    """The judge loads its model again, and answers the calls that wait. It stays awake as long as the lease holds."""
    return await _hold(request, name, body, "awake")


async def _hold(request: Request, name: str, body: JudgeLease, wants: RestingState) -> JudgeSleep:
    identity, executor = identity_of(request), _judge(service_of(request), name).executor
    own = f"{identity.project_id}/"
    action = "judge.sleep" if wants == "asleep" else "judge.wake"
    await _record(request, action, name, f"{body.owner} for {body.lease_s:g} s")
    try:
        report = await executor.hold(Lease(own + body.owner, wants, body.lease_s))
    except CannotSleep as error:
        raise InvalidRequest(f"The judge {name!r} stays awake: {error}") from error
    owners = {owner.removeprefix(own) if owner.startswith(own) else _OTHERS for owner in report.kept_awake_by}
    return JudgeSleep(judge=name, state=report.state, kept_awake_by=tuple(sorted(owners)))


def _judge(service: Service, name: str) -> AnyJudge:
    if name not in service.names:
        message = f"There is no judge {name!r}; GET /v1 lists the judges."
        raise NotFound(message, title="Unknown judge")
    return service.ready_judge(name)


async def _record(request: Request, action: str, name: str, after: str) -> None:
    """Write a change to the audit log. A trainer must not stop because the database is away."""
    service, identity = service_of(request), identity_of(request)
    if service.audit is None:
        return
    try:
        await service.audit.record_change(identity.project_id, action, f"judge {name}", after)
    except ConnectionError as error:
        log.warning("%s of %s by %s is not in the audit log: %s", action, name, identity.actor, error)


@weights_router.get(
    "/{name}/weights",
    name="read_judge_weights",
    summary="Read which weights a judge has",
    responses={200: {"headers": _TAG_HEADERS}, **problem_responses(404, 422, 503)},
)
async def read_weights(request: Request, response: Response, name: Name) -> JudgeWeights:
    """The ETag is the tag of the weights, for `If-Match` of a change. A restarted judge has those of its engine URL.

    What another project called its weights is its own: without the scope `judges:write`, `version`, `adapter` and
    `step` are null.
    """
    return _answer(request, response, name)


@weights_router.put(
    "/{name}/weights",
    name="load_judge_weights",
    summary="Have a judge load other weights",
    responses={200: {"headers": _TAG_HEADERS}, **problem_responses(404, 412, 413, 422, 503)},
)
async def load_weights(
    request: Request,
    response: Response,
    name: Name,
    body: WeightsChange,
    if_match: IfMatch = None,
) -> JudgeWeights:
    """The requests under way are judged by the weights before, and later ones wait, up to their deadlines.

    If it fails, the judge keeps the weights before. Only after a 503 that says so is it unknown which weights it has;
    the judge then answers nothing until a later change succeeds or it is restarted. With `If-Match`, the weights are
    changed only if they are those; otherwise the response is 412.
    """
    service, project_id = service_of(request), project_of(request)
    judge, control = _judge(service, name), await _control(request, name, body)
    order = WeightsOrder(body.version, body.adapter, body.step, _expected(if_match), body.wait_s)
    baseline = None if control is None else await _baseline(request, name, control)
    before = judge.executor.weights
    try:
        after = await judge.executor.load(order)
    except CannotLoad as error:
        judge.metrics.count_weights("refused")
        raise InvalidRequest(f"The judge {name!r} keeps its weights: {error}") from error
    except ServiceError:
        judge.metrics.count_weights("failed")
        raise
    judge.metrics.count_weights("loaded", after.step)
    await _record(request, "judge.weights", name, f"{after.version} ({after.model}, {after.tag}) after {before.tag}")
    problem, drift = "", None
    if control is not None:
        try:
            baseline = baseline or await _baseline(request, name, control)
            if baseline is not None:
                drift = drift_between(baseline, verdicts_of(await _judged(request, control)))
                judge.metrics.set_drift(drift)
        except ServiceError as error:  # the weights are loaded all the same
            problem = error.detail
    service.drift.note(project_id, name, drift)
    return _answer(request, response, name).model_copy(update={"control_problem": problem})


async def _control(request: Request, name: str, body: WeightsChange) -> VerdictRequest | None:
    """Return the control set of a change, as a request to this judge. Raises as `POST /v1/verdicts` does."""
    if body.control is None:
        return None
    await require_permission(request, "score")
    if body.control.judge not in ("default", name):
        raise invalid_field("control.judge", f"the control set is judged by {name!r}; leave out its judge")
    control = body.control.model_copy(update={"judge": name, "fresh": False})
    service, own = service_of(request), [group.rubric for group in control.groups]
    await refuse_unusable_patterns(
        service.checker, project_of(request), control.rubric, own, deadline_s=control.deadline_s
    )
    return control


async def _baseline(request: Request, name: str, control: VerdictRequest) -> Baseline | None:
    """Return the first verdicts on a control set, which is judged now if it has none; None if no judge is available."""
    service, project_id = service_of(request), project_of(request)
    found = service.drift.baseline(project_id, name, control)
    if found is None:
        weights = service.ready_judge(name).executor.weights
        try:
            found = Baseline(weights, verdicts_of(await _judged(request, control)))
        except NotReady as error:  # a judge whose weights are unknown must be able to get others
            log.warning("the control set of %s is not judged before the change: %s", name, error)
            return None
        service.drift.remember(project_id, name, control, found)
    return found


async def _judged(request: Request, control: VerdictRequest) -> VerdictAnswer:
    service = service_of(request)
    scorer = service.scorer(control.judge, service.recorder)
    return await scorer.verdicts(control, request_id=request.state.request_id, project_id=project_of(request))


def _expected(if_match: str | None) -> str | None:
    if if_match is None or if_match.strip() == "*":
        return None
    match = _TAG.fullmatch(if_match.strip())
    if match is None:
        raise invalid_field("If-Match", f"{if_match!r} is not the ETag of weights; write their tag in quotes")
    return match[1]


def _answer(request: Request, response: Response, name: str) -> JudgeWeights:
    """Say which weights a judge has; their labels, which name runs of any project, only to who may change them."""
    service = service_of(request)
    judge = _judge(service, name)
    weights, drift = judge.executor.weights, service.drift.last(project_of(request), name)
    if "judges:write" not in identity_of(request).permissions:
        weights = weights._replace(version=None, adapter=None, step=None)
        drift = None if drift is None else drift.model_copy(update={"since": None})
    response.headers["ETag"] = f'"{weights.tag}"'
    return JudgeWeights(
        judge=name,
        **weights._asdict(),
        refused_calibrations=tuple(judge.refused_calibrations()),
        drift=drift,
    )
