"""Fit and store calibrations, bands and error rates for `adjudge calibrate`, `cascade` and `panel`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import TypeAdapter
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.judges.evaluate_work import judge_dataset, load_examples
from adjudge_services.cli.options import Asking, Rows
from adjudge_services.cli.output import exit_with_error, out, print_metrics
from adjudge_services.judges import references_by_judge
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, command_line_user, prepare_store
from rubric_store import CalibrationStore
from trainer_client.wire import UncertainBand

if TYPE_CHECKING:
    from judge_server.api.service import Service
    from judge_server.evaluation.judging import Judgement
    from judge_server.evaluation.labelled import LabelledResponse
    from judge_server.evaluation.metrics import CascadePoint, Estimate
    from judge_server.judging.questions import JudgingConfig


Result = TypeVar("Result")

BAND: TypeAdapter[UncertainBand] = TypeAdapter(UncertainBand)


async def calibrated_fingerprint(
    engine_url: str, name: str, content: Mapping[str, Any], config: "JudgingConfig"
) -> str:
    """Start an engine, apply a calibration to it that is not stored yet, and return the judge's fingerprint.

    Raises:
        StartError: the engine does not start.
        InvalidRequest: the calibration does not hold for the engine.
    """
    from adjudge_services.wiring import build_app
    from judge_server.judging.calibration import StoredCalibration
    from judge_server.scoring.judge import Judge

    settings = Settings.with_options(engine_url=engine_url, calibrations=None).model_copy(
        update={"engines": {}, "ledger": "off", "host": "127.0.0.1", "keys": "loopback"}
    )
    await prepare_store(settings)
    app = build_app(settings, wait_for_judge=True)
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
        return float(text)
    except ValueError:
        raise ValueError(f"--threshold is {text!r}; write a number between 0 and 1, or balanced") from None


def calibration_json(calibration: Any) -> dict[str, Any]:
    """A calibration as JSON."""
    content: dict[str, Any] = TypeAdapter(type(calibration)).dump_python(calibration, mode="json")
    if calibration.uncertain_band is None:
        del content["uncertain_band"]
    return content


def show_calibration(method: str, calibration: Any, figures: Any, held: int) -> None:
    """Print the figures before and after calibration."""
    from judge_server.evaluation.html import format_estimate

    moved = figures["difference"]["brier"]
    better = "Better calibrated" if moved.high < 0 else "Worse calibrated" if moved.low > 0 else "No better calibrated"
    out.print(
        f"[bold]{better} on {held:,} verdicts that it was not fitted on: Brier score {format_estimate(moved, 3)}.[/]",
        highlight=False,
    )
    own = f", with maps of their own for {len(calibration.by_kind)} kinds and {len(calibration.by_criterion)} criteria"
    out.print(f"{method}, fitted on {calibration.items:,} verdicts{own}; measured on {held:,} others", highlight=False)
    print_metrics(
        {
            column: {name.replace("_", " "): format_estimate(one) for name, one in figures[column].items()}
            for column in ("raw", "calibrated", "difference")
        }
    )


def with_store(use: Callable[[CalibrationStore], Awaitable[Result]]) -> Result:
    """Use the store of calibrations, bands and error rates; exit with the reason if that fails."""
    settings = Settings()

    async def run() -> Result:
        await prepare_store(settings)
        store = CalibrationStore(settings.store_url, actor=command_line_user)
        try:
            return await use(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (StartError, ConnectionError, LookupError, ValueError) as error:
        exit_with_error(str(error))


def panel_arrays(items: Sequence[Any], *, with_labels: bool) -> tuple[Any, Any]:
    """Return the verdicts and labels of items as `fit_dawid_skene` takes them."""
    import numpy as np

    votes = np.array([[int(one.score >= 0.5) for one in item.verdicts] for item in items], dtype=np.int8)
    return votes, np.array([int(item.met) for item in items], dtype=np.int8) if with_labels else None


def read_responses(dataset: str, rows: Rows, *, fitting: bool) -> "tuple[str, list[LabelledResponse]]":
    """Read the labelled responses of a data set; return who labelled them, too."""
    from judge_server.evaluation.labelled import DatasetError, LabelledResponse

    labelled_by, examples = load_examples(dataset, rows, fitting=fitting)
    responses = [one for one in examples if isinstance(one, LabelledResponse)]
    if not responses:
        raise DatasetError(f"{dataset} has pairs only; verdicts on criteria are needed")
    return labelled_by, responses


def judge_member(
    judge: str,
    member: str,
    responses: "Sequence[LabelledResponse]",
    options: Mapping[str, Any],
    asking: Asking,
) -> "list[Judgement]":
    """Judge with one member; an engine gets the calibrations that ADJUDGE_CALIBRATIONS has under the member's name."""
    calibration = None
    if "://" in judge:
        calibration = " ".join(references_by_judge(Settings().calibrations).get(member, []))
    return judge_dataset(
        judge,
        responses,
        options,
        asking,
        calibration=calibration,
    )


def first_problem(answered: "Sequence[Sequence[Judgement]]") -> str:
    """Why the first example was not judged."""
    problems = [one.problem for judged in answered for one in judged if one.problem]
    return problems[0] if problems else "label more rows, and see `adjudge evaluate` for each judge"


def judges_of(answered: "Sequence[Sequence[Judgement]]") -> dict[str, list[str]]:
    """Fingerprints and models of the judges."""
    known = [next(one for one in judged if one.fingerprint) for judged in answered]
    return {"judges": [one.fingerprint for one in known], "models": [one.model for one in known]}


def judging_config(options: Mapping[str, Any], protocol: Literal["binary", "stepwise"]) -> dict[str, Any]:
    """How the judge was asked, as it is recorded."""
    from judge_server.judging.questions import JudgingConfig
    from trainer_client.wire import JudgingOptions

    return JudgingConfig.of(JudgingOptions.model_validate(options), protocol).recorded()


def store_fitted(name: str, content: Mapping[str, Any], where: str) -> None:
    """Store what was fitted, and say how to use it."""
    version, added = with_store(lambda store: store.add(name, content))
    out.print(
        f"{'stored' if added else 'unchanged:'} {name}@{version.version}; to use it, write it as {where} in the "
        "settings, or an alias (`adjudge calibrations alias`)",
        highlight=False,
    )


def measured_figure(one: "Estimate", n: int) -> dict[str, float | None]:
    """A figure as it is stored."""
    from judge_server.evaluation.metrics import none_if_nan

    return {**{key: none_if_nan(value) for key, value in one._asdict().items()}, "n": n}


def points_json(points: "Sequence[CascadePoint]") -> list[dict[str, Any]]:
    """Points of a cascade's curve as JSON."""
    from judge_server.evaluation.metrics import as_json, none_if_nan

    figures = ("escalated", "agreement", "balanced_accuracy", "accuracy")
    costs = ("seconds", "tokens_computed", "calls")
    return [
        {
            "band": [one.band.low, one.band.high],
            **as_json({name: getattr(one, name) for name in figures}),
            **{name: none_if_nan(getattr(one, name)) for name in costs},
        }
        for one in points
    ]


def show_curve(points: "Sequence[CascadePoint]", chosen: "CascadePoint | None", heading: Mapping[str, Any]) -> None:
    """Print the curve of a cascade."""
    from judge_server.evaluation.html import format_estimate

    if chosen is not None:
        band = f"{chosen.band.low:.3f} to {chosen.band.high:.3f}"
        out.print(
            f"[bold]The band {band} asks the large judge about {chosen.escalated.value:.0%} of the verdicts, and "
            f"agrees with it on {chosen.agreement.value:.0%}, for {chosen.calls:.2f} calls a judgement.[/]",
            highlight=False,
        )
    for key, text in heading.items():
        out.print(f"{key}: {escape(str(text))}", highlight=False)
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
    from judge_server.evaluation.html import HEADINGS, format_estimate

    best = max(figures, key=lambda name: figures[name]["balanced_accuracy"].value)
    accuracy = format_estimate(figures[best]["balanced_accuracy"])
    out.print(f"[bold]Best: {escape(best)}, balanced accuracy {accuracy}.[/]", highlight=False)
    out.print(f"[bold]{dataset}[/]: fitted on {fit:,} verdicts, measured on {held:,} others; labels by {labelled_by}")
    shown = ("balanced_accuracy", "auroc", "brier")
    errors = {name: {one: f"{of[one]:.2f}" for one in ("sensitivity", "specificity")} for name, of in rates.items()}
    print_metrics(
        {
            name: {HEADINGS[figure]: format_estimate(of[figure]) for figure in shown} | errors.get(name, {})
            for name, of in figures.items()
        }
    )
