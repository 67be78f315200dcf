"""`adjudge judges sleep`, `wake` and `weights`: the memory of a judge of a service, and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import ServiceUrlOption, UsageError
from adjudge_services.cli.output import out
from trainer_client.wire.judges import LEASE_S, WEIGHTS_WAIT_S

if not OPTIONS_ONLY:
    from adjudge_services.cli.operating.operations import call_service
    from trainer_client.wire import VerdictRequest

if TYPE_CHECKING:
    from trainer_client.wire.judges import JudgeSleep, JudgeWeights, WeightsDrift


JudgeArgument = Annotated[str, typer.Argument(help="The judge's name.", metavar="JUDGE")]
OwnerOption = Annotated[str, typer.Option(help="Who holds the lease; the next one of the same owner replaces it.")]
LeaseOption = Annotated[float, typer.Option("--lease-s", help="Seconds until the lease ends.")]


_UNNAMED = "weights that have no name, or one that this key may not see"


def sleep(
    judge: JudgeArgument = "default",
    owner: OwnerOption = "command line",
    lease_s: LeaseOption = LEASE_S,
    url: ServiceUrlOption = None,
) -> None:
    """Put a judge to sleep: its engine ends its calls and releases its memory; later requests wait."""
    _show_sleep(call_service(url, lambda client: client.put_judge_to_sleep(owner, judge, lease_s=lease_s)))


def wake(
    judge: JudgeArgument = "default",
    owner: OwnerOption = "command line",
    lease_s: LeaseOption = LEASE_S,
    url: ServiceUrlOption = None,
) -> None:
    """Wake a judge, and keep it awake as long as the lease holds."""
    _show_sleep(call_service(url, lambda client: client.wake_judge(owner, judge, lease_s=lease_s)))


def _show_sleep(found: JudgeSleep) -> None:
    owners = f", kept awake by {', '.join(found.kept_awake_by)}" if found.kept_awake_by else ""
    out.print(f"{found.judge} is {found.state.replace('_', ' ')}{owners}", markup=False)


def weights(
    judge: JudgeArgument = "default",
    version: Annotated[str | None, typer.Option(help="Load other weights, which you call so.")] = None,
    adapter: Annotated[
        str | None, typer.Option(help="A LoRA adapter in ADJUDGE_ADAPTERS_DIR; none for the weights without one.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="The training step that they are of.")] = None,
    expected: Annotated[
        str | None, typer.Option(help="Load them only if the judge has the weights with this tag.")
    ] = None,
    control: Annotated[
        Path | None,
        typer.Option(
            help="A request for verdicts, as JSON, that is judged before and after, to show the drift.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait-s", help="Seconds to wait for requests under way.")] = WEIGHTS_WAIT_S,
    url: ServiceUrlOption = None,
) -> None:
    """Show which weights a judge has, or have it load others with --version."""
    if version is None:
        if (adapter, step, expected, control) != (None, None, None, None):
            raise UsageError("Say what the weights are called, with --version; without it, the present ones are shown.")
        _show(call_service(url, lambda client: client.judge_weights(judge)))
        return
    control_set = None if control is None else VerdictRequest.model_validate_json(control.read_bytes())
    _show(
        call_service(
            url,
            lambda client: client.load_judge_weights(
                version, adapter, judge, step=step, expected=expected, control=control_set, wait_s=wait_s
            ),
        )
    )


def _show(found: JudgeWeights) -> None:
    step = "" if found.step is None else f", step {found.step}"
    adapter = "" if found.adapter is None else f", adapter {found.adapter}"
    name = found.version or _UNNAMED
    out.print(f"{found.judge} has {name}: {found.model}{adapter}{step}, tag {found.tag}", markup=False)
    if found.drift is not None:
        _show_drift(found.drift)
    if found.control_problem:
        out.print(f"the control set cannot be judged with them: {found.control_problem}", markup=False)
    for reference in found.refused_calibrations:
        refused = f"the calibration {reference} was fitted for other weights; requests that need it are refused"
        out.print(refused, markup=False)


def _show_drift(drift: WeightsDrift) -> None:
    since = drift.since or _UNNAMED
    if drift.changed is None:
        out.print(f"no verdict on the control set can be compared with {since}", markup=False)
        return
    moved = ""
    if drift.probability_change is not None and drift.probability_distance is not None:
        moved = (
            f"; probabilities moved by {drift.probability_change:+.3f} on average, {drift.probability_distance:.3f} "
            "in either direction"
        )
    missing = f"; {drift.missing} not compared" if drift.missing else ""
    out.print(f"since {since}, {drift.changed:.1%} of {drift.verdicts} verdicts changed{moved}{missing}", markup=False)
