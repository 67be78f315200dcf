"""Routes of the ledger: runs, responses, verdicts, measures and labels."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Path as PathParameter
from fastapi import Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, StringConstraints
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope

from judge_server.api.auth import identity_of, project_of
from judge_server.api.http.problems import event_line, lines_response, problem_responses
from judge_server.api.http.requests import After, Limit, api_router, reject_unknown_cursor
from judge_server.api.http.responses import NDJSON, run_while_connected
from judge_server.api.service import Service, service_of
from judge_server.errors import NotFound, invalid_field, unknown_run
from judge_server.evaluation.export import ExportQuery, Row, export
from judge_server.evaluation.labelling import labelled_groups
from judge_server.ledger.monitoring.monitors import monitor_run
from judge_server.ports import LedgerReader
from judge_server.ports.stores import LedgerState
from judge_server.scoring.recorded import decode_cursor, digest_bytes, recorded_page, storable_text
from judge_server.scoring.rubrics import digest_of_reference
from rubric_store.ledger.rows import JudgedRun, LabelFilter, RunRange, RunReportQuery, UseFilter, VerdictKey
from trainer_client.wire import VerdictStatus
from trainer_client.wire.ledger import (
    ExportEvent,
    ExportKind,
    ExportSummary,
    LabelReceipt,
    LabelRequest,
    PairsBy,
    RecordedPage,
    StepMeasures,
)
from trainer_client.wire.runs import MAX_AGAINST, CorrectedRates, MonitorReport, RunAudit, RunPage, RunReport

ledger_router = api_router("ledger", "read")


Step = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


async def rubric_digest(service: Service, project_id: str, reference: str | None) -> bytes | None:
    """The digest of the rubric that a filter names; None without one.

    Raises:
        UnknownRubric: the project has no such rubric.
        InvalidRequest: the reference is not one.
    """
    return (
        None if reference is None else digest_bytes(await digest_of_reference(service.rubrics, project_id, reference))
    )


class VerdictFilter(BaseModel):
    """Which verdicts to read."""

    run: str = Field(description="The run; empty for requests without a run.", max_length=256)
    step: Step = None
    rubric: str | None = Field(default=None, description="`name`, `name@3`, `name@alias` or `sha256:…`")
    criterion: str | None = Field(default=None, description="A criterion's id.", max_length=128)
    status: VerdictStatus | None = Field(default=None, description="The status of the verdict.")
    texts: bool = Field(default=False, description="Include prompts, responses and groundings, if they are kept.")
    after: After = None
    limit: Limit = 100


@ledger_router.get(
    "/verdicts",
    summary="Read the verdicts of a run from the ledger",
    responses=problem_responses(404, 422, 503),
)
async def recorded_verdicts(request: Request, wanted: Annotated[VerdictFilter, Query()]) -> RecordedPage:
    """Oldest first. Verdicts of the last second may be missing; `GET /v1/ledger` says how many are still unwritten."""
    service, project_id = service_of(request), project_of(request)
    ledger = service.readable_ledger()
    try:
        place = None if wanted.after is None else decode_cursor(wanted.after)
    except ValueError as error:
        raise invalid_field("after", str(error)) from None
    use_filter = UseFilter(
        project_id,
        storable_text(wanted.run),
        wanted.step,
        await rubric_digest(service, project_id, wanted.rubric),
        wanted.criterion,
        wanted.status,
        place,
        wanted.limit,
    )
    return await recorded_page(ledger, use_filter, texts=wanted.texts)


@ledger_router.get("/ledger", summary="Ledger status")
async def ledger_state(request: Request) -> LedgerState:
    """The status of recording in this process since it started. Rewards are served whatever the status is."""
    recorder = service_of(request).recorder
    return LedgerState(keeps="nothing") if recorder is None else recorder.state()


runs_router = api_router("ledger", "read", prefix="/v1/runs")


@runs_router.get("", summary="List the training runs of the ledger", responses=problem_responses(422, 503))
async def list_runs(request: Request, after: After = None, limit: Limit = 50) -> RunPage:
    """The most recently used run comes first.

    Verdicts of the last second may be missing; `GET /v1/ledger` says how many are still unwritten.
    """
    ledger = service_of(request).readable_ledger()
    return await reject_unknown_cursor(ledger.runs(project_of(request), after=after, limit=limit))


class RunConvertor(PathConvertor):
    """Matches any text in a path. Starlette's own convertor `path` matches no line breaks, which a name may have."""

    regex = "(?s:.*)"


register_url_convertor("run", RunConvertor())

RunPathName = Annotated[
    str,
    PathParameter(
        description=(
            "The run's name, empty for requests without a run. It may contain slashes; write them as %2F if the name "
            "ends in `/monitors`, `/corrected-rates`, `/audit` or `/export`."
        ),
        examples=["llama-srar-3"],
        max_length=256,
    ),
]


class SuffixRoute(APIRoute):
    """Matches only if the slash before its last segment was sent as one: in `a%2Fmonitors` it is part of the name."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match by the path as it was sent, before percent-decoding."""
        suffix = f"/{self.path.rpartition('/')[2]}".encode()
        if not scope.get("raw_path", suffix).endswith(suffix):
            return Match.NONE, {}
        return super().matches(scope)


run_parts_router = api_router("ledger", "read", prefix="/v1/runs", route_class=SuffixRoute)


@run_parts_router.get(
    "/{run:run}/monitors",
    summary="Apply the monitors to a run",
    responses=problem_responses(404, 422, 503),
)
async def read_monitors(
    request: Request,
    run: RunPathName,
    until_step: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="The last step to look at; by default the run's last one.")
    ] = None,
) -> MonitorReport:
    """What the monitors find in the last steps of a run, and in its history.

    See docs/how-to/stop-a-run-that-games-its-rubric.md.

    The most severe findings come first. Only steps are looked at, so requests without a step are left out.
    """
    service = service_of(request)
    found = await monitor_run(
        service.readable_ledger(),
        project_of(request),
        storable_text(run),
        service.monitor_thresholds,
        until_step=until_step,
    )
    if found is None:
        raise unknown_run(f"no step of run {run!r}, whose requests must name their step")
    return found


MAX_READ_VERDICTS = 500_000
"""The most verdicts of a run that one request reads, to correct its pass rates or to export it."""


async def read_judged_run(ledger: LedgerReader, part: RunRange, command: str) -> JudgedRun:
    """Return what is known of a part of a run before its verdicts are read; `command` is the one that has no limit.

    Raises:
        NotFound: the ledger has no such part.
        InvalidRequest: it has more verdicts than `MAX_READ_VERDICTS`.
    """
    judged = await ledger.judged_run(part)
    if not judged.requests:
        raise unknown_run(f"no record of run {part.run!r} in these steps")
    if judged.uses > MAX_READ_VERDICTS:
        message = (
            f"selects {judged.uses:,} verdicts, and at most {MAX_READ_VERDICTS:,} are read; select fewer steps, or use "
            f"`{command}` at the database"
        )
        raise invalid_field("last_step", message)
    return judged


@run_parts_router.get(
    "/{run:run}/corrected-rates",
    summary="Correct a run's pass rates for its judge's error",
    responses=problem_responses(404, 422, 503),
)
async def read_corrected_rates(
    request: Request, run: RunPathName, first_step: Step = None, last_step: Step = None
) -> CorrectedRates:
    """The pass rate of each criterion, as observed and as it would be without the judge's error, with an interval.

    The error is that of the stored calibration that the run was judged with, measured on labels. If there is none, or
    the judge is not clearly better than chance, `reason` says so and rates are as observed. Every verdict is read, so
    select steps of a long run.
    """
    from judge_server.evaluation.corrected_rates import correct_rates, observed_rates

    service = service_of(request)
    ledger = service.readable_ledger()
    part = RunRange(project_of(request), storable_text(run), first_step, last_step)
    judged = await read_judged_run(ledger, part, "adjudge runs show --corrected")
    sources = [] if service.judge_measurements is None else await service.judge_measurements()
    return correct_rates(run or None, judged.judges, await observed_rates(ledger, part), sources)


@run_parts_router.get(
    "/{run:run}/audit",
    summary="Audit a run: is its rubric being gamed?",
    responses=problem_responses(404, 422, 503),
)
async def read_audit(
    request: Request,
    run: RunPathName,
    against: Annotated[
        list[Annotated[str, StringConstraints(max_length=256)]] | None,
        Query(description="A run that judged the same responses otherwise; up to five.", max_length=MAX_AGAINST),
    ] = None,
) -> RunAudit:
    """What the run's judge credits more and more, and other judges, another rubric or people's labels do not.

    No judge is asked: `against` names runs that judged the same responses, by step, group id, prompt and text. At most
    about 25,000 verdicts are read of each part of each run. docs/reference/figures.md says how the figures
    are computed.
    """
    return await run_while_connected(request, audited(service_of(request), project_of(request), run, against or ()))


async def audited(service: Service, project_id: str, run: str, against: Sequence[str]) -> RunAudit:
    """Audit a run of the service's ledger; raises what `audit_run` raises."""
    from judge_server.evaluation.audit.report import audit_run

    ledger, labels = service.readable_ledger(), service.label_store()
    return await audit_run(ledger, labels, project_id, storable_text(run), [storable_text(one) for one in against])


class ExportOptions(BaseModel):
    """Which rows to make of a run, and of which responses."""

    kind: ExportKind = Field(default="pairs", alias="as", description="The rows to make.")
    first_step: Step = None
    last_step: Step = None
    rubric: str | None = Field(
        default=None,
        description="Only responses under this rubric: `name`, `name@3`, `name@alias` or `sha256:…`.",
    )
    criterion: str | None = Field(
        default=None, description="Only this criterion, for verdicts and pairs by criterion.", max_length=128
    )
    by: PairsBy = Field(default="total", description="What the responses of a pair differ in.")
    all_pairs: bool = Field(
        default=False, description="Every pair of a prompt, instead of its best and its worst response."
    )
    min_margin: float = Field(default=0.0, description="The smallest margin of a pair.", ge=0, allow_inf_nan=False)
    min_reward: float | None = Field(
        default=None, description="The smallest reward of a row for `sft` or `best`.", allow_inf_nan=False
    )
    conversational: bool = Field(
        default=False, description="Write messages, even where prompts and responses are texts."
    )


@run_parts_router.get(
    "/{run:run}/export",
    summary="Export a run as training data: preference pairs, SFT rows, best-of-n, verdicts",
    response_class=Response,
    responses={
        200: {
            "description": "Lines of JSON.",
            "content": {NDJSON: {"schema": {"$ref": "#/components/schemas/ExportEvent"}}},
        },
        **problem_responses(404, 422, 503),
    },
)
async def export_run(request: Request, run: RunPathName, options: Annotated[ExportOptions, Query()]) -> Response:
    """Rows in the dataset formats of TRL, as they are made: see docs/how-to/export-training-data.md. No judge is asked.

    Every line is a JSON object: each `row`, and at the end a `summary` of what was left out and why, or a `problem` if
    the export failed midway. At most 500,000 verdicts are read; select steps of a longer run. Responses without
    a reward are in no pair, and are never the best of their prompt.
    """
    service, project_id = service_of(request), project_of(request)
    query = ExportQuery(
        project_id,
        storable_text(run),
        options.kind,
        options.first_step,
        options.last_step,
        await rubric_digest(service, project_id, options.rubric),
        options.criterion and storable_text(options.criterion),
        options.by,
        options.all_pairs,
        options.min_margin,
        options.min_reward,
        options.conversational,
    )
    return await lines_response(request, exported(service, query), ExportEvent, _export_line)


async def exported(service: Service, query: ExportQuery) -> AsyncGenerator[Row | ExportSummary, None]:
    """Export a run of the service's ledger; raises what `export` and `read_judged_run` raise."""
    ledger, labels = service.readable_ledger(), service.label_store()
    query.check()
    selected = RunRange(query.project_id, query.run, query.first, query.last)
    await read_judged_run(ledger, selected, "adjudge export")
    async with aclosing(export(ledger, labels, query)) as stream:
        async for part in stream:
            yield part


async def _export_line(part: Row | ExportSummary) -> list[bytes]:
    if isinstance(part, dict):
        return [b'{"row":' + row_line(part) + b"}\n"]
    return [event_line(ExportEvent, summary=part)]


def row_line(row: Row) -> bytes:
    """Encode a row of an export as JSON."""
    return json.dumps(row, ensure_ascii=False).encode()


class ReportOptions(BaseModel):
    """Which steps and criteria of a run to report."""

    first_step: Step = None
    last_step: Step = None
    order: Literal["oldest", "newest"] = Field(default="oldest", description="Which step comes first.")
    rubric: str | None = Field(
        default=None, description="Only criteria of this rubric: `name`, `name@3`, `name@alias` or `sha256:…`."
    )
    criterion: list[str] | None = Field(
        default=None, description="Only these criteria, by id; may be given several times.", max_length=200
    )
    criteria: int = Field(
        default=50,
        description="The maximum number of criteria; those with the most verdicts come first.",
        ge=0,
        le=200,
    )
    after: After = None
    limit: int = Field(default=100, description="Steps per page.", ge=1, le=500)


@runs_router.get(
    "/{run:run}",
    summary="Read the figures of a run, by step and by criterion",
    responses=problem_responses(404, 422, 503),
)
async def read_run(request: Request, run: RunPathName, options: Annotated[ReportOptions, Query()]) -> RunReport:
    """The figures of the whole run, and a page of its steps, each with the pass rate and mean score of its criteria.

    `rubric`, `criterion` and `criteria` select the criteria to report; all other figures cover everything that was
    judged. The report is read from sums that are updated as the ledger is written, so a long run is read as fast as a
    short one.
    """
    service, project_id = service_of(request), project_of(request)
    ledger, first, last = service.readable_ledger(), options.first_step, options.last_step
    if first is not None and last is not None and first > last:
        raise invalid_field("last_step", f"is before first_step, which is {first}")
    query = RunReportQuery(
        project_id,
        storable_text(run),
        first,
        last,
        options.order == "newest",
        await rubric_digest(service, project_id, options.rubric),
        tuple(map(storable_text, options.criterion or ())),
        options.criteria,
        options.after,
        options.limit,
    )
    report = await reject_unknown_cursor(ledger.run(query))
    if report is None:
        raise unknown_run(f"no record of run {run!r}")
    return report


measures_router = api_router("ledger", "score")


@measures_router.put(
    "/measures",
    summary="Report what a trainer measured in a step",
    responses=problem_responses(413, 422, 503),
)
async def write_measures(
    request: Request,
    body: StepMeasures,
) -> StepMeasures:
    """The console draws them over the steps of the run. A later report of the same step and name replaces the earlier.

    `RubricGRPOTrainer` reports the metrics of its method: scaffolds, gates and refinements.
    """
    ledger = service_of(request).readable_ledger()
    await ledger.set_measures(project_of(request), storable_text(body.run), body.step, body.measures)
    return body


router = api_router("ledger", "read", "labels:write")

_LABELLED_GROUP = {
    "type": "object",
    "required": ["id", "prompt", "responses", "rubric", "labels"],
    "properties": {
        "id": {"type": "string", "description": "The request's id and the group's id."},
        "prompt": {"description": "A text, or messages."},
        "responses": {"type": "array", "items": {"type": "string"}},
        "rubric": {"type": "object", "description": "The labelled criteria."},
        "labels": {
            "type": "array",
            "description": "For each response, by criterion id, whether it is met.",
            "items": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "grounding": {"type": "string"},
    },
}


@router.get(
    "/labels",
    name="download_labels",
    summary="Download the labels of a run as a labelled data set",
    response_class=Response,
    responses={
        200: {"description": "Labelled groups, one a line.", "content": {NDJSON: {"schema": _LABELLED_GROUP}}},
        **problem_responses(422, 503),
    },
)
async def labels(
    request: Request,
    run: Annotated[str, Query(description="The run; empty for requests without a run.", max_length=256)],
    labeller: Annotated[
        str | None,
        Query(description="Only labels of this person.", examples=["key 2c7rnm4dqvyxkz5e"], max_length=200),
    ] = None,
) -> Response:
    """Each line is a labelled group, as `adjudge evaluate` and `adjudge calibrate` read it.

    Where several people labelled a verdict, most decide, and it is left out if they are split. Labels of responses that
    are conversations, or whose texts the ledger does not keep, are left out too.
    """
    wanted = LabelFilter(project_of(request), storable_text(run), labeller=labeller)
    found = await labelled_groups(service_of(request).label_store(), wanted)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows)
    return Response(body.encode("utf-8", "replace"), media_type=NDJSON)


@router.put(
    "/labels",
    summary="Label verdicts of a run",
    responses=problem_responses(404, 413, 422, 503),
)
async def write_labels(
    request: Request,
    body: LabelRequest,
) -> LabelReceipt:
    """Say of verdicts whether the criterion is met. `GET /v1/verdicts` has the `id` of each.

    Labels belong to the key that gives them: a later label of the same verdict replaces its earlier one. They are
    stored all or none.
    """
    identity, store, run = identity_of(request), service_of(request).label_store(), storable_text(body.run)
    given: dict[VerdictKey, bool | None] = {}
    for place, label in enumerate(body.labels):
        try:
            given[VerdictKey(run, *decode_cursor(label.verdict))] = label.met
        except ValueError:
            message = "this is not the id of a verdict; take the id of GET /v1/verdicts unchanged"
            raise invalid_field(f"labels.{place}.verdict", message) from None
    try:
        removed = await store.set_labels(identity.project_id, given, identity.actor)
    except LookupError as error:
        raise NotFound(f"No label was stored: {error.args[0]}.", title="Unknown verdict") from None
    stored = sum(met is not None for met in given.values())
    return LabelReceipt(labeller=identity.actor, stored=stored, removed=removed)
