"""`adjudge calibrate` and `adjudge calibrations`: fit, store, list and select calibrations of a judge."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import TypeAdapter
from rich.table import Table

from adjudge_services.cli.judges.evaluate import (
    judge_dataset,
    judging_options,
    load_examples,
)
from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, build_app, command_line_user, prepare_store
from judge_server.errors import ServiceError
from rubric_store import CalibrationStore
from trainer_client import AdjudgeError
from trainer_client.wire import UncertainBand

if TYPE_CHECKING:  # numpy and FastAPI, which take long to import
    from judge_server.api.service import Service
    from judge_server.judging.questions import JudgingConfig


Result = TypeVar("Result")

_BAND: TypeAdapter[UncertainBand] = TypeAdapter(UncertainBand)


def calibrate(
    judge: str,
    dataset: str,
    name: str,
    method: Literal["auto", "temperature", "platt", "beta", "isotonic"],
    threshold: str,
    uncertain_band: tuple[float, float] | None,
    limit: int | None,
    longest: int | None,
    protocol: Literal["binary", "stepwise"],
    rationale: bool,
    template: str | None,
    dry_run: bool,
    fresh: bool,
    url: str | None,
    concurrency: int,
    deadline_s: float,
) -> None:
    """Run `adjudge calibrate`."""
    from judge_server.evaluation.labelled import DatasetError, LabelledResponse, half_of
    from judge_server.evaluation.report import measured_verdicts
    from judge_server.fitting.calibrations import MissingExtraError, before_and_after, calibrated_error, fit_calibration
    from judge_server.judging.questions import JudgingConfig
    from trainer_client.wire import JudgingOptions

    options = judging_options(protocol=protocol, rationale=rationale or None, template=template)
    try:
        load_examples(dataset, "fit", None, None)  # refuses what must not be fitted on
        _, examples = load_examples(dataset, "all", limit, longest)
        responses = [one for one in examples if isinstance(one, LabelledResponse)]
        if not responses:
            raise DatasetError(f"{dataset} has pairs only; a calibration needs verdicts on criteria")
        judgements = judge_dataset(
            judge, responses, options, url=url, fresh=fresh, concurrency=concurrency, deadline_s=deadline_s
        )
        accepted = [one for one in judgements if one.uncalibrated]
        if not accepted and any(one.fingerprint for one in judgements):
            raise ValueError("a cascade or panel has no calibration of its own; calibrate the judges it is made of")
        if not accepted:
            raise ValueError(f"no example was judged: {judgements[0].problem}")
        measured = [verdict for one in accepted for verdict in measured_verdicts(one)]
        descriptions = {(one.row, c.id): c.description for one in responses for c in one.criteria}
        fit, held = ([one for one in measured if half_of(one.row) == half] for half in ("fit", "held"))
        chosen, calibration = fit_calibration(
            fit, descriptions, name=name, method=method, threshold=_threshold(threshold)
        )
        if uncertain_band is not None:
            calibration = replace(calibration, uncertain_band=_BAND.validate_python(uncertain_band))
        figures = before_and_after(held, descriptions, calibration)
    except (DatasetError, MissingExtraError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    _show(chosen, calibration, figures, len(held))
    if figures["difference"]["brier"].low > 0:
        exit_with_error("the calibration makes the Brier score worse on rows that it was not fitted on; not stored")
    if dry_run:
        return
    config = JudgingConfig.of(JudgingOptions.model_validate(options), protocol)
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
        "calibration": {**_as_json(calibration), "name": name},
        "measured": measured_on,
    }
    if "://" in judge:
        try:
            content["fingerprint"] = asyncio.run(_calibrated_fingerprint(judge, name, content, config))
        except (StartError, ServiceError, OSError) as problem:
            exit_with_error(str(problem))
    version, added = with_store(lambda store: store.add(name, content))
    out.print(
        f"{'stored' if added else 'unchanged:'} {name}@{version.version}; to apply it: "
        f"ADJUDGE_CALIBRATIONS={name}@{version.version}, or an alias (`adjudge calibrations alias`)",
        highlight=False,
    )


async def _calibrated_fingerprint(
    engine_url: str, name: str, content: Mapping[str, Any], config: "JudgingConfig"
) -> str:
    """Start an engine, apply a calibration to it that is not stored yet, and return the judge's fingerprint.

    Raises:
        StartError: the engine does not start.
        InvalidRequest: the calibration does not hold for the engine.
    """
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


def _threshold(text: str) -> float | Literal["balanced"]:
    if text == "balanced":
        return "balanced"
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--threshold is {text!r}; write a number between 0 and 1, or balanced") from None


def _as_json(calibration: Any) -> dict[str, Any]:
    content: dict[str, Any] = TypeAdapter(type(calibration)).dump_python(calibration, mode="json")
    if calibration.uncertain_band is None:
        del content["uncertain_band"]
    return content


def _show(method: str, calibration: Any, figures: Any, held: int) -> None:
    from judge_server.evaluation.html import format_estimate

    own = f", with maps of their own for {len(calibration.by_kind)} kinds and {len(calibration.by_criterion)} criteria"
    out.print(f"{method}, fitted on {calibration.items:,} verdicts{own}; measured on {held:,} others", highlight=False)
    table = Table("", "raw", "calibrated", "difference", header_style="bold")
    for name in figures["raw"]:
        digits = 3 if name == "brier" else 2
        cells = [format_estimate(figures[column][name], digits) for column in ("raw", "calibrated", "difference")]
        table.add_row(name.replace("_", " "), *cells)
    out.print(table)


def calibrations(as_json: bool) -> None:
    """Run `adjudge calibrations`."""
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


def show(reference: str) -> None:
    """Run `adjudge calibrations show`."""
    found = with_store(lambda store: store.find(reference))
    if found is None:
        exit_with_error(f"there is no calibration {reference}; `adjudge calibrations` lists those that are stored")
    sys.stdout.write(json.dumps({"name": found.name, "version": found.version, **found.content}, indent=2) + "\n")


def alias(name: str, alias_name: str, version: int) -> None:
    """Run `adjudge calibrations alias`."""
    before = with_store(lambda store: store.move_alias(name, alias_name, version))
    err.print(f"{name}@{alias_name}: {before or '(new)'} → {version}", highlight=False)


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
