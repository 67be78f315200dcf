"""The routes of projects: the caller's own, all of them, their limits, their audit logs and their keys.

- `GET /v1/project`: the limits and usage of the caller's project.
- `GET` and `POST /v1/projects`, `GET /v1/projects/{id}`, `PUT /v1/projects/{id}/limits`: all projects of the service,
  with the scope `projects:write`.
- `GET /v1/audit`: the audit log of a project, with the scope `admin`.
- `GET` and `POST /v1/keys`, `DELETE /v1/keys/{id}`: the API keys of a project, with the scope `admin`.
"""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from judge_server.api.auth import RequiredScope, identity_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import After, Limit, api_router, reject_unknown_cursor
from judge_server.api.service import required, service_of
from judge_server.auth.administration import administered_project, create_key, require_administrator
from judge_server.errors import NotFound, invalid_field
from judge_server.ports import KeyAdministration, ProjectAdministration
from trainer_client.wire.names import NAME_PATTERN
from trainer_client.wire.tenants import (
    ApiKey,
    ApiKeyList,
    AuditTail,
    CreatedApiKey,
    NewApiKey,
    NewLimits,
    NewProject,
    Project,
    ProjectList,
    ProjectState,
)

router = api_router("project", "read")
projects_router = api_router("project", "projects:write", prefix="/v1/projects")
keys_router = api_router("project", "admin", prefix="/v1/keys")

ProjectId = Annotated[str, Path(pattern=NAME_PATTERN, description="The project's name.", examples=["team-math"])]
OtherProject = Annotated[
    str | None,
    Query(
        description="Another project than the key's own; needs the scope `projects:write` as well.",
        pattern=NAME_PATTERN,
        examples=["team-math"],
    ),
]


@router.get("/project", name="read_project_state", summary="Read the limits and usage of the key's project")
async def read_state(request: Request) -> ProjectState:
    """The limits of the key's project, and the prompt tokens computed for it today (UTC) and in total.

    The counts of other processes are added every few seconds.
    """
    identity, authenticator = identity_of(request), required(service_of(request).authenticator, "counts no usage")
    used = await authenticator.usage.used(identity.project_id)
    scopes = tuple(sorted(identity.permissions))
    return ProjectState(
        id=identity.project_id, scopes=scopes, limits=identity.limits, tokens_today=used.on_day, tokens_ever=used.total
    )


@router.get(
    "/audit",
    name="read_audit_log",
    summary="Read the audit log",
    dependencies=[Depends(RequiredScope("admin"))],
    responses=problem_responses(422),
)
async def read_audit_log(
    request: Request,
    subject: Annotated[
        str | None,
        Query(description="Only changes of this subject.", examples=["team/math@production"], max_length=400),
    ] = None,
    project: OtherProject = None,
    after: After = None,
    limit: Limit = 100,
) -> AuditTail:
    """Changes to the project's rubrics, aliases, tags, keys and limits, newest first."""
    trail = required(service_of(request).audit, "has no audit log")
    project_id = administered_project(identity_of(request), project)
    return await reject_unknown_cursor(trail.audit(project_id, subject=subject, limit=limit, after=after))


@projects_router.get("", summary="List projects", responses=problem_responses(422))
async def list_projects(request: Request, after: After = None, limit: Limit = 100) -> ProjectList:
    """By name, each with its limits."""
    return await reject_unknown_cursor(_store(request).project_page(after=after, limit=limit))


@projects_router.post("", summary="Create a project", status_code=201, responses=problem_responses(413, 422))
async def create_project(request: Request, body: NewProject) -> Project:
    """Rubrics, runs and verdicts of a project are its own. `POST /v1/keys?project=…` creates its first key."""
    store = _store(request)
    try:
        return await store.create_project(body.id, body.limits.limits())
    except ValueError as error:
        raise invalid_field("id", str(error)) from None


@projects_router.get("/{id}", summary="Read a project", responses=problem_responses(404, 422))
async def read_project(request: Request, id: ProjectId) -> Project:
    """The project with its limits."""
    project = await _store(request).project(id)
    if project is None:
        raise _unknown_project(id)
    return project


@projects_router.put("/{id}/limits", summary="Set the limits of a project", responses=problem_responses(404, 413, 422))
async def set_project_limits(request: Request, id: ProjectId, body: NewLimits) -> Project:
    """All limits are replaced: what is left out is not limited any more. They apply within seconds."""
    try:
        return await _store(request).set_limits(id, body.limits())
    except LookupError:
        raise _unknown_project(id) from None


@keys_router.get("", summary="List the keys of the project", responses=problem_responses(422))
async def list_keys(
    request: Request, project: OtherProject = None, after: After = None, limit: Limit = 100
) -> ApiKeyList:
    """With their scopes, labels and times of last use, the oldest first, revoked ones included; no secrets."""
    project_id = administered_project(identity_of(request), project)
    return await reject_unknown_cursor(service_of(request).key_store().key_page(project_id, after=after, limit=limit))


@keys_router.post(
    "",
    name="create_key",
    summary="Create a key",
    status_code=201,
    responses=problem_responses(404, 413, 422),
)
async def create(request: Request, body: NewApiKey, project: OtherProject = None) -> CreatedApiKey:
    """The key belongs to the project of the key that asks, and has no permission that this one lacks.

    The answer has the text of the key, which is never shown again.
    """
    store, identity = service_of(request).key_store(), identity_of(request)
    project_id = administered_project(identity, project)
    try:
        return await create_key(
            store, identity, body.scopes, project_id=project_id, label=body.label, expires_at=body.expires_at
        )
    except LookupError:
        raise _unknown_project(project_id) from None


@keys_router.delete("/{id}", name="revoke_key", summary="Revoke a key", responses=problem_responses(404, 422))
async def revoke(
    request: Request,
    id: Annotated[str, Path(pattern=r"^[a-z2-7]{16}$", examples=["2c7rnm4dqvyxkz5e"])],
    project: OtherProject = None,
) -> ApiKey:
    """The key stops working within five seconds, for good. A revoked key is left as it is."""
    return await revoke_key(service_of(request).key_store(), request, id, project)


async def revoke_key(store: KeyAdministration, request: Request, key_id: str, project: str | None = None) -> ApiKey:
    """Revoke a key of a project, by default the caller's.

    Raises:
        Forbidden: the caller does not administer keys of that project.
        NotFound: the project has no such key.
    """
    project_id = administered_project(identity_of(request), project)
    found = await store.find_key(key_id)
    if found is None or found.key.project_id != project_id:
        message = f"Project {project_id!r} has no key {key_id[:64]!r}; GET /v1/keys lists its keys."
        raise NotFound(message, title="Unknown key")
    return await store.revoke_key(key_id)


def _unknown_project(project_id: str) -> NotFound:
    """The problem of a project that does not exist."""
    message = f"There is no project {project_id!r}; GET /v1/projects lists the projects."
    return NotFound(message, title="Unknown project")


def _store(request: Request) -> ProjectAdministration:
    require_administrator(identity_of(request), "projects:write")
    return required(service_of(request).projects, "administers no projects")
