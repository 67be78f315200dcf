"""Labels that people give to recorded verdicts: what to label first, and the labels as a data set.

A label says whether a response meets a criterion. It does not say whether the judge is right, so that it stays true
when another judge is asked.
"""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from judge_server.evaluation.labelled import MET_FROM, Example, examples_of
from judge_server.intervals import wilson
from judge_server.judging.calibration import Calibration, criterion_key
from judge_server.ports import LabelStore, LedgerReader
from rubric_store.ledger.rows import UNCERTAIN, LabelFilter, LabelledUse, LabelRow, ResponseRow, UseRecord, VerdictRow
from trainer_client.wire import Criterion
from trainer_client.wire.runs import MonitorFinding, Severity

if TYPE_CHECKING:
    from judge_server.evaluation.metrics import Estimate
    from judge_server.evaluation.report import Measured

Reason: TypeAlias = Literal["close", "disagreement", "shadow", "monitor"]
"""Why a verdict is worth labelling: its probability is near 0.5; judges of a cascade or panel, or votes, disagree; a
shadow criterion contradicts the reward; or a monitor warns about the criterion since a step before it."""

REASONS: tuple[Reason, ...] = get_args(Reason)
_CLOSE = 0.5
_MAX_ID = 256
_WARNED: Mapping[Severity, float] = {"critical": 0.9, "warning": 0.7}
_WARNED_AND_CLOSE = 0.1

_INFORMATION = 0.2
"""What a label of a verdict in doubt tells of a criterion's intercept, in 1 / log-odds²: p (1 - p)."""

_UNKNOWN = 3.7
"""The variance of a criterion's intercept before any label, by the spreads in `fitting.calibrations`."""


class Candidate(NamedTuple):
    """A verdict that may be labelled.

    Attributes:
        use: the verdict with its request and response.
        doubt: how much a label would tell, from 0 to 1: the largest of the doubts in `reasons`, or how close the
            probability is to 0.5.
        reasons: the doubt by reason, without those that hardly apply.
        probability: the mean probability of yes of the votes, or their mean score if the judge gives none.
    """

    use: UseRecord
    doubt: float
    reasons: Mapping[Reason, float]
    probability: float


def rank(
    uses: Iterable[UseRecord],
    rubrics: Mapping[bytes, Sequence[Criterion]],
    *,
    why: Reason | None = None,
    findings: Sequence[MonitorFinding] = (),
    labelled: Mapping[str, int] | None = None,
    maps: Calibration | None = None,
) -> list[Candidate]:
    """Return the verdicts that may be labelled, the one with the most doubt first.

    Of verdicts that share a judge call, only one is returned. A probability near 0.5, by the labels so far, is worth
    less the more labels its criterion has: its threshold is known better then.

    Args:
        uses: verdicts of judges that did not fail.
        rubrics: the criteria by the digest of the rubric; those that are absent count as not shadow.
        why: return only verdicts that are worth labelling for this reason.
        findings: what the monitors of the run find.
        labelled: the number of labelled verdicts by `criterion_name`.
        maps: the maps that were fitted to them, by `criterion_name`.
    """
    counts = labelled or {}
    shadows = {digest: {one.id: one for one in criteria if one.shadow} for digest, criteria in rubrics.items()}
    found: dict[bytes, Candidate] = {}
    for use in uses:
        judged = [verdict for _, verdict in use.votes if verdict is not None]
        first = use.votes[0][0]
        if judged and first.digest not in found:
            probability = sum(one.score if one.probability is None else one.probability for one in judged) / len(judged)
            shadow = shadows.get(use.response.rubric or b"", {}).get(first.criterion)
            reasons = dict(_reasons(use, judged, probability, shadow))
            close = _closeness(_calibrated(use, judged, probability, maps)) * _worth(counts.get(criterion_name(use), 0))
            if "close" in reasons:
                reasons["close"] = close
            if warned := _warned(use, findings):
                reasons["monitor"] = warned + _WARNED_AND_CLOSE * _closeness(probability)
            doubt = max([close, *reasons.values()])
            found[first.digest] = Candidate(use, doubt, reasons, probability)
    chosen = [one for one in found.values() if why is None or why in one.reasons]
    return sorted(chosen, key=lambda one: one.doubt, reverse=True)


def _reasons(
    use: UseRecord, judged: Sequence[VerdictRow], probability: float, shadow: Criterion | None
) -> Iterator[tuple[Reason, float]]:
    closeness = _closeness(probability)
    if closeness >= _CLOSE or use.votes[0][0].failure == UNCERTAIN:
        yield "close", closeness
    said = [one.get("score") for row in judged if row.members for one in json.loads(row.members)]
    scores = [score for score in said if score is not None] or [row.score for row in judged]
    split = 2 * min(sum(score >= MET_FROM for score in scores), sum(score < MET_FROM for score in scores)) / len(scores)
    if split > 0:
        yield "disagreement", split
    reward = use.response.reward
    if shadow is not None and reward is not None:
        good = 1 - probability if shadow.weight < 0 or shadow.kind == "pitfall" else probability
        contradiction = min(1.0, abs(min(1.0, max(0.0, reward)) - good))
        if contradiction >= _CLOSE:
            yield "shadow", contradiction


def _warned(use: UseRecord, findings: Sequence[MonitorFinding]) -> float:
    """The doubt about a verdict because of what monitors find about its criterion at its step; 0 without a finding."""
    step, criterion = use.request.step, use.votes[0][0].criterion
    own = [one for one in findings if one.subject == criterion and (one.began is None or one.began <= (step or 0))]
    return max([_WARNED.get(one.severity, 0.0) for one in own], default=0.0)


def _closeness(probability: float) -> float:
    """1 for a probability of 0.5, 0 for one of 0 or 1."""
    return 1 - 2 * abs(probability - 0.5)


def _calibrated(use: UseRecord, judged: Sequence[VerdictRow], probability: float, maps: Calibration | None) -> float:
    """Return the probability of yes by the labels so far; as recorded without any, or for a judge without raw ones."""
    raw = _raw_probabilities(judged)
    if maps is None or len(raw) < len(judged):
        return probability
    of = maps.by_criterion.get(criterion_key(criterion_name(use)), maps.default)
    return of.calibrate(sum(raw) / len(raw))


def _worth(labels: int) -> float:
    """How much one more label tells of a criterion's threshold, relative to the first: 1 for none, falling to 0.

    A label shrinks the variance v of the intercept to 1 / (1 / v + `_INFORMATION`), that is, by a share of
    `_INFORMATION` v / (1 + `_INFORMATION` v).
    """

    def shrinks(variance: float) -> float:
        return _INFORMATION * variance / (1 + _INFORMATION * variance)

    return shrinks(1 / (1 / _UNKNOWN + _INFORMATION * labels)) / shrinks(_UNKNOWN)


def _raw_probabilities(votes: Iterable[VerdictRow]) -> list[float]:
    """Return those that a calibration can map: not of a cascade or panel, which has none of its own."""
    return [row.raw_probability for row in votes if row.raw_probability is not None and row.members is None]


def consensus(labels: Sequence[LabelRow]) -> bool | None:
    """Return what most people say of a verdict; None if they are split."""
    met = sum(label.met for label in labels)
    return None if 2 * met == len(labels) else 2 * met > len(labels)


JudgedText: TypeAlias = tuple[bytes, bytes, bytes | None, bytes | None, str]
"""What a label is about, wherever it was judged: the digests of prompt, response, grounding and rubric, a criterion."""


def judged_text(row: ResponseRow, criterion: str) -> JudgedText:
    """Return what a label of a response's criterion is about."""
    return row.prompt, row.response, row.grounding, row.rubric, criterion


async def consensus_labels(store: LabelStore, wanted: LabelFilter) -> dict[JudgedText, bool]:
    """Return what most people say of each labelled criterion of a response, wherever in the run they said it."""
    found: dict[JudgedText, list[LabelRow]] = defaultdict(list)
    for one in await store.labelled_uses(wanted):
        found[judged_text(one.use.response, one.use.votes[0][0].criterion)] += one.labels
    said = {key: consensus(labels) for key, labels in found.items()}
    return {key: met for key, met in said.items() if met is not None}


class LabelledGroups(NamedTuple):
    """The labels of a run as labelled groups.

    Attributes:
        rows: one object per group, in the format of `judge_server.evaluation.labelled`, oldest first.
        labels: the number of labelled verdicts in them.
        left_out: how many labelled verdicts are not in them, by reason.
        people: who labelled, as in `LabelRow.labeller`.
    """

    rows: list[dict[str, Any]]
    labels: int
    left_out: dict[str, int]
    people: tuple[str, ...]

    def examples(self) -> list[Example]:
        """Return the labelled responses."""
        return [example for number, row in enumerate(self.rows, 1) for example in examples_of(row, number)]


SPLIT = "people are split"
NO_TEXT = "the ledger does not have the texts"
CONVERSATION = "the response is a conversation"
NO_CRITERION = "no criterion was asked about"


async def labelled_groups(store: LabelStore, wanted: LabelFilter) -> LabelledGroups:
    """Read the labels of a run as labelled groups; where several people labelled a verdict, most decide.

    Each group has the labelled criteria of its rubric, which the judge is always asked about, even if a program could
    decide them.
    """
    groups: dict[tuple[bytes, int], list[LabelledUse]] = defaultdict(list)
    found = await store.labelled_uses(wanted)
    for one in found:
        groups[one.use.group].append(one)
    texts = await read_texts(store, wanted.project_id, [one.use.response for one in found])
    rows: list[dict[str, Any]] = []
    left_out: dict[str, int] = defaultdict(int)
    for uses in groups.values():
        row = _row(uses, texts, left_out)
        if row is not None:
            rows.append(row)
    people = dict.fromkeys(label.labeller for one in found for label in one.labels)
    return LabelledGroups(rows, len(found) - sum(left_out.values()), dict(left_out), tuple(people))


def digests_of(row: ResponseRow) -> list[bytes]:
    """Return the digests of the texts that a response was judged by."""
    all_texts = row.prompt, row.response, row.grounding, row.rubric, row.reference_answer, row.ground_truth
    return [digest for digest in all_texts if digest is not None]


def material_of(row: ResponseRow, texts: Mapping[bytes, str]) -> dict[str, Any]:
    """Return what else the judge of a response was shown: grounding, reference answer and ground truth, by name."""
    digests = {name: getattr(row, name) for name in ("grounding", "reference_answer", "ground_truth")}
    return {name: json.loads(texts[digest]) for name, digest in digests.items() if digest is not None}


async def read_texts(
    store: LabelStore | LedgerReader, project_id: str, rows: Iterable[ResponseRow]
) -> dict[bytes, str]:
    """Read the texts of responses, as JSON by digest, without those that the ledger does not keep."""
    digests = sorted({digest for row in rows for digest in digests_of(row)})
    texts: dict[bytes, str] = {}
    for start in range(0, len(digests), 500):
        texts |= await store.texts(project_id, digests[start : start + 500])
    return texts


def _row(uses: Sequence[LabelledUse], texts: Mapping[bytes, str], left_out: dict[str, int]) -> dict[str, Any] | None:
    first = uses[0].use
    rubric = json.loads(texts.get(first.response.rubric or b"", "[]"))
    criteria = {one["id"]: one for one in rubric}
    responses: dict[int, tuple[str, dict[str, bool]]] = {}
    asked: dict[str, None] = {}
    for one in uses:
        row, name = one.use.response, one.use.votes[0][0].criterion
        met, text = consensus(one.labels), texts.get(row.response)
        response = None if text is None else json.loads(text)
        if met is None:
            left_out[SPLIT] += 1
        elif name not in criteria:
            left_out[NO_CRITERION] += 1
        elif any(digest not in texts for digest in digests_of(row)):
            left_out[NO_TEXT] += 1
        elif not isinstance(response, str):
            left_out[CONVERSATION] += 1
        else:
            asked[name] = None
            responses.setdefault(row.place, (response, {}))[1][name] = met
    if not responses:
        return None
    by_judge = {"verification": {"method": "judge"}, "shadow": False}
    return {
        "id": f"{first.request.request_id}/{first.response.group_id}"[:_MAX_ID],
        "prompt": json.loads(texts[first.response.prompt]),
        "responses": [response for response, _ in responses.values()],
        "rubric": {"criteria": [criteria[name] | by_judge for name in criteria if name in asked]},
        "labels": [labels for _, labels in responses.values()],
        **material_of(first.response, texts),
    }


class Agreement(NamedTuple):
    """How far two agree on verdicts that both of them gave.

    `n` is the number of these verdicts and `rows` that of their groups; `accuracy` is the share on which they agree,
    and `kappa` Cohen's kappa, nan unless the second of them says both yes and no.
    """

    first: str
    second: str
    n: int
    rows: int
    accuracy: "Estimate"
    kappa: "Estimate"


JUDGE = "the judge"


def agreements(found: Sequence[LabelledUse]) -> list[Agreement]:
    """Return the agreement of the judge with each person and of every two people, the largest samples first.

    Intervals come from resampling groups. Verdicts that failed are left out. Blocks.
    """
    import numpy as np  # takes long to import

    from judge_server.evaluation.metrics import RowBootstrap, VerdictArrays

    said: dict[str, dict[int, bool]] = defaultdict(dict)
    for number, one in enumerate(found):
        score = judge_says(one.use)
        if score is not None:
            said[JUDGE][number] = score
        for label in one.labels:
            said[label.labeller][number] = label.met
    rows = [one.use.group for one in found]
    results = []
    for first, second in combinations(sorted(said, key=lambda name: name != JUDGE), 2):
        both = [number for number in said[first] if number in said[second]]
        if not both:
            continue
        verdicts, labels = (np.array([said[name][number] for number in both], dtype=bool) for name in (first, second))
        own = [rows[number] for number in both]
        figures = RowBootstrap(own).figures(
            own, VerdictArrays(labels, verdicts, verdicts.astype(float), have_probabilities=False)
        )
        results.append(Agreement(first, second, len(both), len(set(own)), figures["accuracy"], figures["kappa"]))
    return sorted(results, key=lambda one: -one.n)


def labels_to_halve(agreed: int, n: int) -> int:
    """Return how many more labels halve Wilson's interval of a rate of agreement, of `agreed` of `n` so far.

    `n` is at least 1; the rate is taken to stay as it is.
    """

    def width(labels: int) -> float:
        low, high = wilson(agreed / n * labels, labels)
        return high - low

    return bisect_left(range(1, 8 * n + 64), True, key=lambda more: width(n + more) <= width(n) / 2) + 1


def labelled_verdicts(found: Sequence[LabelledUse]) -> "list[Measured]":
    """Return the labelled verdicts on which a calibration can be fitted: those of the latest model, with a probability.

    The criterion of each is named by its rubric and its id. Verdicts of a cascade or panel, which has no calibration of
    its own, and those on which people are split, are left out. They are given oldest first.
    """
    from judge_server.evaluation.report import Measured

    measured = []
    asked = [(one.use.request.model, one.use.request.protocol) for one in found]
    for one in [one for one, of in zip(found, asked, strict=True) if of == asked[-1]]:
        said, votes = consensus(one.labels), [row for _, row in one.use.votes if row is not None]
        raw = _raw_probabilities(votes)
        if said is not None and raw:
            row, p = one.use.response, sum(raw) / len(raw)
            group = f"{row.request.hex()}/{row.group_id}"
            judged = judge_says(one.use)
            score = None if judged is None else float(judged)
            measured.append(Measured(group, criterion_name(one.use), float(said), score, p, p, "point"))
    return measured


def criterion_name(use: UseRecord) -> str:
    """Return what names a criterion in all rubrics of a run: the rubric's digest and the criterion's id."""
    return f"{(use.response.rubric or b'').hex()}/{use.votes[0][0].criterion}"


class CalibrationPreview(NamedTuple):
    """What calibrating on the labels of a run would do: the shares of verdicts on which judge and people agree.

    `before` is that of the recorded verdicts, `after` that of calibrated ones, each by maps that were fitted without
    its group; both of the same `labels` verdicts, on which the judge decided.
    """

    labels: int
    before: float
    after: float


def preview_calibration(found: Sequence[LabelledUse]) -> CalibrationPreview | None:
    """Calibrate on the recorded probabilities of labelled verdicts. Blocks.

    Returns:
        None if the labels are too few, or the gain cannot be told from chance: its 95% interval reaches 0.
    """
    import numpy as np  # takes long to import

    from judge_server.evaluation.fitting.calibrations import MissingExtraError, cross_validate, fit_calibration
    from judge_server.evaluation.metrics import RowBootstrap

    measured = [one for one in labelled_verdicts(found) if one.score is not None]
    descriptions = {(one.row, one.criterion): one.criterion for one in measured}
    try:
        method, _ = fit_calibration(measured, descriptions, name="preview")
        calibrated = cross_validate(measured, descriptions, method=method).calibrated
    except (ValueError, MissingExtraError):
        return None
    after = calibrated.satisfied == calibrated.labels
    before = np.array([one.score == one.label for one in measured])
    rows = [one.row for one in measured]
    gain = RowBootstrap(rows).mean(rows, (after.astype(float) - before).tolist())
    return CalibrationPreview(len(measured), float(before.mean()), float(after.mean())) if gain.low > 0 else None


def maps_so_far(found: Sequence[LabelledUse]) -> Calibration | None:
    """Fit maps to the labels that there are, however few; None without any, or without scipy. Blocks."""
    from judge_server.evaluation.fitting.calibrations import MissingExtraError, fit_maps

    measured = labelled_verdicts(found)
    try:
        return fit_maps(measured, {(one.row, one.criterion): one.criterion for one in measured}) if measured else None
    except MissingExtraError:
        return None


def judge_says(use: UseRecord) -> bool | None:
    """Return whether the judge says yes by a majority of votes; None if it failed, is uncertain or is split."""
    if use.votes[0][0].failure == UNCERTAIN:
        return None
    votes = [verdict.score >= MET_FROM for use_row, verdict in use.votes if verdict is not None and not use_row.failed]
    met = sum(votes)
    return None if 2 * met == len(votes) else 2 * met > len(votes)
