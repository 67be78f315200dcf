"""`GET /v1/project` and `GET /v1/audit`: what a project may use and has used, and who changed what of it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from judge_server.errors import NotReady
from judge_server.web.access import RequiredScope, identity_of, project_of
from judge_server.web.problems import problem_responses
from judge_server.web.service import service_of
from trainer_client.wire.tenants import AuditTail, ProjectState

router = APIRouter(prefix="/v1", tags=["project"], dependencies=[Depends(RequiredScope("read"))])


@router.get("/project", summary="What the project may use, and has used", response_model=ProjectState)
async def project(request: Request) -> ProjectState:
    """Of the project that the key belongs to: its limits, and the prompt tokens computed for it today (UTC) and ever.

    Other processes' counts come in every few seconds.
    """
    identity, authenticator = identity_of(request), service_of(request).authenticator
    if authenticator is None:
        raise NotReady("This process counts nothing. Ask one that was started with a database.")
    used = await authenticator.usage.used(identity.project_id)
    scopes = tuple(sorted(identity.permissions))
    return ProjectState(
        id=identity.project_id, scopes=scopes, limits=identity.limits, tokens_today=used.on_day, tokens_ever=used.total
    )


@router.get(
    "/audit",
    summary="Who changed what",
    response_model=AuditTail,
    dependencies=[Depends(RequiredScope("admin"))],
    responses=problem_responses(422),
)
async def audit(
    request: Request,
    subject: Annotated[
        str | None,
        Query(description="Only changes of this.", examples=["team/math@production"], max_length=400),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> AuditTail:
    """The newest changes of the project's rubrics, aliases, tags, keys and limits, the newest first."""
    trail = service_of(request).audit
    if trail is None:
        raise NotReady("This process keeps no audit. Ask one that was started with a database.")
    return AuditTail(entries=tuple(await trail.audit(project_of(request), subject=subject, limit=limit)))
