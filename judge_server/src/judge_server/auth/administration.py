"""Administering API keys with a key of the scope `admin`, and projects with one of the scope `projects:write`."""

from collections.abc import Sequence
from datetime import UTC, datetime

from judge_server.auth.authenticator import require_scope
from judge_server.auth.keys import make_key
from judge_server.errors import Forbidden, InvalidRequest
from judge_server.ports import ANONYMOUS, SCOPE_PERMISSIONS, Identity, KeyAdministration
from trainer_client.wire.tenants import SCOPES, CreatedApiKey, Scope


def grantable_scopes(identity: Identity) -> tuple[Scope, ...]:
    """Return the scopes that an administrator may give to a key: those whose permissions it has itself."""
    return tuple([scope for scope in SCOPES if SCOPE_PERMISSIONS[scope] <= identity.permissions])


def require_administrator(identity: Identity, scope: Scope = "admin") -> None:
    """Require a key with the scope `admin`, for keys, or with `projects:write`, for projects.

    A caller without a key cannot administer either, even where everything else is open: a key lasts, and the openness
    of a service on loopback does not.

    Raises:
        Forbidden: the caller has no key, or one without the scope.
    """
    if identity is ANONYMOUS:
        raise Forbidden(
            f"{'Keys' if scope == 'admin' else 'Projects'} are administered with a key of the scope {scope!r}, which "
            f"the operator of this service creates: adjudge keys create --scope {scope}"
        )
    require_scope(identity, scope)


def administered_project(identity: Identity, project_id: str | None) -> str:
    """Return the project whose keys or audit log a caller administers: the caller's own, unless it names another.

    Raises:
        Forbidden: the caller does not administer keys, or names another project without the scope `projects:write`.
    """
    require_administrator(identity)
    if project_id is None or project_id == identity.project_id:
        return identity.project_id
    require_scope(identity, "projects:write")
    return project_id


async def create_key(
    store: KeyAdministration,
    identity: Identity,
    scopes: Sequence[Scope],
    *,
    project_id: str | None = None,
    label: str = "",
    expires_at: datetime | None = None,
) -> CreatedApiKey:
    """Create a key in a project, by default the caller's.

    Raises:
        Forbidden: the caller does not administer keys, or lacks a permission that the key would have.
        LookupError: the project does not exist.
        InvalidRequest: the key would have expired already.
    """
    require_administrator(identity)
    beyond = [scope for scope in scopes if scope not in grantable_scopes(identity)]
    if beyond:
        raise Forbidden(
            f"This key cannot give the scope {beyond[0]!r}, because it does not have it itself. The operator of this "
            f"service can: adjudge keys create --scope {beyond[0]}"
        )
    if expires_at is not None and expires_at <= datetime.now(UTC):
        raise InvalidRequest("expires_at: this time has passed; give a later one, or leave it out")
    made = make_key()
    stored = await store.add_key(
        project_id or identity.project_id,
        made.id,
        made.digest,
        scopes=tuple(dict.fromkeys(scopes)),
        label=label,
        expires_at=expires_at,
    )
    return CreatedApiKey(**stored.model_dump(), key=made.text)
