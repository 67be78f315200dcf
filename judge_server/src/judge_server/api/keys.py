"""The routes that administer the API keys of projects: `GET` and `POST /v1/keys`, `DELETE /v1/keys/{id}`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from judge_server.api.auth import RequiredScope, identity_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import After, Limit, StrictRoute, reject_unknown_cursor
from judge_server.api.projects import OtherProject, unknown_project
from judge_server.api.service import service_of
from judge_server.auth.administration import administered_project, create_key
from judge_server.errors import NotFound
from judge_server.ports import KeyAdministration
from trainer_client.wire.tenants import ApiKey, ApiKeyList, CreatedApiKey, NewApiKey

router = APIRouter(
    prefix="/v1/keys", tags=["project"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("admin"))]
)


@router.get("", summary="List the keys of the project", responses=problem_responses(422))
async def list_keys(
    request: Request, project: OtherProject = None, after: After = None, limit: Limit = 100
) -> ApiKeyList:
    """With their scopes, labels and times of last use, the oldest first, revoked ones included; no secrets."""
    project_id = administered_project(identity_of(request), project)
    return await reject_unknown_cursor(service_of(request).key_store().key_page(project_id, after=after, limit=limit))


@router.post(
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
        raise unknown_project(project_id) from None


@router.delete("/{id}", name="revoke_key", summary="Revoke a key", responses=problem_responses(404, 422))
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
