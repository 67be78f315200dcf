"""The routes that administer the API keys of a project: `GET` and `POST /v1/keys`, `DELETE /v1/keys/{id}`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from judge_server.api.auth import RequiredScope, identity_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import StrictRoute
from judge_server.api.service import service_of
from judge_server.auth.administration import create_key, require_administrator
from judge_server.errors import NotReady, ServiceError
from judge_server.ports import KeyAdministration
from trainer_client.wire.tenants import ApiKey, ApiKeyList, CreatedApiKey, NewApiKey

router = APIRouter(
    prefix="/v1/keys", tags=["project"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("admin"))]
)


class UnknownKey(ServiceError):
    """The project has no key with that id."""

    type = "urn:adjudge:not-found"
    title = "Unknown key"
    status = 404


@router.get("", summary="List the keys of the project", response_model=ApiKeyList)
async def list_keys(request: Request) -> ApiKeyList:
    """All keys with their scopes, labels and times of last use, the oldest first; no secrets."""
    require_administrator(identity_of(request))
    return ApiKeyList(keys=tuple(await _store(request).keys(identity_of(request).project_id)))


@router.post(
    "", summary="Create a key", status_code=201, response_model=CreatedApiKey, responses=problem_responses(413, 422)
)
async def create(request: Request, body: NewApiKey) -> CreatedApiKey:
    """The key belongs to the project of the key that asks, and has no permission that this one lacks.

    The answer has the text of the key, which is never shown again.
    """
    return await create_key(
        _store(request), identity_of(request), body.scopes, label=body.label, expires_at=body.expires_at
    )


@router.delete("/{id}", summary="Revoke a key", response_model=ApiKey, responses=problem_responses(404, 422))
async def revoke(
    request: Request, id: Annotated[str, Path(pattern=r"^[a-z2-7]{16}$", examples=["2c7rnm4dqvyxkz5e"])]
) -> ApiKey:
    """The key stops working within five seconds, for good. A revoked key is left as it is."""
    return await revoke_key(_store(request), request, id)


async def revoke_key(store: KeyAdministration, request: Request, key_id: str) -> ApiKey:
    """Revoke a key of the caller's project.

    Raises:
        Forbidden: the caller does not administer keys.
        UnknownKey: the project has no such key.
    """
    identity = identity_of(request)
    require_administrator(identity)
    if not any(key.id == key_id for key in await store.keys(identity.project_id)):
        raise UnknownKey(f"This project has no key {key_id[:64]!r}; GET /v1/keys lists its keys.")
    return await store.revoke_key(key_id)


def _store(request: Request) -> KeyAdministration:
    store = service_of(request).keys
    if store is None:
        raise NotReady("This process administers no keys. Send the request to one that was started with a database.")
    return store
