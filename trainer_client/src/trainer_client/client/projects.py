"""The clients' methods for projects, their keys and their audit logs."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainer_client.client.answers import PreparedRequest
from trainer_client.client.calls import name_in_path, query, validated
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


class AsyncProjectMethods(AsyncConnection):
    """The methods of `AsyncClient` about projects, their keys and their audit logs.

    Keys and audit logs need a key with the scope `admin`, and those of other projects than its own `projects:write` as
    well; projects need `projects:write`. All methods raise `AdjudgeError` as `AsyncClient.rewards` does, `Forbidden` if
    the key lacks the scope, and `NotFound` if there is no such project or key.
    """

    async def project_state(self) -> ProjectState:
        """Fetch the limits and usage of the key's project."""
        return await self.send(PreparedRequest("GET", "/v1/project", ProjectState))

    def projects(self) -> AsyncGenerator[Project, None]:
        """Iterate over all projects, by name, fetching a page at a time."""
        return self._items(PreparedRequest("GET", "/v1/projects", ProjectList), lambda page: page.projects)

    async def project(self, project_id: str) -> Project:
        """Fetch a project with its limits."""
        return await self.send(PreparedRequest("GET", _path(project_id), Project, expected={"id": project_id}))

    async def create_project(self, project_id: str, limits: LimitsLike = NewLimits()) -> Project:  # noqa: B008 - frozen
        """Create a project.

        Args:
            project_id: its name: lower-case letters, digits, `.`, `_` and `-`.
            limits: a `NewLimits` or a mapping of its fields; by default there are no limits.

        Raises:
            InvalidRequest: a project of this name exists.
            AdjudgeError: as for other methods, but the request is not tried again.
        """
        project, expected = validated(NewProject, {"id": project_id, "limits": limits}), {"id": project_id}
        return await self.send(
            PreparedRequest("POST", "/v1/projects", Project, project, repeatable=False, expected=expected)
        )

    async def set_limits(self, project_id: str, limits: LimitsLike) -> Project:
        """Replace all limits of a project; what is left out is not limited any more."""
        path, given = f"{_path(project_id)}/limits", validated(NewLimits, limits)
        return await self.send(PreparedRequest("PUT", path, Project, given, expected={"id": project_id}))

    def api_keys(self, project: str | None = None) -> AsyncGenerator[ApiKey, None]:
        """Iterate over the keys of a project, by default the key's own, oldest first, revoked ones included."""
        request = PreparedRequest("GET", "/v1/keys", ApiKeyList, params=query(project=project))
        return self._items(request, lambda page: page.keys)

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
        fields = {"scopes": tuple(scopes), "label": label, "expires_at": expires_at}

        def mismatch(key: CreatedApiKey) -> str | None:
            if set(key.scopes) != set(scopes):
                return f"the key may do {sorted(key.scopes)}, and {sorted(scopes)} was asked for"
            return unequal({"project_id": project}, key, unless_null=True)

        request = PreparedRequest(
            "POST",
            "/v1/keys",
            CreatedApiKey,
            validated(NewApiKey, fields),
            params=query(project=project),
            repeatable=False,
            mismatch=mismatch,
        )
        return await self.send(request)

    async def revoke_key(self, key_id: str, *, project: str | None = None) -> ApiKey:
        """Revoke a key for good, by its id."""
        if not _KEY_ID.fullmatch(key_id):
            raise InvalidRequest(f"{key_id!r} is not the id of a key; ids look like 2c7rnm4dqvyxkz5e")
        params, expected = query(project=project), {"id": key_id}
        return await self.send(
            PreparedRequest("DELETE", f"/v1/keys/{key_id}", ApiKey, params=params, expected=expected)
        )

    def audit_log(self, subject: str | None = None, *, project: str | None = None) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over the audit log of a project, newest first, or over the changes of one subject."""
        params = query(subject=subject, project=project)
        return self._items(PreparedRequest("GET", "/v1/audit", AuditTail, params=params), lambda page: page.entries)


def _path(project_id: str) -> str:
    return f"/v1/projects/{name_in_path(project_id, 'a project')}"
