"""The pages of operations: the list, one operation, and what evaluations and separations found."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any, NamedTuple, get_args

from starlette.responses import RedirectResponse, Response

from judge_server.api.console.charts import Plot, reliability
from judge_server.api.console.forms import Form
from judge_server.api.console.rendering import PageRouter, Row, Table, Visit, address, csv_response
from judge_server.errors import InvalidRequest, NotFound
from judge_server.evaluation.measuring.separation import CriterionSeparation
from judge_server.scoring.rubrics import find_rubric
from trainer_client.wire import DEFAULT_JUDGE, RewardMode, parse_reference
from trainer_client.wire.operations import Operation
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC

FIGURES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "kappa": "kappa",
    "auroc": "AUROC",
    "ece": "ECE",
    "brier": "Brier",
}
"""The figures that a page shows, and their headings."""


class EvaluationView(NamedTuple):
    """An evaluation that is done.

    Attributes:
        agreement: the figures of all verdicts, and of each part of them, as the report has them.
        plot: shares met by probability; None if the judge gave no probabilities.
        table: the numbers of the plot.
    """

    operation: Operation
    agreement: Sequence[Mapping[str, Any]]
    plot: Plot | None
    table: Table


def evaluation_of(operation: Operation) -> EvaluationView | None:
    """The evaluation of an operation; None if it is of another kind or has no report."""
    report: Any = (operation.summary or {}).get("report")
    if operation.kind != "evaluate_judge" or not isinstance(report, Mapping):
        return None
    bins = [one for one in report.get("reliability", ()) if one["n"]]
    raw = [one for one in report.get("raw_reliability", ()) if one["n"]]
    return EvaluationView(operation, report["agreement"], _plot(bins, raw), _table(bins))


def _plot(bins: Sequence[Mapping[str, Any]], raw: Sequence[Mapping[str, Any]]) -> Plot | None:
    if not bins:
        return None
    points = [
        (
            one["mean_probability"], one["share_met"], one["share_low"], one["share_high"],
            f"probability {one['mean_probability']:.2f}, met {one['share_met']:.2f}, {one['n']} verdicts",
        )
        for one in bins
    ]  # fmt: skip
    return reliability(points, [(one["mean_probability"], one["share_met"]) for one in raw])


def _table(bins: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        Row((
            f"{one['low']:.1f} to {one['high']:.1f}", one["n"], one["mean_probability"], one["share_met"],
            one["share_low"], one["share_high"],
        ))
        for one in bins
    ]  # fmt: skip
    return Table(("probability", "verdicts", "mean probability", "share met", "from", "to"), tuple(rows))


class SeparationView(NamedTuple):
    """A comparison that is done; `summary` has the figures of `measuring.separation.Separation`."""

    operation: Operation
    summary: Mapping[str, Any]
    criteria: tuple[CriterionSeparation, ...]

    @property
    def rubric(self) -> str:
        """The reference of the rubric; empty if prompts have their own, or it was sent with the request."""
        return reference_of(self.operation)

    @property
    def rubrics(self) -> str:
        """How many rubrics do how well; empty for a single one."""
        counts: Mapping[str, int] = self.summary["rubrics"]
        if sum(counts.values()) < 2:
            return ""
        return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())

    @property
    def table(self) -> Table:
        """The numbers."""
        headings = ("rubric", "criterion", "good", "bad", "difference", "verdicts", "failed", "from", "to", "text")
        rows = [Row((*astuple(one)[:7], *(one.interval or (None, None)), one.description)) for one in self.criteria]
        return Table(headings, tuple(rows))


def reference_of(operation: Operation) -> str:
    """The reference of the rubric that a request names; empty without one."""
    rubric = operation.request.get("rubric")
    return rubric if isinstance(rubric, str) else ""


def is_of_rubric(operation: Operation, name: str) -> bool:
    """Whether an operation measures a version of a rubric."""
    reference = reference_of(operation)
    return operation.kind == "discriminate_rubrics" and bool(reference) and parse_reference(reference).name == name


def separation_of(operation: Operation) -> SeparationView | None:
    """What an operation measured; None if it is of another kind or is not done."""
    summary = operation.summary
    if operation.kind != "discriminate_rubrics" or not summary:
        return None
    found: Any = summary["criteria"]
    return SeparationView(operation, summary, tuple([CriterionSeparation(**one) for one in found]))


router = PageRouter()

_LISTED = 100
_MAX_ID = 64


@router.get("/operations")
async def operations(visit: Visit) -> Response:
    """The latest operations of the project."""
    found = (await visit.service.running_operations().list(visit.project)).operations
    going_on = any(not one.ended for one in found)
    return visit.page(
        "operations.html.jinja", operations=found[:_LISTED], more=max(0, len(found) - _LISTED),
        going_on=going_on,
    )  # fmt: skip


@router.get("/operation")
async def operation(visit: Visit) -> Response:
    """One operation, with its figures if it evaluated a judge or a rubric."""
    found = await _read(visit)
    return visit.page(
        "operation.html.jinja", operation=found, evaluation=evaluation_of(found), figures=FIGURES,
        separation=separation_of(found),
    )  # fmt: skip


@router.get("/operation/reliability.csv")
async def reliability_csv(visit: Visit) -> Response:
    """The numbers of the plot of an evaluation."""
    evaluation = evaluation_of(await _read(visit))
    if evaluation is None:
        raise NotFound("This operation has no evaluation of a judge.")
    return csv_response(evaluation.table, "reliability.csv")


@router.get("/operation/separation.csv")
async def separation_csv(visit: Visit) -> Response:
    """How well each criterion tells good responses from bad ones."""
    found = separation_of(await _read(visit))
    if found is None:
        raise NotFound("This operation did not compare good and bad responses.")
    return csv_response(found.table, "separation.csv")


@router.post("/operation", scope="score")
async def change(visit: Visit, form: Form) -> Response:
    """Cancel an operation, or continue one that failed or was cancelled."""
    service, project, id_ = visit.service.running_operations(), visit.project, form.text("id")[:_MAX_ID]
    actions = {"cancel": service.cancel, "retry": service.retry}
    if form.text("do") not in actions:
        raise InvalidRequest("do: write cancel or retry")
    await actions[form.text("do")](project, id_)
    return RedirectResponse(address("operation", id=id_), 303)


async def _read(visit: Visit) -> Operation:
    id_ = visit.text("id")[:_MAX_ID]
    return await visit.service.running_operations().get(visit.project, id_)


# -- how well a rubric separates good responses from bad ones

_EARLIER = 10
_MODES = tuple(mode for mode in get_args(RewardMode) if mode not in NEEDS_NO_RUBRIC)


@router.get("/rubric/discriminate", scope="score")
async def discriminate(visit: Visit) -> Response:
    """The form, and what was measured of this rubric before."""
    return await _form_page(visit, visit.text("reference"))


@router.post("/rubric/discriminate", scope="score", with_file=True)
async def start(visit: Visit, form: Form) -> Response:
    """Start the measurement and go to its page; the form again if the responses cannot be used."""
    project, reference = visit.project, form.text("reference")
    version = await find_rubric(visit.service.rubrics, project, reference)
    file = form.file("file")
    text = form.text("pairs") if file is None else file.content.decode("utf-8-sig", "replace")
    mode, judge = form.text("mode") or _MODES[0], form.text("judge") or DEFAULT_JUDGE
    filled = {"pairs": form.text("pairs"), "mode": mode, "judge": judge}
    if not text.strip():
        return await _form_page(visit, reference, filled, "Paste responses, or choose a file of them.")
    asked: dict[str, Any] = {
        "groups": text, "rubric": version.reference, "reward": {"mode": mode}, "judge": judge,
        "run": f"discriminate {version.reference}"[:256], "allow_retired": True,
    }  # fmt: skip
    try:
        made = await visit.service.running_operations().submit(project, "discriminate_rubrics", asked)
    except ValueError as error:
        return await _form_page(visit, reference, filled, str(error))
    return RedirectResponse(address("operation", id=made.id), 303)


async def _form_page(visit: Visit, reference: str, filled: dict[str, str] | None = None, problem: str = "") -> Response:
    project = visit.project
    version = await find_rubric(visit.service.rubrics, project, reference)
    own = [
        one
        for one in (await visit.service.running_operations().list(project)).operations
        if is_of_rubric(one, version.name)
    ]
    return visit.page(
        "discriminate.html.jinja", 422 if problem else 200, version=version, problem=problem, modes=_MODES,
        filled=filled or {"pairs": "", "mode": _MODES[0], "judge": DEFAULT_JUDGE}, judges=visit.service.names,
        earlier=[(one, separation_of(one)) for one in own[:_EARLIER]],
    )  # fmt: skip
