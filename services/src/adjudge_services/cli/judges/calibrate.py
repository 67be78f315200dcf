"""`adjudge calibrate` and `adjudge calibrations`: fit, store, list and select calibrations of a judge.

`adjudge cascade` and `adjudge panel` fit how the verdicts of several judges are combined, and measure the result.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    Asking,
    DataArgument,
    DatasetArgument,
    JsonOption,
    JudgeOption,
    ProtocolOption,
    Report,
    Rows,
)
from adjudge_services.cli.output import err, exit_with_error, file_name, out
from trainer_client.wire import VerdictRequest


def calibrate(
    data: DataArgument,
    *,
    name: Annotated[str, typer.Option(help="Name under which to store the calibration.")],
    judge: JudgeOption = None,
    rows: Rows,
    method: Annotated[
        Literal["auto", "temperature", "platt", "beta", "isotonic"],
        typer.Option(help="auto: temperature from 20 labels on, platt from 60, beta from 1,000."),
    ] = "auto",
    threshold: Annotated[
        str, typer.Option(help="Lowest calibrated probability of a yes, or balanced: fitted for balanced accuracy.")
    ] = "0.5",
    uncertain_band: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Calibrated probabilities between which verdicts are uncertain."),
    ] = None,
    protocol: ProtocolOption = "binary",
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, only=("rationale", "template"))],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fit and measure, but store nothing.")] = False,
    asking: Asking,
) -> None:
    """Fit a calibration on one half of a data set, measure it on the other, and store it as a new version.

    A service applies it once ADJUDGE_CALIBRATIONS names it. A calibration that makes the Brier score of the other half
    worse is not stored.
    """
    from adjudge_services.cli.judges.calibrate_work import (
        BAND,
        calibrated_fingerprint,
        calibration_json,
        read_responses,
        read_threshold,
        show_calibration,
        with_store,
    )
    from adjudge_services.cli.judges.evaluate_work import judge_and_dataset, judge_dataset, judging_options
    from adjudge_services.store import StartError
    from judge_server.errors import ServiceError
    from judge_server.evaluation.labelled import DatasetError, half_of
    from judge_server.evaluation.report import measured_verdicts
    from judge_server.fitting.calibrations import MissingExtraError, before_and_after, calibrated_error, fit_calibration
    from judge_server.judging.questions import JudgingConfig
    from trainer_client import AdjudgeError
    from trainer_client.wire import JudgingOptions

    asked = judging_options({"protocol": protocol, **options})
    try:
        judge, dataset = judge_and_dataset(judge, data)
        _, responses = read_responses(dataset, rows, fitting=True)
        judgements = judge_dataset(judge, responses, asked, asking)
        accepted = [one for one in judgements if one.uncalibrated]
        if not accepted and any(one.fingerprint for one in judgements):
            raise ValueError("a cascade or panel has no calibration of its own; calibrate the judges it is made of")
        if not accepted:
            raise ValueError(f"no example was judged: {judgements[0].problem}")
        measured = [verdict for one in accepted for verdict in measured_verdicts(one)]
        descriptions = {(one.row, c.id): c.description for one in responses for c in one.criteria}
        fit, held = ([one for one in measured if half_of(one.row) == half] for half in ("fit", "held"))
        chosen, calibration = fit_calibration(
            fit, descriptions, name=name, method=method, threshold=read_threshold(threshold)
        )
        if uncertain_band is not None:
            calibration = replace(calibration, uncertain_band=BAND.validate_python(uncertain_band))
        figures = before_and_after(held, descriptions, calibration)
    except (DatasetError, MissingExtraError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    show_calibration(chosen, calibration, figures, len(held))
    if figures["difference"]["brier"].low > 0:
        exit_with_error("the calibration makes the Brier score worse on rows that it was not fitted on; not stored")
    if dry_run:
        return
    config = JudgingConfig.of(JudgingOptions.model_validate(asked), protocol)
    measured_on: dict[str, dict[str, float]] = {
        figure: {**estimate._asdict(), "n": len(held)} for figure, estimate in figures["calibrated"].items()
    }
    judge_error = calibrated_error(held, descriptions, calibration)
    for rate, counted in (judge_error._asdict() if judge_error else {}).items():
        measured_on[rate] |= {"labels": counted.labels, "effective_labels": counted.effective_labels}
    content = {
        "judge": accepted[0].uncalibrated,
        "model": accepted[0].model,
        "config": config.recorded(),
        "method": chosen,
        "calibration": {**calibration_json(calibration), "name": name},
        "measured": measured_on,
    }
    if "://" in judge:
        try:
            content["fingerprint"] = asyncio.run(calibrated_fingerprint(judge, name, content, config))
        except (StartError, ServiceError, OSError) as problem:
            exit_with_error(str(problem))
    version, added = with_store(lambda store: store.add(name, content))
    out.print(
        f"{'stored' if added else 'unchanged:'} {name}@{version.version}; to apply it: "
        f"ADJUDGE_CALIBRATIONS={name}@{version.version}, or an alias (`adjudge calibrations alias`)",
        highlight=False,
    )


def calibrations(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the stored calibrations of judges, bands of cascades and error rates of panels, with their aliases."""
    from adjudge_services.cli.judges.calibrate_work import with_store

    found = with_store(lambda store: store.versions())
    if as_json:
        sys.stdout.write(json.dumps([{**one._asdict(), "created_at": str(one.created_at)} for one in found]) + "\n")
        return
    table = Table("calibration", "aliases", "model", "method", "verdicts", "stored (UTC)", header_style="bold")
    for one in found:
        combined = "kind" in one.content
        table.add_row(
            f"{one.name}@{one.version}",
            ", ".join(one.aliases),
            ", ".join(one.content["models"]) if combined else one.content["model"],
            one.content["kind" if combined else "method"],
            f"{(one.content if combined else one.content['calibration'])['items']:,}",
            f"{one.created_at:%Y-%m-%d %H:%M}",
        )
    out.print(table if found else "No calibration is stored yet; `adjudge calibrate` fits one.")


def show(reference: Annotated[str, typer.Argument(help="NAME, NAME@VERSION or NAME@ALIAS.")]) -> None:
    """Print a calibration as JSON: its judge, its maps, its data's digest and what was measured."""
    from adjudge_services.cli.judges.calibrate_work import with_store

    found = with_store(lambda store: store.find(reference))
    if found is None:
        exit_with_error(f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored")
    sys.stdout.write(json.dumps({"name": found.name, "version": found.version, **found.content}, indent=2) + "\n")


def alias(
    name: Annotated[str, typer.Argument(help="The calibration's name.")],
    alias_name: Annotated[str, typer.Argument(help="The alias, such as live.", metavar="ALIAS")],
    version: Annotated[int, typer.Argument(help="The version to point it at.", min=1)],
) -> None:
    """Point an alias at a version. Running services follow within ten seconds."""
    from adjudge_services.cli.judges.calibrate_work import with_store

    before = with_store(lambda store: store.move_alias(name, alias_name, version))
    err.print(f"{name}@{alias_name}: {before or '(new)'} → {version}", highlight=False)


MemberArgument = Annotated[str, typer.Argument(help="An engine URL, or the name of a judge of the service at --url.")]
NameOption = Annotated[str | None, typer.Option(help="Store what was fitted under this name.")]


def cascade(
    small: MemberArgument,
    large: MemberArgument,
    dataset: DatasetArgument,
    *,
    rows: Rows,
    error: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Wanted rate of verdicts that differ from the large judge's.")
    ] = 0.05,
    name: NameOption = None,
    protocol: ProtocolOption = "binary",
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, only=("rationale", "template"))],
    report: Report,
    asking: Asking,
) -> None:
    """Fit the band in which a cascade asks its large judge, and show its agreement against its cost.

    The band is fitted on one half of the data set for a wanted rate of changed verdicts, and measured on the other.
    With --name it is stored as a new version, which a cascade's "band" names in the settings.
    """
    from adjudge_services.cli.judge_choice import MEMBERS_OF_CASCADE
    from adjudge_services.cli.judges.calibrate_work import (
        first_problem,
        judge_member,
        judges_of,
        judging_config,
        measured_figure,
        points_json,
        read_responses,
        show_curve,
        store_fitted,
    )
    from adjudge_services.cli.judges.evaluate_work import judging_options
    from adjudge_services.store import StartError
    from judge_server.evaluation.html import cascade_html
    from judge_server.evaluation.labelled import DatasetError, half_of
    from judge_server.fitting.calibrations import MissingExtraError
    from judge_server.fitting.cascades import (
        TooFewVerdictsError,
        cascade_curve,
        digest_of_verdicts,
        fit_band,
        mean_cost,
        pair_verdicts,
    )
    from trainer_client import AdjudgeError

    asked = judging_options({"protocol": protocol, **options})
    band, why = None, ""
    try:
        labelled_by, responses = read_responses(dataset, rows, fitting=name is not None)
        of_small, of_large = (
            judge_member(judge, member, responses, asked, asking)
            for judge, member in zip((small, large), MEMBERS_OF_CASCADE, strict=True)
        )
        pairs = pair_verdicts(of_small, of_large)
        fit, held = ([one for one in pairs if half_of(one.small.row) == half] for half in ("fit", "held"))
        if not held:
            raise ValueError(f"no verdict of both judges is left to measure on; {first_problem([of_small, of_large])}")
        try:
            band = fit_band(fit, error)
        except TooFewVerdictsError as too_few:
            why = str(too_few)
        *curve, last = cascade_curve(held, mean_cost(of_small), mean_cost(of_large), [band] if band else [])
        points = curve if band else [*curve, last]
        chosen = last if band else None
    except (DatasetError, MissingExtraError, StartError, AdjudgeError, ValueError, OSError) as problem:
        exit_with_error(str(problem))
    heading = {
        "data set": file_name(Path(dataset)),
        "small judge": small,
        "large judge": large,
        "labels by": labelled_by,
        "fitted on": f"{len(fit):,} verdicts, for at most {error:.1%} changed verdicts",
        "measured on": f"{len(held):,} verdicts of {len({one.small.row for one in held}):,} other rows",
    }
    if report.html is not None:
        report.html.write_text(cascade_html(points, chosen, heading), encoding="utf-8")
        err.print(f"wrote {report.html}", highlight=False)
    if report.as_json:
        sys.stdout.write(
            json.dumps(heading | {"points": points_json(points), "fitted": points_json([chosen] if chosen else [])})
        )
        sys.stdout.write("\n")
    else:
        show_curve(points, chosen, heading)
    if band is None or chosen is None:
        exit_with_error(f"no band was fitted: {why}")
    if name is None:
        return
    measured = {
        figure: measured_figure(getattr(chosen, figure), len(held))
        for figure in ("escalated", "agreement", "balanced_accuracy", "accuracy")
    }
    store_fitted(
        name,
        {
            "kind": "band",
            **judges_of([of_small, of_large]),
            "config": judging_config(asked, protocol),
            "low": band.low,
            "high": band.high,
            "error": error,
            "fitted_on": digest_of_verdicts([[one.small for one in fit], [one.large for one in fit]]),
            "items": len(fit),
            "measured": measured,
        },
        'a cascade\'s "band"',
    )


def panel(
    dataset: DatasetArgument,
    *,
    judge: Annotated[
        list[str], typer.Option(help="Repeat: an engine URL, or the name of a judge of the service at --url.")
    ],
    rows: Rows,
    name: NameOption = None,
    without_labels: Annotated[
        bool, typer.Option("--without-labels", help="Fit on the verdicts alone; labels only measure.")
    ] = False,
    protocol: ProtocolOption = "binary",
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, only=("rationale", "template"))],
    as_json: JsonOption = False,
    asking: Asking,
) -> None:
    """Fit the error rates of a panel's judges by Dawid and Skene's model, and compare ways of combining them.

    The rates are fitted on one half of the data set, and measured on the other beside equal weights and each judge
    alone. With --name they are stored as a new version, which a panel's "dawid_skene" names in the settings.
    """
    from adjudge_services.cli.judges.calibrate_work import (
        first_problem,
        judge_member,
        judges_of,
        judging_config,
        measured_figure,
        panel_arrays,
        read_responses,
        show_panel,
        store_fitted,
    )
    from adjudge_services.cli.judges.evaluate_work import judging_options
    from adjudge_services.store import StartError
    from judge_server.evaluation.labelled import DatasetError, half_of
    from judge_server.fitting.cascades import digest_of_verdicts, fit_dawid_skene, measure_panel, panel_items
    from trainer_client import AdjudgeError

    asked = judging_options({"protocol": protocol, **options})
    try:
        if len(judge) < 2:
            raise ValueError("a panel has at least two judges; repeat --judge")
        labelled_by, responses = read_responses(dataset, rows, fitting=name is not None)
        answered = [judge_member(one, f"judge-{n}", responses, asked, asking) for n, one in enumerate(judge, 1)]
        items = panel_items(answered)
        fit, held = ([one for one in items if half_of(one.row) == half] for half in ("fit", "held"))
        if not held:
            raise ValueError(f"no verdict of all judges is left to measure on; {first_problem(answered)}")
        fitted = fit_dawid_skene(*panel_arrays(fit, with_labels=not without_labels))
        figures = measure_panel(held, judge, fitted.model)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as problem:
        exit_with_error(str(problem))
    rates = list(zip(judge, fitted.model.sensitivity, fitted.model.specificity, strict=True))
    shown = {one: {"sensitivity": se, "specificity": sp} for one, se, sp in rates}
    if as_json:
        from judge_server.evaluation.metrics import as_json as figures_as_json

        measured = {one: figures_as_json(of) for one, of in figures.items()}
        sys.stdout.write(json.dumps({"prevalence": fitted.model.prevalence, "judges": shown, "measured": measured}))
        sys.stdout.write("\n")
    else:
        show_panel(file_name(Path(dataset)), labelled_by, len(fit), len(held), shown, figures)
    if name is None:
        return
    store_fitted(
        name,
        {
            "kind": "dawid-skene",
            **judges_of(answered),
            "config": judging_config(asked, protocol),
            **asdict(fitted.model),
            "labels": 0 if without_labels else len(fit),
            "fitted_on": digest_of_verdicts([[one.verdicts[place] for one in fit] for place in range(len(judge))]),
            "items": len(fit),
            "measured": {
                figure: measured_figure(one, len(held))
                for figure, one in figures["Dawid-Skene"].items()
                if one.value == one.value
            },
        },
        'a panel\'s "dawid_skene"',
    )
