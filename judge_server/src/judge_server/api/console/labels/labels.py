"""Labels: giving them to verdicts, the queue of what to label next, and what they say of the judge."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import identity_of, project_of
from judge_server.api.console.forms import Form
from judge_server.api.console.labels.labelling import LabelState, key_of, label_state, read_queue, read_run_labels
from judge_server.api.console.operations.operations import running
from judge_server.api.console.parameters import (
    choice_parameter,
    int_parameter,
    run_parameter,
    step_parameters,
    text_parameter,
)
from judge_server.api.console.rendering import Console
from judge_server.api.console.responses.shown import TEXT_LIMIT
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.sessions import local_page
from judge_server.api.console.tables import address
from judge_server.errors import InvalidRequest
from judge_server.evaluation.labelling import REASONS as REASON_NAMES
from judge_server.evaluation.labelling import judge_says, labelled_groups
from judge_server.ledger.rows import storable_text
from judge_server.monitoring.monitors import monitor_run
from trainer_client.wire import DEFAULT_JUDGE
from trainer_client.wire.ledger_rows import LabelFilter, RecentFilter, RunReportQuery, VerdictKey

router = PageRouter()

_MET = {"yes": True, "no": False, "": None}
_RUNS = 10
_CRITERIA = 200


@router.get("/labels")
async def labels(console: Console, request: Request) -> Response:
    """The labelled runs, or what the labels of one run say."""
    store, project = console.service.label_store(), project_of(request)
    if "run" in request.query_params:
        run = run_parameter(request)
        shown = await read_run_labels(store, project, storable_text(run))
        measurable = console.service.operations is not None
        return console.page(
            request,
            "run_labels.html.jinja",
            run=run,
            shown=shown,
            measurable=measurable,
            judges=console.service.names,
            names=await _names(console, project),
        )
    counts: dict[str, int] = {}
    people: dict[str, list[str]] = {}
    for one in await store.label_counts(project):
        counts[one.run] = counts.get(one.run, 0) + one.labels
        people.setdefault(one.run, []).append(one.labeller)
    recent = await console.service.readable_ledger().runs(project, limit=_RUNS)
    others = [one for one in recent.runs if (one.run or "") not in counts]
    return console.page(request, "labels.html.jinja", counts=counts, people=people, others=others)


@router.get("/labels.jsonl")
async def labels_file(console: Console, request: Request) -> Response:
    """The labels of a run as a labelled data set."""
    wanted = LabelFilter(project_of(request), storable_text(run_parameter(request)))
    found = await labelled_groups(console.service.label_store(), wanted)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows).encode("utf-8", "replace")
    headers = {"Content-Disposition": 'attachment; filename="labels.jsonl"'}
    return Response(body, 200, headers, "application/x-ndjson")


@router.get("/labels/queue", scope="labels:write")
async def queue(console: Console, request: Request) -> Response:
    """The next verdict to label."""
    store, project, run = console.service.label_store(), project_of(request), run_parameter(request)
    first, last = step_parameters(request)
    criterion = text_parameter(request, "criterion") or None
    why, at = choice_parameter(request, "why", REASON_NAMES), int_parameter(request, "at") or 0
    report = await console.service.readable_ledger().run(
        RunReportQuery(project, storable_text(run), criteria=_CRITERIA, limit=1)
    )
    if report is None:
        raise NotFound(f"This project's ledger has no record of run {run!r}. The page of labels lists runs to label.")
    labeller = identity_of(request).actor
    wanted = RecentFilter(project, storable_text(run), first, last, criterion and storable_text(criterion))
    thresholds = console.service.monitor_thresholds
    monitored = await monitor_run(
        console.service.readable_ledger(), project, storable_text(run), thresholds, until_step=last
    )
    findings = monitored.findings if monitored else ()
    shown = await read_queue(store, wanted, labeller, why, at, findings)  # type: ignore[arg-type]

    def here(at: int, **also: str) -> str:
        given = {"first": first, "last": last, "criterion": criterion, "why": why, "at": at or None}
        return address("labels/queue", run=run, **given, **also)

    undone = await _last_label(console, request, run)
    item = shown.item
    after = "" if item is None else here(at, done=_name(item.state.verdict))
    return console.page(
        request, "label_queue.html.jinja", run=run, report=report, queue=shown, item=item, at=at, after=after,
        next_href=here(at + 1) if at + 1 < shown.offered else "", previous_href=here(at - 1) if at else "",
        here_href=here(at), undone=undone, limit=TEXT_LIMIT, first=first, last=last, criterion=criterion, why=why,
    )  # fmt: skip


@router.post("/labels", scope="labels:write")
async def label(console: Console, request: Request, form: Form) -> Response:
    """Give, change or take back a label; the answer is its state if HTMX asks, and otherwise the page it came from."""
    verdict, met = _verdict(form), form.text("met")
    if met not in _MET:
        raise InvalidRequest("met: write yes or no, or nothing to take the label back")
    store, identity = console.service.label_store(), identity_of(request)
    try:
        await store.set_label(identity.project_id, verdict, identity.actor, _MET[met])
    except LookupError as error:
        raise NotFound(f"This label was not stored: {error.args[0]}.") from None
    page = local_page(form.text("next"))
    if "HX-Request" in request.headers and form.text("state") == "1":
        state = await _state(console, request, verdict)
        return console.page(request, "label.html.jinja", state=state, next=page)
    return RedirectResponse(page, 303)


@router.post("/labels/evaluate", scope="score")
async def evaluate(console: Console, request: Request, form: Form) -> Response:
    """Start an operation that measures a judge on the labels of a run, and go to its page."""
    run, judge = form.text("run"), form.text("judge") or DEFAULT_JUDGE
    wanted = LabelFilter(project_of(request), storable_text(run[:256]))
    found = await labelled_groups(console.service.label_store(), wanted)
    if not found.rows:
        raise InvalidRequest(
            "No label of this run can be used: people are split, the responses are conversations, or the ledger does "
            "not have their texts."
        )
    asked: dict[str, Any] = {"groups": found.rows, "judge": judge, "run": f"labels of {run}"[:256]}
    try:
        made = await running(console).submit(wanted.project_id, "evaluate_judge", asked)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return RedirectResponse(address("operation", id=made.id), 303)


async def _names(console: Console, project_id: str) -> dict[str, str]:
    """What people are called: the label of their key, with the key's id where several have the same."""
    if console.service.keys is None:
        return {}
    keys = [key for key in await console.service.keys.keys(project_id) if key.label]
    labels = [key.label for key in keys]
    return {
        f"key {key.id}": key.label if labels.count(key.label) == 1 else f"{key.label} (key {key.id})" for key in keys
    }


async def _state(console: Console, request: Request, verdict: VerdictKey) -> LabelState:
    """The state of the label of one verdict."""
    identity, store = identity_of(request), console.service.label_store()
    here = LabelFilter(identity.project_id, verdict.run, (verdict.request,))
    judged = {key_of(one.use): one for one in await store.labelled_uses(here)}
    if verdict in judged:
        found = judged[verdict]
        return label_state(verdict, found.labels, identity.actor, judge_says(found.use))
    return label_state(verdict, (), identity.actor, None)


async def _last_label(console: Console, request: Request, run: str) -> LabelState | None:
    """The label that was given just before, which can be taken back; None if there is none."""
    given = text_parameter(request, "done").split(".")
    try:
        key, place, slot = given
        verdict = VerdictKey(storable_text(run), bytes.fromhex(key), int(place), int(slot))
    except ValueError:
        return None
    if len(verdict.request) != 16:
        return None
    state = await _state(console, request, verdict)
    return None if state.mine is None else state


def _name(verdict: VerdictKey) -> str:
    return f"{verdict.request.hex()}.{verdict.place}.{verdict.slot}"


def _verdict(form: Form) -> VerdictKey:
    try:
        key, place, slot = bytes.fromhex(form.text("request")), int(form.text("place")), int(form.text("slot"))
    except ValueError:
        key, place, slot = b"", 0, 0
    run = form.text("run")
    if len(key) != 16 or not 0 <= place < 2**31 or not 0 <= slot < 2**31 or len(run) > 256:
        raise InvalidRequest("This form names no verdict. Open the page again and repeat.")
    return VerdictKey(storable_text(run), key, place, slot)
