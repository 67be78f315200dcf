"""What pages show of labels: the state of a verdict's label, the queue of what to label, and how far people agree."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from judge_server.api.console.responses.shown import ShownResponse, read_criteria
from judge_server.api.console.tables import address
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.labelling import Agreement, Candidate, Reason, agreements, consensus, judge_says, rank
from judge_server.ledger.reading import recorded_verdict
from judge_server.ports import LabelStore
from judge_server.time_sharing import run_in_thread
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.ledger_rows import (
    LabelFilter,
    LabelledUse,
    LabelRow,
    RecentFilter,
    ResponseRecord,
    UseRecord,
    VerdictKey,
)
from trainer_client.wire.monitors import MonitorFinding

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
    def element(self) -> str:
        """The id of its form on a page."""
        return f"label-{self.verdict.request.hex()}-{self.verdict.place}-{self.verdict.slot}"


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
    labeller: str,
    why: Reason | None,
    at: int,
    findings: Sequence[MonitorFinding] = (),
) -> Queue:
    """The verdict at a place of the queue of those that a person has not labelled."""
    uses = await labels.recent_uses(wanted)
    given = {
        label.verdict for label in await labels.labels(LabelFilter(wanted.project_id, wanted.run, labeller=labeller))
    }
    done = {use.votes[0][0].digest for use in uses if key_of(use) in given}
    digests = {use.response.rubric for use in uses if use.response.rubric is not None}
    stored = await labels.texts(wanted.project_id, sorted(digests)) if digests else {}
    rubrics = {digest: read_criteria(text) or () for digest, text in stored.items()}
    left = [use for use in uses if use.votes[0][0].digest not in done and use.response.rubric in rubrics]
    ranked = await run_in_thread(lambda: rank(left, rubrics, why=why, findings=findings))
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
    response = ShownResponse(ResponseRecord(use.request, row, use.votes), tuple(criteria), texts.get(row.response))
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
    `agreed` the number on which they agree, both of `compared`, on which neither is missing.
    """

    criterion: str
    labelled: int
    met: int
    compared: int
    passed: int
    agreed: int


class Difference(NamedTuple):
    """A verdict on which people and the judge differ."""

    criterion: str
    met: bool
    use: UseRecord

    @property
    def href(self) -> str:
        """The page of its group, at the response."""
        record = ResponseRecord(self.use.request, self.use.response, self.use.votes)
        return ShownResponse(record, None, None).group_href

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict."""
        return recorded_verdict(self.use.votes)


class RunLabels(NamedTuple):
    """The labels of a run: by criterion, who agrees with whom, and the latest verdicts on which the judge differs."""

    run: str
    labelled: int
    people: tuple[str, ...]
    criteria: tuple[CriterionLabels, ...]
    agreements: tuple[Agreement, ...]
    differences: tuple[Difference, ...]
    differing: int

    @property
    def commands(self) -> str:
        """Commands that measure and calibrate the default judge on the labels."""
        name = shlex.quote(f"run:{self.run}")
        return f"adjudge evaluate default {name}\nadjudge calibrate default {name} --name NAME"

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
    )  # fmt: skip


def _criterion(name: str, found: Sequence[LabelledUse]) -> CriterionLabels:
    said = [(consensus(one.labels), judge_says(one.use)) for one in found]
    both = [(met, judged) for met, judged in said if met is not None and judged is not None]
    return CriterionLabels(
        name, len(found), sum(met is True for met, _ in said), len(both), sum(judged for _, judged in both),
        sum(met == judged for met, judged in both),
    )  # fmt: skip
