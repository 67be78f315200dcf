"""`adjudge keys`: make, list and revoke API keys."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.cli.tenants import format_time, with_tenants
from judge_server.access.keys import make_key
from trainer_client.wire.tenants import DEFAULT_PROJECT, SCOPES

app = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)


@app.command("create")
def create(
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help=f"What it opens: {', '.join(SCOPES)}; may be repeated.")
    ] = None,
    project: Annotated[str, typer.Option(help="Whose key it is.")] = DEFAULT_PROJECT,
    label: Annotated[str, typer.Option(help="What it is for, to know it by.")] = "",
    expires_in: Annotated[
        float | None, typer.Option("--expires-in", min=0.001, max=36500, help="Days until it opens nothing any more.")
    ] = None,
) -> None:
    """Make a key and show it, once: only its digest is kept. The key alone goes to standard output."""
    if not scopes:
        exit_with_error(f"say what the key opens, with --scope: {', '.join(SCOPES)}")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        exit_with_error(f"{unknown[0]!r} is no scope; there are {', '.join(SCOPES)}")
    if not label.isprintable() or len(label) > 200:
        exit_with_error("a label is one line of at most 200 characters")
    expires = None if expires_in is None else datetime.now(UTC) + timedelta(days=expires_in)
    made = make_key()
    wanted = sorted(set(scopes))
    key = with_tenants(
        lambda tenants: tenants.add_key(project, made.id, made.digest, scopes=wanted, label=label, expires_at=expires)
    )
    until = "until it is revoked" if key.expires_at is None else f"until {format_time(key.expires_at)}"
    err.print(
        f"key {key.id} of project {project} opens {', '.join(wanted)} {until}; it is not shown again", soft_wrap=True
    )
    typer.echo(made.text)


@app.command("list")
def list_keys(
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those revoked or expired.")] = False,
) -> None:
    """Show the keys there are; of their secrets nothing is known."""
    now = datetime.now(UTC)
    keys = with_tenants(lambda tenants: tenants.keys(project))
    table = Table("key", "project", "scopes", "label", "state", "made", "expires", "last used")
    for key in keys:
        state = key.state_at(now)
        if all_ or state == "usable":
            moments = (format_time(key.created_at), format_time(key.expires_at), format_time(key.last_used_at))
            table.add_row(key.id, key.project_id, " ".join(key.scopes), escape(key.label), state, *moments)
    if table.row_count:
        out.print(table)
    else:
        out.print("no keys", style="dim")


@app.command("revoke")
def revoke(key: Annotated[str, typer.Argument(help="The key's id, as `adjudge keys list` shows it.")]) -> None:
    """Have a key open nothing any more, for good; services take notice within five seconds."""
    revoked = with_tenants(lambda tenants: tenants.revoke_key(key))
    out.print(f"revoked {revoked.id} of project {revoked.project_id}", highlight=False)
