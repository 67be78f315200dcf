"""`adjudge judges sleep` and `wake`: have a judge of a service give up its memory, and take it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import ServiceUrlOption
from adjudge_services.cli.output import out
from trainer_client.wire.judges import LEASE_S

if not OPTIONS_ONLY:
    from adjudge_services.cli.operating.operations import call_service

if TYPE_CHECKING:
    from trainer_client.wire.judges import JudgeSleep

JudgeArgument = Annotated[str, typer.Argument(help="The judge's name.", metavar="JUDGE")]
OwnerOption = Annotated[str, typer.Option(help="Who holds the lease; the next one of the same owner replaces it.")]
LeaseOption = Annotated[float, typer.Option("--lease-s", help="Seconds until the lease ends.")]


def sleep(
    judge: JudgeArgument = "default",
    owner: OwnerOption = "command line",
    lease_s: LeaseOption = LEASE_S,
    url: ServiceUrlOption = None,
) -> None:
    """Put a judge to sleep: its engine ends its calls and releases its memory; later requests wait."""
    _show(call_service(url, lambda client: client.put_judge_to_sleep(owner, judge, lease_s=lease_s)))


def wake(
    judge: JudgeArgument = "default",
    owner: OwnerOption = "command line",
    lease_s: LeaseOption = LEASE_S,
    url: ServiceUrlOption = None,
) -> None:
    """Wake a judge, and keep it awake as long as the lease holds."""
    _show(call_service(url, lambda client: client.wake_judge(owner, judge, lease_s=lease_s)))


def _show(found: JudgeSleep) -> None:
    owners = f", kept awake by {', '.join(found.kept_awake_by)}" if found.kept_awake_by else ""
    out.print(f"{found.judge} is {found.state.replace('_', ' ')}{owners}", markup=False)
