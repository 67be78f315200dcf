"""`adjudge calibrate` and `adjudge calibrations`: fit, store, list and select calibrations of a judge.

`adjudge cascade` and `adjudge panel` fit how the verdicts of several judges are combined, and measure the result.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    Asking,
    DataArgument,
    DatasetArgument,
    JsonOption,
    JudgeOption,
    ProtocolOption,
    Report,
    Rows,
    UsageError,
    usage_errors,
)
from adjudge_services.cli.output import err, exit_with_error, file_name, out, pluralize, print_json, print_metrics
from trainer_client.wire import VerdictRequest

if not OPTIONS_ONLY:
    import numpy as np
    from pydantic import TypeAdapter

    from adjudge_services.cli.judge_choice import MEMBERS_OF_CASCADE
    from adjudge_services.cli.judges.evaluate import (
        CHANCE,
        judge_and_dataset,
        judge_dataset,
        judging_options,
        load_examples,
        write_report,
    )
    from adjudge_services.judges import references_by_judge
    from adjudge_services.settings import Settings
    from adjudge_services.store import command_line_user, prepare_store, use_store
    from adjudge_services.wiring import build_app
    from judge_server.api.service import Service
    from judge_server.evaluation.fitting.calibrations import (
        CONFIDENCE,
        NotEnoughLabelsError,
        OutOfFold,
        band_for_error,
        before_and_after,
        calibrated_error,
        cross_validate,
        fit_calibration,
    )
    from judge_server.evaluation.fitting.cascades import (
        CascadePoint,
        cascade_curve,
        digest_of_verdicts,
        fit_band,
        fit_dawid_skene,
        mean_cost,
        measure_panel,
        pair_verdicts,
    )
    from judge_server.evaluation.html import HEADINGS, cascade_html, format_estimate
    from judge_server.evaluation.judging import Judgement
    from judge_server.evaluation.labelled import DatasetError, LabelledResponse, half_of
    from judge_server.evaluation.metrics import Estimate, none_if_nan
    from judge_server.evaluation.metrics import as_json as figures_as_json
    from judge_server.evaluation.report import common_verdicts, measured_verdicts
    from judge_server.judging.calibration import Calibration, StoredCalibration
    from judge_server.judging.questions import JudgingConfig
    from judge_server.scoring.judge import Judge
    from rubric_store import CalibrationStore
    from trainer_client.wire import JudgingOptions, UncertainBand
    from trainer_client.wire.names import require_name

Result = TypeVar("Result")


FEWEST_ROWS = 6
"""With fewer rows, an interval tells too little to refuse a calibration."""


def calibrate(
    data: DataArgument,
    *,
    name: Annotated[str, typer.Option(help="Name under which to store the calibration.")],
    judge: JudgeOption = None,
    rows: Rows,
    method: Annotated[
        Literal["auto", "platt", "beta", "isotonic"],
        typer.Option(help="auto: Platt scaling with shrinkage from 8 labels on, beta from 1,000."),
    ] = "auto",
    threshold: Annotated[
        str, typer.Option(help="Lowest calibrated probability of a yes, or balanced: fitted for balanced accuracy.")
    ] = "0.5",
    uncertain_band: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Calibrated probabilities between which verdicts are uncertain."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(min=0.01, max=0.5, help="Leave verdicts uncertain until at most this share of the rest is wrong."),
    ] = None,
    protocol: ProtocolOption = "binary",
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, only=("rationale", "template"))],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fit and measure, but store nothing.")] = False,
    asking: Asking,
) -> None:
    """Fit a calibration on labels, and store it as a new version. Eight labels are enough to begin.

    It is measured on every row by maps that were fitted without that row. A service applies it once
    ADJUDGE_CALIBRATIONS names it. A calibration that makes the Brier score worse is not stored.
    """
    with usage_errors():
        require_name(name, "a calibration")
    if error is not None and (uncertain_band is not None or threshold == "balanced"):
        raise UsageError("--error chooses the band around a fixed --threshold; leave out --uncertain-band and balanced")
    asked = judging_options({"protocol": protocol, **options})
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
    yes_from = read_threshold(threshold)
    chosen, calibration = fit_calibration(measured, descriptions, name=name, method=method, threshold=yes_from)
    verdicts = cross_validate(measured, descriptions, method=chosen, threshold=yes_from)
    if uncertain_band is not None:
        band: TypeAdapter[UncertainBand] = TypeAdapter(UncertainBand)
        calibration = replace(calibration, uncertain_band=band.validate_python(uncertain_band))
    if error is not None:
        assert yes_from != "balanced"
        calibration = replace(calibration, uncertain_band=band_for_error(verdicts, error, yes_from))
    verdicts = verdicts.with_band(calibration.uncertain_band)
    figures = before_and_after(verdicts)
    show_calibration(chosen, calibration, verdicts, figures, error)
    if len(set(verdicts.rows)) < FEWEST_ROWS:
        out.print(f"Fewer than {FEWEST_ROWS} rows: whether it does harm is not known.", style="yellow")
    elif figures["difference"]["brier"].low > 0:
        exit_with_error("the calibration makes the Brier score worse on rows that it was not fitted on; not stored")
    if dry_run:
        return
    config = JudgingConfig.of(JudgingOptions.model_validate(asked), protocol)
    measured_on: dict[str, dict[str, float | None]] = {
        figure: measured_figure(estimate, len(verdicts.rows)) for figure, estimate in figures["calibrated"].items()
    }
    judge_error = calibrated_error(verdicts)
    for rate, counted in judge_error or ():
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
        content["fingerprint"] = asyncio.run(calibrated_fingerprint(judge, name, content, config))
    version, added = with_store(lambda store: store.add(name, content))
    out.print(
        f"{'stored' if added else 'unchanged:'} {name}@{version.version}; to apply it: "
        f"ADJUDGE_CALIBRATIONS={name}@{version.version}, or an alias (`adjudge calibrations alias`)"
    )


def calibrations(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the stored calibrations of judges, bands of cascades and error rates of panels, with their aliases."""
    found = with_store(lambda store: store.versions())
    if as_json:
        print_json([{**one._asdict(), "created_at": str(one.created_at)} for one in found])
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
    found = with_store(lambda store: store.find(reference))
    if found is None:
        exit_with_error(f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored")
    print_json({"name": found.name, "version": found.version, **found.content})


def alias(
    name: Annotated[str, typer.Argument(help="The calibration's name.")],
    alias_name: Annotated[str, typer.Argument(help="The alias, such as live.", metavar="ALIAS")],
    version: Annotated[int, typer.Argument(help="The version to point it at.", min=1)],
) -> None:
    """Point an alias at a version. Running services follow within ten seconds."""
    before = with_store(lambda store: store.move_alias(name, alias_name, version))
    err.print(f"{name}@{alias_name}: {before or '(new)'} → {version}", markup=False)


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
    if name is not None:
        with usage_errors():
            require_name(name, "a calibration")
    asked = judging_options({"protocol": protocol, **options})
    band, why = None, ""
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
    except NotEnoughLabelsError as too_few:
        why = str(too_few)
    *curve, last = cascade_curve(held, mean_cost(of_small), mean_cost(of_large), [band] if band else [])
    points = curve if band else [*curve, last]
    chosen = last if band else None
    heading = {
        "data set": file_name(Path(dataset)),
        "small judge": small,
        "large judge": large,
        "labels by": labelled_by,
        "fitted on": f"{len(fit):,} verdicts, for at most {error:.1%} changed verdicts",
        "measured on": f"{len(held):,} verdicts of {len({one.small.row for one in held}):,} other rows",
    }
    write_report(
        heading,
        {"points": points_json(points), "fitted": points_json([chosen] if chosen else [])},
        report,
        show=lambda: show_curve(points, chosen, heading),
        page=lambda: cascade_html(points, chosen, heading),
        indent=None,  # what was stored is said in another line
    )
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
            "config": JudgingConfig.of(JudgingOptions.model_validate(asked), protocol).recorded(),
            "low": band.low,
            "high": band.high,
            "error": error,
            "fitted_on": digest_of_verdicts(fit),
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
    if name is not None:
        with usage_errors():
            require_name(name, "a calibration")
    asked = judging_options({"protocol": protocol, **options})
    if len(judge) < 2:
        raise UsageError("a panel has at least two judges; repeat --judge")
    labelled_by, responses = read_responses(dataset, rows, fitting=name is not None)
    answered = [judge_member(one, f"judge-{n}", responses, asked, asking) for n, one in enumerate(judge, 1)]
    items = common_verdicts(answered)
    fit, held = ([one for one in items if half_of(one[0].row) == half] for half in ("fit", "held"))
    if not held:
        raise ValueError(f"no verdict of all judges is left to measure on; {first_problem(answered)}")
    votes = np.array([[int(one.met) for one in item] for item in fit], dtype=np.int8)
    labels = None if without_labels else np.array([item[0].is_labelled_met for item in fit], dtype=np.int8)
    fitted = fit_dawid_skene(votes, labels)
    figures = measure_panel(held, judge, fitted.model)
    rates = list(zip(judge, fitted.model.sensitivity, fitted.model.specificity, strict=True))
    shown = {one: {"sensitivity": se, "specificity": sp} for one, se, sp in rates}
    if as_json:
        measured = {one: figures_as_json(of) for one, of in figures.items()}
        print_json({"prevalence": fitted.model.prevalence, "judges": shown, "measured": measured}, indent=None)
    else:
        show_panel(file_name(Path(dataset)), labelled_by, len(fit), len(held), shown, figures)
    if name is None:
        return
    store_fitted(
        name,
        {
            "kind": "dawid-skene",
            **judges_of(answered),
            "config": JudgingConfig.of(JudgingOptions.model_validate(asked), protocol).recorded(),
            **asdict(fitted.model),
            "labels": 0 if without_labels else len(fit),
            "fitted_on": digest_of_verdicts(fit),
            "items": len(fit),
            "measured": {
                figure: measured_figure(one, len(held))
                for figure, one in figures["Dawid-Skene"].items()
                if one.value == one.value
            },
        },
        'a panel\'s "dawid_skene"',
    )


async def calibrated_fingerprint(engine_url: str, name: str, content: Mapping[str, Any], config: JudgingConfig) -> str:
    """Start an engine, apply a calibration to it that is not stored yet, and return the judge's fingerprint.

    Raises:
        StartError: the engine does not start.
        InvalidRequest: the calibration does not hold for the engine.
    """
    settings = Settings.with_options(engine_url=engine_url, calibrations=None).model_copy(
        update={"engines": {}, "ledger": "off", "host": "127.0.0.1", "keys": "loopback"}
    )
    await prepare_store(settings)
    app = build_app(settings, wait_for_judge=True, with_operations=False)
    async with app.router.lifespan_context(app):
        service: Service = app.state.service
        judge = service.ready_judge()
        assert isinstance(judge, Judge), "a cascade or panel has no calibration of its own"
        judge.stored_calibrations = [StoredCalibration.model_validate({**content, "name": name, "version": 1})]
        return judge.prepared(config).fingerprint


def read_threshold(text: str) -> float | Literal["balanced"]:
    """Read `--threshold`: a number, or `balanced`."""
    if text == "balanced":
        return "balanced"
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not 0 <= threshold <= 1:
        raise UsageError(f"--threshold is {text!r}; write a number between 0 and 1, or balanced")
    return threshold


def calibration_json(calibration: Any) -> dict[str, Any]:
    """A calibration as JSON."""
    content: dict[str, Any] = TypeAdapter(type(calibration)).dump_python(calibration, mode="json")
    if calibration.uncertain_band is None:
        del content["uncertain_band"]
    return content


def show_calibration(
    method: str,
    calibration: Calibration,
    verdicts: OutOfFold,
    figures: Mapping[str, Mapping[str, Estimate]],
    error: float | None,
) -> None:
    """Print the figures before and after calibration."""
    moved = figures["difference"]["brier"]
    better = "Better calibrated" if moved.high < 0 else "Worse calibrated" if moved.low > 0 else "No better calibrated"
    rows = len(set(verdicts.rows))
    out.print(
        f"[bold]{better}: Brier score {format_estimate(moved, 3)} on {calibration.items:,} verdicts of {rows:,} rows, "
        "each by maps that were fitted without its row.[/]"
    )
    order = figures["raw"]["auroc"]
    if not order.low > CHANCE:
        out.print(
            f"The labels do not show that the judge tells met from unmet: AUROC {format_estimate(order)}, where chance "
            "is 0.5. A better judge helps more than labels.",
            style="yellow",
        )
    if figures["difference"]["balanced_accuracy"].high < 0 and len(set(verdicts.rows)) >= FEWEST_ROWS:
        out.print("The threshold decides worse than before; --threshold balanced fits it, too.", style="yellow")
    criteria = pluralize(len(calibration.by_criterion), "criterion", "criteria")
    own = f"{pluralize(len(calibration.by_kind), 'kind')} and {criteria}"
    out.print(f"{method}, with maps of their own for {own}")
    if error is not None and calibration.uncertain_band is not None:
        low, high = calibration.uncertain_band
        out.print(
            f"Between {low:.2f} and {high:.2f} a verdict is uncertain. {verdicts.certain.mean():.0%} are decided, of "
            f"which at most {100 * error:g}% are wrong, with {CONFIDENCE:.0%} confidence."
        )
    print_metrics(
        {
            column: {HEADINGS.get(name, name): format_estimate(one) for name, one in figures[column].items()}
            for column in ("raw", "calibrated", "difference")
        }
    )


def with_store(use: Callable[[CalibrationStore], Coroutine[Any, Any, Result]]) -> Result:
    """Use the store of calibrations, bands and error rates, as the user of the command line."""
    return use_store(partial(CalibrationStore, actor=command_line_user), use)


def read_responses(dataset: str, rows: Rows, *, fitting: bool) -> tuple[str, list[LabelledResponse]]:
    """Read the labelled responses of a data set; return who labelled them, too."""
    labelled_by, examples = load_examples(dataset, rows, fitting=fitting)
    responses = [one for one in examples if isinstance(one, LabelledResponse)]
    if not responses:
        raise DatasetError(f"{dataset} has pairs only; verdicts on criteria are needed")
    return labelled_by, responses


def judge_member(
    judge: str,
    member: str,
    responses: Sequence[LabelledResponse],
    options: Mapping[str, Any],
    asking: Asking,
) -> list[Judgement]:
    """Judge with one member; an engine gets the calibrations that ADJUDGE_CALIBRATIONS has under the member's name."""
    calibration = None
    if "://" in judge:
        calibration = " ".join(references_by_judge(Settings().calibrations).get(member, []))
    return judge_dataset(judge, responses, options, asking, calibration=calibration)


def first_problem(answered: Sequence[Sequence[Judgement]]) -> str:
    """Why the first example was not judged."""
    problems = [one.problem for judged in answered for one in judged if one.problem]
    return problems[0] if problems else "label more rows, and see `adjudge evaluate` for each judge"


def judges_of(answered: Sequence[Sequence[Judgement]]) -> dict[str, list[str]]:
    """Fingerprints and models of the judges."""
    known = [next(one for one in judged if one.fingerprint) for judged in answered]
    return {"judges": [one.fingerprint for one in known], "models": [one.model for one in known]}


def store_fitted(name: str, content: Mapping[str, Any], where: str) -> None:
    """Store what was fitted, and say how to use it."""
    version, added = with_store(lambda store: store.add(name, content))
    out.print(
        f"{'stored' if added else 'unchanged:'} {name}@{version.version}; to use it, write it as {where} in the "
        "settings, or an alias (`adjudge calibrations alias`)"
    )


def measured_figure(one: Estimate, n: int) -> dict[str, float | None]:
    """A figure as it is stored."""
    return {**{key: none_if_nan(value) for key, value in one._asdict().items()}, "n": n}


def points_json(points: Sequence[CascadePoint]) -> list[dict[str, Any]]:
    """Points of a cascade's curve as JSON."""
    figures = ("escalated", "agreement", "balanced_accuracy", "accuracy")
    costs = ("seconds", "tokens_computed", "calls")
    return [
        {
            "band": [one.band.low, one.band.high],
            **figures_as_json({name: getattr(one, name) for name in figures}),
            **{name: none_if_nan(getattr(one, name)) for name in costs},
        }
        for one in points
    ]


def show_curve(points: Sequence[CascadePoint], chosen: CascadePoint | None, heading: Mapping[str, Any]) -> None:
    """Print the curve of a cascade."""
    if chosen is not None:
        band = f"{chosen.band.low:.3f} to {chosen.band.high:.3f}"
        out.print(
            f"[bold]The band {band} asks the large judge about {chosen.escalated.value:.0%} of the verdicts, and "
            f"agrees with it on {chosen.agreement.value:.0%}, for {chosen.calls:.2f} calls a judgement.[/]"
        )
    for key, text in heading.items():
        out.print(f"{key}: {escape(str(text))}")
    table = Table("band", header_style="bold")
    for column in ("escalated", "agreement", "balanced accuracy", "calls"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in [*points, *([chosen] if chosen is not None else [])]:
        table.add_row(
            f"{one.band.low:.3f}–{one.band.high:.3f}{' ●' if one is chosen else ''}",
            f"{one.escalated.value:.2f}",
            *[format_estimate(getattr(one, n)) for n in ("agreement", "balanced_accuracy")],
            f"{one.calls:.2f}",
        )
    out.print(table)
    out.print(
        "Agreement is with the large judge. --json has the intervals, seconds and tokens of each band."
        + (" ● is the fitted band." if chosen is not None else "")
    )


def show_panel(
    dataset: str, labelled_by: str, fit: int, held: int, rates: Mapping[str, Any], figures: Mapping[str, Any]
) -> None:
    """Print the figures of a panel."""
    best = max(figures, key=lambda name: figures[name]["balanced_accuracy"].value)
    accuracy = format_estimate(figures[best]["balanced_accuracy"])
    out.print(f"[bold]Best: {escape(best)}, balanced accuracy {accuracy}.[/]")
    halves = f"fitted on {fit:,} verdicts, measured on {held:,} others"
    out.print(f"[bold]{escape(dataset)}[/]: {halves}; labels by {escape(labelled_by)}")
    shown = ("balanced_accuracy", "auroc", "brier")
    errors = {name: {one: f"{of[one]:.2f}" for one in ("sensitivity", "specificity")} for name, of in rates.items()}
    print_metrics(
        {
            name: {HEADINGS[figure]: format_estimate(of[figure]) for figure in shown} | errors.get(name, {})
            for name, of in figures.items()
        }
    )
