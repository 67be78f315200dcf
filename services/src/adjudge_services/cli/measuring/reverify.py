"""`adjudge reverify`: judge recorded groups of a run again, at a service, and compare the rewards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    SERVICE,
    FirstStepOption,
    JsonOption,
    LastStepOption,
    RunArgument,
    ServiceUrlOption,
)
from adjudge_services.cli.output import err, exit_with_error, out, pluralize, print_json
from trainer_client.wire import RewardRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.operating.operations import follow, open_client
    from adjudge_services.cli.scoring.score_file import read_rubric_argument
    from trainer_client.wire.operations import Operation, ReverifyOperation


def reverify(
    run: RunArgument,
    *,
    verdicts: Annotated[
        Literal["failed", "all"], typer.Option(help="Groups with a failed verdict, or every group.")
    ] = "failed",
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of these groups to judge, chosen by a hash.")] = 1.0,
    into: Annotated[
        str | None,
        typer.Option(
            help="The run of the new records; by default RUN/reverified. Needed with another judge, rubric or options."
        ),
    ] = None,
    first_step: FirstStepOption = None,
    last_step: LastStepOption = None,
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file, instead of each group's own rubric.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="Name of a judge of the service, instead of the recorded one.", rich_help_panel=SERVICE),
    ] = None,
    judging: Annotated[Mapping[str, Any], FromRequest(RewardRequest, part="judging", defaults=False)],
    as_json: JsonOption = False,
    url: ServiceUrlOption = None,
) -> None:
    """Judge recorded groups of a run again, in a run of their own, and compare the rewards.

    Groups are judged as they were recorded, but for the options given here. Verdicts that the ledger has of the same
    calls are not asked again. The same command continues what was interrupted, and judges nothing twice; --into
    judges once more. Exits with 1 if it fails.
    """
    given = {
        "verdicts": verdicts,
        "share": share,
        "into": into,
        "first_step": first_step,
        "last_step": last_step,
        "judge": judge,
        "judging": {name: value for name, value in judging.items() if value is not None},
        "rubric": None if rubric is None else read_rubric_argument(rubric),
    }
    request = ReverifyOperation.model_validate({"run": run} | {n: v for n, v in given.items() if v not in (None, {})})
    key = "reverify " + hashlib.sha256(request.model_dump_json(exclude_unset=True).encode()).hexdigest()
    with open_client(url) as client:
        operation = client.submit(request, idempotency_key=key)
        before = operation.ended_at if operation.state == "done" else None
        if operation.state in ("failed", "cancelled"):
            operation = client.retry_operation(operation.id)
        operation = follow(client, operation.id)
    if operation.state != "done":
        exit_with_error(f"{operation.id} is {operation.state}: {operation.problem or 'no reason is known'}")
    if as_json:
        print_json(operation.model_dump(mode="json"))
        return
    show(operation)
    if before is not None:
        err.print(
            f"this was judged at {before:%Y-%m-%d %H:%M} UTC, and nothing was asked now; to judge the run as it is "
            "now, name another run with --into",
            markup=False,
        )


def show(operation: Operation) -> None:
    """Print what was judged again, and what changed."""
    found: Mapping[str, Any] = operation.summary or {}
    asked = pluralize(operation.usage.judge_calls, "judge call")
    out.print(f"{found['run']}  →  {found['into']}", style="bold", markup=False, highlight=False)
    out.print(f"{pluralize(found['groups'], 'group')}, {pluralize(found['responses'], 'response')}, {asked}")
    table = Table("", "before", "after", "changed", header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    means = [f"{found[f'mean_reward_{when}']:.4f}" if found["rewards"] else "–" for when in ("before", "after")]
    rewarded = [f"{found[f'rewarded_{when}']:,}" for when in ("before", "after")]
    table.add_row("responses with a reward", *rewarded, "")
    table.add_row("mean of those with both", *means, f"{found['rewards_changed']:,} of {found['rewards']:,}")
    table.add_row("failed verdicts", f"{found['failed_before']:,}", f"{found['failed_after']:,}", "")
    table.add_row("verdicts with both", "", "", f"{found['changed']:,} of {found['compared']:,}")
    out.print(table)
    for reason, count in operation.progress.discarded.items():
        err.print(f"not judged again, {reason}: {pluralize(count, 'group')}", markup=False)
    err.print(f"each group, before and after: adjudge operations results {operation.id}", markup=False)
