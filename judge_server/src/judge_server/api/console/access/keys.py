"""The project for its administrators: its keys, its limits and usage, and what was changed."""

from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import identity_of
from judge_server.api.console.forms import Form
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.tables import address
from judge_server.api.keys import revoke_key
from judge_server.auth import ANONYMOUS
from judge_server.auth.administration import create_key, grantable_scopes
from judge_server.errors import InvalidRequest, NotReady
from judge_server.ports import KeyAdministration
from trainer_client.wire.tenants import SCOPES, AuditEntry, CreatedApiKey

router = PageRouter()

_AUDIT_ENTRIES = 50
_MAX_DAYS = 3650


@router.get("/keys", scope="admin")
async def keys(console: Console, request: Request) -> Response:
    """The keys of the project, its limits, and its audit log."""
    return await _page(console, request, None)


@router.post("/keys", scope="admin")
async def create(console: Console, request: Request, form: Form) -> Response:
    """Create a key and show its text, once."""
    chosen = form.texts("scope")
    scopes = [scope for scope in SCOPES if scope in chosen]
    if not scopes or len(scopes) < len(chosen):
        raise InvalidRequest("scope: choose what the key may do")
    label = form.text("label").strip()[:200]
    made = await create_key(_store(console), identity_of(request), scopes, label=label, expires_at=_end(form))
    return await _page(console, request, made)


@router.post("/keys/revoke", scope="admin")
async def revoke(console: Console, request: Request, form: Form) -> Response:
    """Revoke a key."""
    await revoke_key(_store(console), request, form.text("id"))
    return RedirectResponse(address("keys"), 303)


async def _page(console: Console, request: Request, made: CreatedApiKey | None) -> Response:
    identity, service = identity_of(request), console.service
    subject = text_parameter(request, "subject") or None
    listed = await _store(console).keys(identity.project_id)
    entries: tuple[AuditEntry, ...] = ()
    if service.audit is not None:
        tail = await service.audit.audit(identity.project_id, subject=subject, limit=_AUDIT_ENTRIES)
        entries = tail.entries
    used = None if service.authenticator is None else await service.authenticator.usage.used(identity.project_id)
    return console.page(
        request, "keys.html.jinja", keys=listed[::-1], made=made, entries=entries, used=used, limits=identity.limits,
        subject=subject, now=datetime.now(UTC), scopes=grantable_scopes(identity), may_change=identity is not ANONYMOUS,
    )  # fmt: skip


def _store(console: Console) -> KeyAdministration:
    if console.service.keys is None:
        raise NotReady("This process administers no keys. Open the console of one that was started with a database.")
    return console.service.keys


def _end(form: Form) -> datetime | None:
    days = form.text("days").strip()
    if not days:
        return None
    if not (days.isascii() and days.isdecimal()) or not 1 <= int(days[:9]) <= _MAX_DAYS:
        raise InvalidRequest(f"days: write a whole number from 1 to {_MAX_DAYS:,}, or nothing for a key that stays")
    return datetime.now(UTC) + timedelta(days=int(days))
