"""`adjudge projects` and `adjudge audit`: projects, their limits, and who changed what."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.tenants import format_time, with_tenants
from rubric_store import TenantStore
from trainer_client.wire.problems import field_errors
from trainer_client.wire.tenants import Limits, Project, TokenUsage

app = typer.Typer(help="Make projects and set their limits.", no_args_is_help=True)

WeightOption = Annotated[str | None, typer.Option(help="Its share of the judge beside others; 1 unless set.")]
RequestsPerMinuteOption = Annotated[
    str | None, typer.Option(help="Requests a minute of each API process; none lifts it.")
]
TokensPerDayOption = Annotated[str | None, typer.Option(help="Prompt tokens computed a day (UTC); none lifts it.")]
TokensTotalOption = Annotated[str | None, typer.Option(help="Prompt tokens computed in all; none lifts it.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="For example team-b.")],
    weight: WeightOption = None,
    requests_per_minute: RequestsPerMinuteOption = None,
    tokens_per_day: TokensPerDayOption = None,
    tokens_total: TokensTotalOption = None,
) -> None:
    """Make a project. It sees its own rubrics, runs and verdicts only."""
    limits = _limits(Limits(), weight, requests_per_minute, tokens_per_day, tokens_total)
    made = with_tenants(lambda tenants: tenants.create_project(name, limits))
    out.print(f"made project {made.id}; give it a key: adjudge keys create --project {made.id} --scope score")


@app.command("limits")
def limits(
    name: Annotated[str, typer.Argument(help="The project.")],
    weight: WeightOption = None,
    requests_per_minute: RequestsPerMinuteOption = None,
    tokens_per_day: TokensPerDayOption = None,
    tokens_total: TokensTotalOption = None,
) -> None:
    """Change limits of a project; those not given stay. Services take notice within five seconds."""

    async def change(tenants: TenantStore) -> Project:
        found = await tenants.project(name)
        if found is None:
            raise LookupError(f"there is no project {name!r}; adjudge projects list shows those there are")
        changed = _limits(found.limits, weight, requests_per_minute, tokens_per_day, tokens_total)
        return await tenants.set_limits(name, changed)

    changed = with_tenants(change)
    described = ", ".join(f"{key} {'none' if value is None else value}" for key, value in changed.limits)
    out.print(f"{changed.id}: {described}", highlight=False)


@app.command("list")
def list_projects() -> None:
    """Show projects, their limits, and the prompt tokens computed for them today and in all."""

    async def read(tenants: TenantStore) -> list[tuple[Project, TokenUsage]]:
        today = datetime.now(UTC).date()
        return [(project, await tenants.used_tokens(project.id, today)) for project in await tenants.projects()]

    table = Table("project", "made", "weight", "requests/min", "tokens today", "a day", "tokens in all", "at most")
    for project, used in with_tenants(read):
        limits = project.limits
        bounds = [
            "-" if bound is None else f"{bound:,}"
            for bound in (limits.requests_per_minute, limits.tokens_per_day, limits.tokens_total)
        ]
        use = (f"{used.on_day:,}", bounds[1], f"{used.total:,}", bounds[2])
        table.add_row(project.id, format_time(project.created_at), f"{limits.weight:g}", bounds[0], *use)
    out.print(table)


def audit(
    project: Annotated[str | None, typer.Option(help="Only this project's changes.")] = None,
    subject: Annotated[
        str | None, typer.Option(help="Only changes of this: math/quadratics@production, a key's id, a project.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the newest first.")] = 50,
) -> None:
    """Show who changed which rubric, alias, tag, key, project or limit, and what stood there before and after."""
    rows = with_tenants(lambda tenants: tenants.audit(project, subject=subject, limit=limit))
    table = Table("when", "project", "who", "what", "of")
    for side in ("before", "after"):
        table.add_column(side, overflow="fold")
    for row in rows:
        change = [escape("-" if side is None else side) for side in (row.before, row.after)]
        table.add_row(format_time(row.at), row.project_id, escape(row.actor), row.action, escape(row.subject), *change)
    if rows:
        out.print(table)
    else:
        out.print("no changes", style="dim")


def _limits(
    before: Limits, weight: str | None, requests: str | None, tokens_per_day: str | None, tokens_total: str | None
) -> Limits:
    given = {
        "weight": weight,
        "requests_per_minute": requests,
        "tokens_per_day": tokens_per_day,
        "tokens_total": tokens_total,
    }
    changed = {name: None if text == "none" else text for name, text in given.items() if text is not None}
    try:
        return Limits.model_validate({**before.model_dump(), **changed})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
        exit_with_error(f"--{wrong.field.replace('_', '-')}: {wrong.message}")
