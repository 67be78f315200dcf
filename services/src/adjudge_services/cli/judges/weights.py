"""`adjudge judges weights`: show which weights a judge of a service has, or have it load others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adjudge_services.cli.judges.sleep import JudgeArgument
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import ServiceUrlOption
from adjudge_services.cli.output import exit_with_error, out
from trainer_client.wire.judges import WEIGHTS_WAIT_S

if not OPTIONS_ONLY:
    from adjudge_services.cli.operating.operations import call_service
    from trainer_client.wire import VerdictRequest

if TYPE_CHECKING:
    from trainer_client.wire.judges import JudgeWeights, WeightsDrift


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
            exit_with_error("Say what the weights are called, with --version; without it, the present ones are shown.")
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
    name = found.version or "weights that have no name, or one that this key may not see"
    out.print(f"{found.judge} has {name}: {found.model}{adapter}{step}, tag {found.tag}", markup=False)
    if found.drift is not None:
        _show_drift(found.drift)
    if found.control_problem:
        out.print(f"the control set cannot be judged with them: {found.control_problem}", markup=False)
    for reference in found.refused_calibrations:
        out.print(f"the calibration {reference} was fitted for other weights; requests that need it are refused")


def _show_drift(drift: WeightsDrift) -> None:
    since = drift.since or "weights that have no name, or one that this key may not see"
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
