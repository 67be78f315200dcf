"""`adjudge projects`, `adjudge keys` and `adjudge audit`: manage projects and API keys, and read the audit log."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from rich.table import Column, Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption, UsageError
from adjudge_services.cli.output import err, out, print_json, print_line
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire.tenants import SCOPES

if not OPTIONS_ONLY:
    from pydantic import ValidationError

    from adjudge_services.store import command_line_user, use_store
    from judge_server.auth.keys import make_key
    from rubric_store import TenantStore
    from rubric_store.tenants.rows import TokenUsage
    from trainer_client.wire.problems import field_errors
    from trainer_client.wire.tenants import Limits, Project


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of a project as they are written, in the order of `Limits`; None for those that are not given."""

    weight: Annotated[str | None, typer.Option(help="Weight of the project's share of the judge; 1 by default.")] = None
    requests_per_minute: Annotated[
        str | None,
        typer.Option(
            help="Limit of requests per minute, over all API processes with Redis as ADJUDGE_CACHE_URL, otherwise of "
            "each; none removes it."
        ),
    ] = None
    tokens_per_day: Annotated[
        str | None, typer.Option(help="Limit of prompt tokens computed per day (UTC); none removes it.")
    ] = None
    tokens_total: Annotated[
        str | None, typer.Option(help="Limit of prompt tokens computed in total; none removes it.")
    ] = None

    def changed(self, before: Limits) -> Limits:
        """The limits with those changed that are given."""
        changed = {name: None if text == "none" else text for name, text in asdict(self).items() if text is not None}
        try:
            return Limits.model_validate({**before.model_dump(), **changed})
        except ValidationError as error:
            wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise UsageError(f"--{wrong.field.replace('_', '-')}: {wrong.message}") from None


def create(
    name: Annotated[str, typer.Argument(help="Name of the project, for example team-b.")], *, given: LimitOptions
) -> None:
    """Create a project. It sees only its own rubrics, runs and verdicts."""
    limits = given.changed(Limits())
    project = with_tenants(lambda tenants: tenants.create_project(name, limits))
    print_line(f"created project {project.id}; create a key: adjudge keys create --project {project.id} --scope score")


def limits(name: Annotated[str, typer.Argument(help="The project.")], *, given: LimitOptions) -> None:
    """Change limits of a project; limits that are not given stay. Services apply them within five seconds."""

    async def change(tenants: TenantStore) -> Project:
        found = await tenants.project(name)
        if found is None:
            raise LookupError(f"there is no project {name!r}; list the projects with: adjudge projects list")
        return await tenants.set_limits(name, given.changed(found.limits))

    changed = with_tenants(change)
    described = ", ".join(f"{key} {'none' if value is None else value}" for key, value in changed.limits)
    print_line(f"{changed.id}: {described}")


def list_projects(as_json: JsonOption = False) -> None:
    """List projects with their limits and the prompt tokens computed for them, today and in total."""

    async def read(tenants: TenantStore) -> list[tuple[Project, TokenUsage]]:
        today = datetime.now(UTC).date()
        return [(project, await tenants.used_tokens(project.id, today)) for project in await tenants.projects()]

    table = Table(Column("project", overflow="fold"), Column("created", no_wrap=True), box=None, pad_edge=False)
    for name in ("weight", "requests a minute", "tokens today", "daily limit", "tokens total", "limit"):
        table.add_column(name, justify="right", overflow="fold")
    found = with_tenants(read)
    if as_json:
        print_json(
            [
                {**project.model_dump(mode="json"), "tokens_today": used.on_day, "tokens_total": used.total}
                for project, used in found
            ]
        )
        return
    for project, used in found:
        limits = project.limits
        bounds = [
            "-" if bound is None else f"{bound:,}"
            for bound in (limits.requests_per_minute, limits.tokens_per_day, limits.tokens_total)
        ]
        use = (f"{used.on_day:,}", bounds[1], f"{used.total:,}", bounds[2])
        table.add_row(project.id, format_time(project.created_at), f"{limits.weight:g}", bounds[0], *use)
    out.print(table)


def _short_digest(value: str | None) -> str:
    """A value before or after a change, with the beginning of a digest; a dash for none."""
    if value is None:
        return "-"
    return f"{value[:19]}…" if value.startswith("sha256:") else value


def audit(
    project: Annotated[str | None, typer.Option(help="Only this project's changes.")] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="Only changes of this subject: math/quadratics@production, a key's id, a project."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of changes to show, newest first.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show who changed rubrics, aliases, tags, keys, projects and limits, with the values before and after."""
    rows = with_tenants(lambda tenants: tenants.audit(project, subject=subject, limit=limit)).entries
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("time", "project", "actor", "action", "subject", "before", "after"):
        table.add_column(name, overflow="fold", no_wrap=name in ("time", "action"))
    for row in rows:
        change = [escape(_short_digest(side)) for side in (row.before, row.after)]
        table.add_row(format_time(row.at), row.project_id, escape(row.actor), row.action, escape(row.subject), *change)
    if rows:
        out.print(table)
    else:
        out.print("no changes", style="dim")


def create_key(
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help=f"What the key permits: {', '.join(SCOPES)}; may be repeated.")
    ] = None,
    project: Annotated[str, typer.Option(help="The key's project.")] = DEFAULT_PROJECT,
    label: Annotated[str, typer.Option(help="A label to recognise the key by.")] = "",
    expires_in: Annotated[
        float | None,
        typer.Option("--expires-in", min=0.001, max=36500, help="Days until the key expires; never by default."),
    ] = None,
) -> None:
    """Create a key and print it on standard output. It is shown only once: the database keeps only its digest."""
    if not scopes:
        raise UsageError(f"say what the key permits, with --scope: {', '.join(SCOPES)}")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise UsageError(f"there is no scope {unknown[0]!r}; use one of {', '.join(SCOPES)}")
    if not label.isprintable() or len(label) > 200:
        raise UsageError("--label must be one line of at most 200 characters")
    expires = None if expires_in is None else datetime.now(UTC) + timedelta(days=expires_in)
    new_key = make_key()
    wanted = sorted(set(scopes))
    key = with_tenants(
        lambda tenants: tenants.add_key(
            project, new_key.id, new_key.digest, scopes=wanted, label=label, expires_at=expires
        )
    )
    until = "until it is revoked" if key.expires_at is None else f"until {format_time(key.expires_at)}"
    err.print(f"key {key.id} of project {project} permits {', '.join(wanted)} {until}; it is not shown again")
    typer.echo(new_key.text)


def list_keys(
    project: Annotated[str | None, typer.Option(help="Only keys of this project.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Include revoked and expired keys.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List keys. Their secrets are not stored and cannot be shown."""
    now = datetime.now(UTC)
    keys = with_tenants(lambda tenants: tenants.keys(project))
    shown = [(key, state) for key in keys if (state := key.state_at(now)) == "usable" or all_]
    if as_json:
        print_json([{**key.model_dump(mode="json"), "state": state} for key, state in shown])
        return
    table = Table(Column("key", no_wrap=True), box=None, pad_edge=False)
    for name in ("project", "scopes", "label", "state", "created", "expires", "last used"):
        table.add_column(name, overflow="fold")
    for key, state in shown:
        moments = (format_time(key.created_at), format_time(key.expires_at), format_time(key.last_used_at))
        table.add_row(key.id, key.project_id, " ".join(key.scopes), escape(key.label), state, *moments)
    if table.row_count:
        out.print(table)
    else:
        out.print("no keys", style="dim")


def revoke(key: Annotated[str, typer.Argument(help="The key's id, as `adjudge keys list` shows it.")]) -> None:
    """Revoke a key permanently. Services apply it within five seconds."""
    revoked = with_tenants(lambda tenants: tenants.revoke_key(key))
    out.print(f"revoked {revoked.id} of project {revoked.project_id}")


Result = TypeVar("Result")


def with_tenants(work: Callable[[TenantStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` on the store of projects and keys, as the user of the command line."""
    return use_store(partial(TenantStore, actor=command_line_user), work)


def format_time(moment: datetime | None) -> str:
    """A time in UTC to the minute; a dash for None."""
    return "-" if moment is None else f"{moment:%Y-%m-%d %H:%MZ}"
