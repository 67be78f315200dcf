"""The routes that put judges to sleep and wake them, for trainers that share their GPUs with a judge.

`POST /v1/judges/{name}/sleep` and `/wake` take or replace the caller's lease on a judge, and answer when the judge has
followed (`judge_server.scheduling.sleep`). They need the scope `judges:write`, because a judge serves all projects.
"""

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from judge_server.api.auth import RequiredScope, identity_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import StrictRoute
from judge_server.api.service import service_of
from judge_server.errors import CannotSleep, InvalidRequest, NotFound
from judge_server.scheduling.sleep import Lease
from trainer_client.wire.judges import JudgeLease, JudgeSleep, RestingState

log = logging.getLogger("adjudge")

router = APIRouter(
    prefix="/v1/judges", tags=["judges"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("judges:write"))]
)

Name = Annotated[
    str,
    Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="The judge's name.", examples=["default"]),
]
_RESPONSES = problem_responses(404, 413, 422)
_OTHERS = "another project"


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
    service, identity = service_of(request), identity_of(request)
    if name not in service.names:
        message = f"There is no judge {name!r}; GET /v1 lists the judges."
        raise NotFound(message, title="Unknown judge")
    executor, own = service.ready_judge(name).executor, f"{identity.project_id}/"
    if service.audit is not None:
        action = "judge.sleep" if wants == "asleep" else "judge.wake"
        try:
            await service.audit.record_change(
                identity.project_id, action, f"judge {name}", f"{body.owner} for {body.lease_s:g} s"
            )
        except ConnectionError as error:  # a trainer must not stop because the database is away
            log.warning("%s of %s by %s is not in the audit log: %s", action, name, identity.actor, error)
    try:
        report = await executor.hold(Lease(own + body.owner, wants, body.lease_s))
    except CannotSleep as error:
        raise InvalidRequest(f"The judge {name!r} stays awake: {error}") from error
    owners = {owner.removeprefix(own) if owner.startswith(own) else _OTHERS for owner in report.kept_awake_by}
    return JudgeSleep(judge=name, state=report.state, kept_awake_by=tuple(sorted(owners)))
