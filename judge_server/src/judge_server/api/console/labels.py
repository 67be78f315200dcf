"""The labelling pages: the queue of verdicts worth a label, and the labels with the judge's agreement."""

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from judge_server.api.console.forms import Form
from judge_server.api.console.rendering import PageRouter, Visit, address
from judge_server.api.console.responses import TEXT_LIMIT, ShownResponse, read_criteria, response_address
from judge_server.api.console.runs import read_report
from judge_server.api.console.sessions import local_page
from judge_server.errors import InvalidRequest, NotFound
from judge_server.evaluation.labelled import FEWEST_LABELS_OF_A_PROBE, MET_FROM
from judge_server.evaluation.labelling import REASONS as REASON_NAMES
from judge_server.evaluation.labelling import (
    Agreement,
    CalibrationPreview,
    Candidate,
    Reason,
    agreements,
    consensus,
    criterion_name,
    judge_says,
    labelled_groups,
    labels_to_halve,
    maps_so_far,
    preview_calibration,
    rank,
)
from judge_server.intervals import wilson
from judge_server.ledger.monitoring.monitors import monitor_run
from judge_server.ports import LabelStore
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.recorded import decode_cursor, encode_cursor, recorded_verdict, storable_text
from rubric_store.ledger.rows import (
    LabelFilter,
    LabelledUse,
    LabelRow,
    RecentFilter,
    UseRecord,
    VerdictKey,
)
from trainer_client.wire import DEFAULT_JUDGE, Criterion, Verdict
from trainer_client.wire.runs import MonitorFinding

REASONS: Mapping[Reason, str] = {
    "close": "the probability is close to 0.5",
    "disagreement": "judges or votes disagree",
    "shadow": "a shadow criterion contradicts the reward",
    "monitor": "a monitor warns about this criterion",
}
_DIFFERENCES = 25


class LabelState(NamedTuple):
    """The label of a verdict by the person who reads the page, and how many other people say yes and no.

    `judge` is what the judge says; None if its verdict failed or is uncertain.
    """

    verdict: VerdictKey
    mine: bool | None
    yes: int
    no: int
    judge: bool | None

    @property
    def id(self) -> str:
        """The verdict's id, as `GET /v1/verdicts` has it."""
        return encode_cursor(self.verdict)


class GroupLabels:
    """The labels of the verdicts of some responses."""

    def __init__(self, labels: Sequence[LabelRow], labeller: str) -> None:
        self._labels: dict[VerdictKey, list[LabelRow]] = defaultdict(list)
        for label in labels:
            self._labels[label.verdict].append(label)
        self._labeller = labeller

    def of(self, response: ShownResponse, index: int) -> LabelState | None:
        """The state of a response's verdict by its index; None if it cannot be labelled, as no judge was asked."""
        verdict, row = response.verdicts[index], response.record.response
        if verdict.method != "judge" or verdict.status == "left_out":
            return None
        key = VerdictKey(row.run, row.request, row.place, response.slots[index])
        said = None if verdict.score is None else verdict.score >= MET_FROM
        return label_state(key, self._labels[key], self._labeller, said)


def label_state(verdict: VerdictKey, labels: Sequence[LabelRow], labeller: str, judge: bool | None) -> LabelState:
    """The state of a verdict's label."""
    mine = next((label.met for label in labels if label.labeller == labeller), None)
    others = [label.met for label in labels if label.labeller != labeller]
    return LabelState(verdict, mine, sum(others), len(others) - sum(others), judge)


class QueueItem(NamedTuple):
    """A verdict to label, with what one reads to do so.

    `prompt` and `grounding` are texts as JSON, None if the ledger does not have them.
    """

    candidate: Candidate
    response: ShownResponse
    verdict: Verdict
    criterion: Criterion | None
    state: LabelState
    prompt: str | None
    grounding: str | None

    @property
    def reasons(self) -> list[str]:
        """Why it is offered, the strongest reason first."""
        by_doubt = sorted(self.candidate.reasons.items(), key=lambda one: -one[1])
        return [REASONS[reason] for reason, _ in by_doubt]


class Queue(NamedTuple):
    """A place in the queue of a run: the verdict there, None past the end, and how many are offered."""

    item: QueueItem | None
    offered: int
    looked_at: int


async def read_queue(
    labels: LabelStore,
    wanted: RecentFilter,
    labelled: Sequence[LabelledUse],
    labeller: str,
    why: Reason | None,
    at: int,
    findings: Sequence[MonitorFinding] = (),
) -> Queue:
    """The verdict at a place of the queue of those that a person has not labelled, of a run with these labels."""
    uses = await labels.recent_uses(wanted)
    given = {key_of(one.use) for one in labelled if any(label.labeller == labeller for label in one.labels)}
    counts = Counter([criterion_name(one.use) for one in labelled])
    done = {use.votes[0][0].digest for use in uses if key_of(use) in given}
    digests = {use.response.rubric for use in uses if use.response.rubric is not None}
    stored = await labels.texts(wanted.project_id, sorted(digests)) if digests else {}
    rubrics = {digest: read_criteria(text) or () for digest, text in stored.items()}
    left = [use for use in uses if use.votes[0][0].digest not in done and use.response.rubric in rubrics]

    def ranked_uses() -> list[Candidate]:
        return rank(left, rubrics, why=why, findings=findings, labelled=counts, maps=maps_so_far(labelled))

    ranked = await run_in_thread(ranked_uses)
    if at >= len(ranked):
        return Queue(None, len(ranked), len(uses))
    chosen = ranked[at]
    return Queue(await _item(labels, chosen, rubrics, labeller), len(ranked), len(uses))


async def _item(
    labels: LabelStore, chosen: Candidate, rubrics: Mapping[bytes, Sequence[Criterion]], labeller: str
) -> QueueItem:
    use, row = chosen.use, chosen.use.response
    digests = [digest for digest in (row.prompt, row.response, row.grounding) if digest is not None]
    texts = await labels.texts(row.project_id, digests)
    criteria = rubrics.get(row.rubric or b"", ())
    criterion = next((one for one in criteria if one.id == use.votes[0][0].criterion), None)
    response = ShownResponse(use, tuple(criteria), texts.get(row.response), row.position + 1)
    given = await labels.labels(LabelFilter(row.project_id, row.run, (row.request,)))
    key = key_of(use)
    state = label_state(key, [label for label in given if label.verdict == key], labeller, judge_says(use))
    grounding = None if row.grounding is None else texts.get(row.grounding)
    return QueueItem(chosen, response, recorded_verdict(use.votes), criterion, state, texts.get(row.prompt), grounding)


def key_of(use: UseRecord) -> VerdictKey:
    """The key of a recorded verdict."""
    row = use.votes[0][0]
    return VerdictKey(row.run, row.request, row.place, row.slot)


class CriterionLabels(NamedTuple):
    """The labelled verdicts on a criterion.

    `met` is the number that people say are met, of those on which they are not split; `passed` that of the judge, and
    `agreed` the number on which they agree, both of `compared`, on which neither is missing. `interval` is Wilson's of
    the rate of agreement, and `to_halve` the number of further labels that halve it; None without any to compare.
    """

    criterion: str
    labelled: int
    met: int
    compared: int
    passed: int
    agreed: int
    interval: tuple[float, float] | None
    to_halve: int | None


class Difference(NamedTuple):
    """A verdict on which people and the judge differ."""

    criterion: str
    met: bool
    use: UseRecord

    @property
    def href(self) -> str:
        """The page of its group, at the response."""
        return response_address(self.use.response)

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict."""
        return recorded_verdict(self.use.votes)


class RunLabels(NamedTuple):
    """The labels of a run: by criterion, who agrees with whom, and the latest verdicts on which the judge differs.

    `calibrated` says what calibrating on them would do; None where it does not help yet.
    """

    run: str
    labelled: int
    people: tuple[str, ...]
    criteria: tuple[CriterionLabels, ...]
    agreements: tuple[Agreement, ...]
    differences: tuple[Difference, ...]
    differing: int
    calibrated: CalibrationPreview | None

    @property
    def commands(self) -> str:
        """Commands that measure and calibrate the default judge on the labels, and that learn a probe from enough."""
        name = shlex.quote(f"run:{self.run}")
        found = [f"adjudge evaluate {name} --judge default", f"adjudge calibrate {name} --judge default --name NAME"]
        if self.labelled >= FEWEST_LABELS_OF_A_PROBE:
            found.append(f"adjudge probe fit {name} --judge llamacpp://MODEL --output NAME.gguf")
        return "\n".join(found)

    @property
    def download_href(self) -> str:
        """The labels as a file."""
        return address("labels.jsonl", run=self.run)


async def read_run_labels(labels: LabelStore, project_id: str, run: str) -> RunLabels | None:
    """The labels of a run; None if there are none."""
    found = await labels.labelled_uses(LabelFilter(project_id, run))
    return await run_in_thread(lambda: _run_labels(run, found)) if found else None


def _run_labels(run: str, found: Sequence[LabelledUse]) -> RunLabels:
    by_criterion: dict[str, list[LabelledUse]] = defaultdict(list)
    differences = []
    for one in found:
        name = one.use.votes[0][0].criterion
        by_criterion[name].append(one)
        said, judged = consensus(one.labels), judge_says(one.use)
        if said is not None and judged is not None and said != judged:
            differences.append(Difference(name, said, one.use))
    people = dict.fromkeys(label.labeller for one in found for label in one.labels)
    criteria = [_criterion(name, labelled) for name, labelled in by_criterion.items()]
    return RunLabels(
        run, len(found), tuple(people), tuple(sorted(criteria, key=lambda one: -one.labelled)),
        tuple(agreements(found)), tuple(differences[: -_DIFFERENCES - 1 : -1]), len(differences),
        preview_calibration(found),
    )  # fmt: skip


def _criterion(name: str, found: Sequence[LabelledUse]) -> CriterionLabels:
    said = [(consensus(one.labels), judge_says(one.use)) for one in found]
    both = [(met, judged) for met, judged in said if met is not None and judged is not None]
    agreed = sum(met == judged for met, judged in both)
    return CriterionLabels(
        name, len(found), sum(met is True for met, _ in said), len(both), sum(judged for _, judged in both), agreed,
        wilson(agreed, len(both)) if both else None, labels_to_halve(agreed, len(both)) if both else None,
    )  # fmt: skip


class Progress(NamedTuple):
    """What the labels of a run say after one more: about the criterion that it is of, and about calibrating on all."""

    criterion: CriterionLabels
    calibrated: CalibrationPreview | None


def _progress(found: Sequence[LabelledUse], verdict: VerdictKey) -> Progress:
    """What the labels of a run say after that of a verdict, which is among them. Blocks."""
    own = next(one.use.votes[0][0].criterion for one in found if key_of(one.use) == verdict)
    same = [one for one in found if one.use.votes[0][0].criterion == own]
    return Progress(_criterion(own, same), preview_calibration(found))


router = PageRouter()

_MET = {"yes": True, "no": False, "": None}
_RUNS = 10


@router.get("/labels")
async def labels(visit: Visit) -> Response:
    """The labelled runs, or what the labels of one run say."""
    store, project = visit.service.label_store(), visit.project
    if "run" in visit.query:
        run = visit.run
        shown = await read_run_labels(store, project, storable_text(run))
        measurable = visit.service.operations is not None
        return visit.page(
            "run_labels.html.jinja",
            run=run,
            shown=shown,
            measurable=measurable,
            judges=visit.service.names,
            names=await _names(visit),
        )
    counts: dict[str, int] = {}
    people: dict[str, list[str]] = {}
    for one in await store.label_counts(project):
        counts[one.run] = counts.get(one.run, 0) + one.labels
        people.setdefault(one.run, []).append(one.labeller)
    recent = await visit.ledger.runs(project, limit=_RUNS)
    others = [one for one in recent.runs if (one.run or "") not in counts]
    return visit.page("labels.html.jinja", counts=counts, people=people, others=others)


@router.get("/labels.jsonl")
async def labels_file(visit: Visit) -> Response:
    """The labels of a run as a labelled data set."""
    wanted = LabelFilter(visit.project, storable_text(visit.run))
    found = await labelled_groups(visit.service.label_store(), wanted)
    body = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows).encode("utf-8", "replace")
    headers = {"Content-Disposition": 'attachment; filename="labels.jsonl"'}
    return Response(body, 200, headers, "application/x-ndjson")


@router.get("/labels/queue", scope="labels:write")
async def queue(visit: Visit) -> Response:
    """The next verdict to label."""
    store, project, run = visit.service.label_store(), visit.project, visit.run
    first, last = visit.steps
    criterion = visit.text("criterion") or None
    why, at = visit.choice("why", REASON_NAMES), visit.whole_number("at") or 0
    report = await read_report(visit, run)
    labeller = visit.identity.actor
    wanted = RecentFilter(project, storable_text(run), first, last, criterion and storable_text(criterion))
    thresholds = visit.service.monitor_thresholds
    monitored = await monitor_run(visit.ledger, project, storable_text(run), thresholds, until_step=last)
    findings = monitored.findings if monitored else ()
    labelled = await store.labelled_uses(LabelFilter(project, storable_text(run)))
    shown = await read_queue(store, wanted, labelled, labeller, why, at, findings)

    def here(at: int, **also: str) -> str:
        given = {"first": first, "last": last, "criterion": criterion, "why": why, "at": at or None}
        return address("labels/queue", run=run, **given, **also)

    undone = _last_label(visit, run, labelled)
    progress = None if undone is None else await run_in_thread(partial(_progress, labelled, undone.verdict))
    item = shown.item
    after = "" if item is None else here(at, done=item.state.id)
    return visit.page(
        "label_queue.html.jinja", run=run, report=report, queue=shown, item=item, at=at, after=after,
        next_href=here(at + 1) if at + 1 < shown.offered else "", previous_href=here(at - 1) if at else "",
        here_href=here(at), undone=undone, progress=progress, limit=TEXT_LIMIT, first=first,
        last=last, criterion=criterion, why=why,
    )  # fmt: skip


@router.post("/labels", scope="labels:write")
async def label(visit: Visit, form: Form) -> Response:
    """Give, change or take back a label; the answer is its state if HTMX asks, and otherwise the page it came from."""
    met, run = form.text("met"), form.text("run")
    try:
        verdict = VerdictKey(storable_text(run), *decode_cursor(form.text("verdict")))
    except ValueError:
        raise InvalidRequest("This form names no verdict. Open the page again and repeat.") from None
    if len(run) > 256:
        raise InvalidRequest("run: a run's name has at most 256 characters")
    if met not in _MET:
        raise InvalidRequest("met: write yes or no, or nothing to take the label back")
    store, identity = visit.service.label_store(), visit.identity
    try:
        await store.set_label(identity.project_id, verdict, identity.actor, _MET[met])
    except LookupError as error:
        raise NotFound(f"This label was not stored: {error.args[0]}.") from None
    page = local_page(form.text("next"))
    if "HX-Request" in visit.request.headers and form.text("state") == "1":
        state = await _state(visit, verdict)
        return visit.page("label.html.jinja", state=state, next=page)
    return RedirectResponse(page, 303)


@router.post("/labels/evaluate", scope="score")
async def evaluate(visit: Visit, form: Form) -> Response:
    """Start an operation that measures a judge on the labels of a run, and go to its page."""
    run, judge = form.text("run"), form.text("judge") or DEFAULT_JUDGE
    wanted = LabelFilter(visit.project, storable_text(run[:256]))
    found = await labelled_groups(visit.service.label_store(), wanted)
    if not found.rows:
        raise InvalidRequest(
            "No label of this run can be used: people are split, the responses are conversations, or the ledger does "
            "not have their texts."
        )
    asked: dict[str, Any] = {"groups": found.rows, "judge": judge, "run": f"labels of {run}"[:256]}
    try:
        made = await visit.service.running_operations().submit(wanted.project_id, "evaluate_judge", asked)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return RedirectResponse(address("operation", id=made.id), 303)


async def _names(visit: Visit) -> dict[str, str]:
    """What people are called: the label of their key, with the key's id where several have the same."""
    if visit.service.keys is None:
        return {}
    keys = [key for key in await visit.service.keys.keys(visit.project) if key.label]
    labels = [key.label for key in keys]
    return {
        f"key {key.id}": key.label if labels.count(key.label) == 1 else f"{key.label} (key {key.id})" for key in keys
    }


async def _state(visit: Visit, verdict: VerdictKey) -> LabelState:
    """The state of the label of one verdict."""
    here = LabelFilter(visit.project, verdict.run, (verdict.request,))
    return _state_of(visit, verdict, await visit.service.label_store().labelled_uses(here))


def _state_of(visit: Visit, verdict: VerdictKey, found: Sequence[LabelledUse]) -> LabelState:
    """The state of the label of one verdict, which is among these if it has any."""
    labeller = visit.identity.actor
    own = next((one for one in found if key_of(one.use) == verdict), None)
    if own is None:
        return label_state(verdict, (), labeller, None)
    return label_state(verdict, own.labels, labeller, judge_says(own.use))


def _last_label(visit: Visit, run: str, labelled: Sequence[LabelledUse]) -> LabelState | None:
    """The label that was given just before, which can be taken back; None if there is none."""
    try:
        verdict = VerdictKey(storable_text(run), *decode_cursor(visit.text("done")))
    except ValueError:
        return None
    state = _state_of(visit, verdict, labelled)
    return None if state.mine is None else state
