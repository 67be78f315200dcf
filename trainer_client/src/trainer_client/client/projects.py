"""The clients' methods for projects, their keys and their audit logs, and the requests they send."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel, ValidationError

from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import invalid_request_error, to_json_bytes
from trainer_client.client.connection import AsyncConnection
from trainer_client.client.matching import unequal
from trainer_client.errors import InvalidRequest
from trainer_client.wire.tenants import (
    ApiKey,
    ApiKeyList,
    AuditEntry,
    AuditTail,
    CreatedApiKey,
    NewApiKey,
    NewLimits,
    NewProject,
    Project,
    ProjectList,
    ProjectState,
    Scope,
)

LimitsLike = NewLimits | Mapping[str, Any]

_KEY_ID = re.compile(r"[a-z2-7]{16}")
_PROJECT_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def state_request() -> PreparedRequest[ProjectState]:
    """Build `GET /v1/project`."""
    return PreparedRequest("GET", "/v1/project", ProjectState)


def projects_request(after: str | None) -> PreparedRequest[ProjectList]:
    """Build `GET /v1/projects` for the page after a cursor."""
    return PreparedRequest("GET", "/v1/projects", ProjectList, params=_params(after=after))


def project_request(project_id: str) -> PreparedRequest[Project]:
    """Build `GET /v1/projects/{id}`."""
    return PreparedRequest("GET", _project_path(project_id), Project, mismatch=partial(unequal, {"id": project_id}))


def create_project_request(project_id: str, limits: LimitsLike) -> PreparedRequest[Project]:
    """Build `POST /v1/projects`."""
    body = _body(NewProject, {"id": project_id, "limits": limits})
    mismatch = partial(unequal, {"id": project_id})
    return PreparedRequest("POST", "/v1/projects", Project, body, repeatable=False, mismatch=mismatch)


def limits_request(project_id: str, limits: LimitsLike) -> PreparedRequest[Project]:
    """Build `PUT /v1/projects/{id}/limits`."""
    path, mismatch = f"{_project_path(project_id)}/limits", partial(unequal, {"id": project_id})
    return PreparedRequest("PUT", path, Project, _body(NewLimits, limits), mismatch=mismatch)


def keys_request(project: str | None, after: str | None) -> PreparedRequest[ApiKeyList]:
    """Build `GET /v1/keys` for the page after a cursor."""
    return PreparedRequest("GET", "/v1/keys", ApiKeyList, params=_params(project=project, after=after))


def create_key_request(
    scopes: Sequence[Scope], project: str | None, label: str, expires_at: datetime | None
) -> PreparedRequest[CreatedApiKey]:
    """Build `POST /v1/keys`."""
    body = _body(NewApiKey, {"scopes": tuple(scopes), "label": label, "expires_at": expires_at})

    def mismatch(key: CreatedApiKey) -> str | None:
        if set(key.scopes) != set(scopes):
            return f"the key may do {sorted(key.scopes)}, and {sorted(scopes)} was asked for"
        return unequal({"project_id": project}, key, unless_null=True)

    params = _params(project=project)
    return PreparedRequest("POST", "/v1/keys", CreatedApiKey, body, params=params, repeatable=False, mismatch=mismatch)


def revoke_key_request(key_id: str, project: str | None) -> PreparedRequest[ApiKey]:
    """Build `DELETE /v1/keys/{id}`."""
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidRequest(f"{key_id!r} is not the id of a key; ids look like 2c7rnm4dqvyxkz5e")
    params, mismatch = _params(project=project), partial(unequal, {"id": key_id})
    return PreparedRequest("DELETE", f"/v1/keys/{key_id}", ApiKey, params=params, mismatch=mismatch)


def audit_request(subject: str | None, project: str | None, after: str | None) -> PreparedRequest[AuditTail]:
    """Build `GET /v1/audit` for the page after a cursor."""
    return PreparedRequest("GET", "/v1/audit", AuditTail, params=_params(subject=subject, project=project, after=after))


def _params(**given: str | None) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def _project_path(project_id: str) -> str:
    if not _PROJECT_ID.fullmatch(project_id):
        raise InvalidRequest(f"{project_id!r} is not the name of a project; use lower-case letters, digits, . _ and -")
    return f"/v1/projects/{project_id}"


def _body(message: type[BaseModel], fields: BaseModel | Mapping[str, Any]) -> bytes:
    try:
        return to_json_bytes(message.model_validate(fields))
    except ValidationError as error:
        raise invalid_request_error(error) from error


class AsyncProjectMethods(AsyncConnection):
    """The methods of `AsyncClient` about projects, their keys and their audit logs.

    Keys and audit logs need a key with the scope `admin`, and those of other projects than its own `projects:write` as
    well; projects need `projects:write`. All methods raise `AdjudgeError` as `AsyncClient.rewards` does, `Forbidden` if
    the key lacks the scope, and `NotFound` if there is no such project or key.
    """

    async def project_state(self) -> ProjectState:
        """Fetch the limits and usage of the key's project."""
        return await self.send(state_request())

    async def projects(self) -> AsyncGenerator[Project, None]:
        """Iterate over all projects, by name, fetching a page at a time."""
        after: str | None = None
        while True:
            page = await self.send(projects_request(after))
            for entry in page.projects:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def project(self, project_id: str) -> Project:
        """Fetch a project with its limits."""
        return await self.send(project_request(project_id))

    async def create_project(self, project_id: str, limits: LimitsLike = NewLimits()) -> Project:  # noqa: B008 - frozen
        """Create a project.

        Args:
            project_id: its name: lower-case letters, digits, `.`, `_` and `-`.
            limits: a `NewLimits` or a mapping of its fields; by default there are no limits.

        Raises:
            InvalidRequest: a project of this name exists.
            AdjudgeError: as for other methods, but the request is not tried again.
        """
        return await self.send(create_project_request(project_id, limits))

    async def set_limits(self, project_id: str, limits: LimitsLike) -> Project:
        """Replace all limits of a project; what is left out is not limited any more."""
        return await self.send(limits_request(project_id, limits))

    async def api_keys(self, project: str | None = None) -> AsyncGenerator[ApiKey, None]:
        """Iterate over the keys of a project, by default the key's own, oldest first, revoked ones included."""
        after: str | None = None
        while True:
            page = await self.send(keys_request(project, after))
            for entry in page.keys:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor

    async def create_key(
        self,
        scopes: Sequence[Scope],
        *,
        project: str | None = None,
        label: str = "",
        expires_at: datetime | None = None,
    ) -> CreatedApiKey:
        """Create a key; `key` of the answer is its text, which cannot be read again.

        Args:
            scopes: what the key may do; only what the key that asks may do itself.
            project: the project of the key; by default that of the key that asks.
            label: a name for people to recognise it by.
            expires_at: when it stops to be valid; by default never.

        Raises:
            AdjudgeError: as for other methods, but the request is not tried again: the key may exist nevertheless.
        """
        return await self.send(create_key_request(scopes, project, label, expires_at))

    async def revoke_key(self, key_id: str, *, project: str | None = None) -> ApiKey:
        """Revoke a key for good, by its id."""
        return await self.send(revoke_key_request(key_id, project))

    async def audit_log(
        self, subject: str | None = None, *, project: str | None = None
    ) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over the audit log of a project, newest first, or over the changes of one subject."""
        after: str | None = None
        while True:
            page = await self.send(audit_request(subject, project, after))
            for entry in page.entries:
                yield entry
            if page.next_cursor is None:
                return
            after = page.next_cursor
