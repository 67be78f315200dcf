"""Pass rates corrected for the judge's error, with intervals that carry the error of every measurement.

A judge with sensitivity Se (the share of met criteria that it passes) and specificity Sp (the share of unmet criteria
that it fails) passes a share p = r Se + (1 - r)(1 - Sp) of criteria of which a share r is met. Rogan and Gladen (1978,
Am. J. Epidemiol. 107:71-76) solve this for r. The interval is that of Lang and Reiczigel (2014, Prev. Vet. Med.
113:13-22): p, Se and Sp are all estimates, from independent samples.

Verdicts of one group, like labels of one row, are similar. A sample of clusters counts as the number of independent
verdicts that would have the same variance (Kish's effective sample size). The numbers hold for the judge with one
fingerprint, and for responses on which it errs as often as on the labelled ones; nothing here can check the second.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from math import sqrt
from typing import Any, NamedTuple

from pydantic import ValidationError

from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.metrics import LEVEL, Estimate
from judge_server.intervals import Z
from judge_server.ports import LedgerReader
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.recorded import recorded_score
from rubric_store.ledger.rows import JudgedResponse, RunRange
from trainer_client.wire.runs import CorrectedRate, CorrectedRates, Interval, JudgeError, MeasuredJudge, MeasuredRate

BY_JUDGE = frozenset({"judge", "no_content"})
"""The methods of a criterion that the judge decides; a response that says nothing needs no call."""

_RESPONSES_AT_A_TIME = 10_000


class UncorrectableError(ValueError):
    """A pass rate cannot be corrected; the message is the reason."""


class PassCount(NamedTuple):
    """Verdicts of one cluster: how many passed, of how many that did not fail."""

    passed: int
    verdicts: int


def read_error(figures: Mapping[str, Any]) -> JudgeError:
    """Read a judge's error from the JSON of a report.

    Raises:
        UncorrectableError: a number is missing or out of range, as in figures of an earlier release.
    """
    try:
        error = JudgeError.model_validate(figures)
    except ValidationError as problem:
        name = problem.errors()[0]["loc"][0]
        raise UncorrectableError(
            f"the {name} is not known with the number of its labels; measure the judge again"
        ) from None
    for name, rate in error:
        if not (0 <= rate.value <= 1 and rate.labels >= 1 and 0 < rate.effective_labels <= rate.labels):
            raise UncorrectableError(f"the {name} of {rate.value:g} from {rate.labels} labels is out of range")
    return error


def clusters_of(verdicts: Iterable[tuple[Hashable, bool]]) -> list[PassCount]:
    """Count verdicts by cluster; each is given as its cluster and whether it passed."""
    counts: dict[Hashable, list[bool]] = defaultdict(list)
    for cluster, passed in verdicts:
        counts[cluster].append(passed)
    return [PassCount(sum(own), len(own)) for own in counts.values()]


def effective_size(clusters: Iterable[PassCount]) -> float:
    """Return how many independent verdicts have the same variance of the pass rate as these clusters of verdicts.

    With k clusters of m_i verdicts of which y_i passed, n = sum(m_i) and p = sum(y_i) / n, the variance of p is
    k / (k - 1) sum((y_i - p m_i)^2) / n^2 (the ratio estimator of cluster sampling; Cochran 1977, section 9A), and the
    answer is p (1 - p) divided by it, at most n. Where it cannot be estimated, with one cluster or a p of 0 or 1, the
    clusters are taken to be of one mind, and the answer is k. It is 0 without verdicts.
    """
    given = [one for one in clusters if one.verdicts]
    if not given:
        return 0.0
    k, n = len(given), sum(one.verdicts for one in given)
    p = sum(one.passed for one in given) / n
    if k == 1 or p in (0.0, 1.0):
        return float(k)
    variance = k / (k - 1) * sum((one.passed - p * one.verdicts) ** 2 for one in given) / n**2
    return min(float(n), p * (1 - p) / variance) if variance > 0 else float(n)


def measure_error(rows: Sequence[Hashable], labels: Collection[bool], passed: Collection[bool]) -> JudgeError | None:
    """Measure a judge's sensitivity and specificity by labelled verdicts; None if one of the labels does not occur.

    Each verdict has its row of the data set, which is a cluster, what people say, and what the judge says.
    """
    given = list(zip(rows, labels, passed, strict=True))
    rates = []
    for met in (True, False):
        clusters = clusters_of((row, bool(verdict) == met) for row, label, verdict in given if bool(label) == met)
        n = sum(one.verdicts for one in clusters)
        if not n:
            return None
        value = sum(one.passed for one in clusters) / n
        rates.append(MeasuredRate(value=value, labels=n, effective_labels=effective_size(clusters)))
    return JudgeError(sensitivity=rates[0], specificity=rates[1])


def corrected_rate(observed: float, effective_verdicts: float, error: JudgeError) -> Estimate:
    """Correct an observed pass rate for the judge's error.

    The estimate is r = (p + Sp - 1) / (Se + Sp - 1). For the interval, with z = 1.96 and n the effective verdicts,
    p' = (n p + z^2 / 2) / (n + z^2) with n' = n + z^2, and each of Se and Sp becomes (m Se + 1) / (m + 2) with
    m' = m + 2 for m effective labels. With r' of these, clipped to [0, 1],

        r' + 2 z^2 (r' Se' (1 - Se') / m_Se' - (1 - r') Sp' (1 - Sp') / m_Sp')
           ± z sqrt(p' (1 - p') / n' + r'^2 Se' (1 - Se') / m_Se' + (1 - r')^2 Sp' (1 - Sp') / m_Sp') / (Se' + Sp' - 1)

    Estimate and interval are clipped to [0, 1], and the interval is widened to contain the estimate.

    Args:
        observed: the share of verdicts that passed, in [0, 1].
        effective_verdicts: how many independent verdicts it comes from, above 0; see `effective_size`.
        error: the judge's sensitivity and specificity.

    Raises:
        UncorrectableError: the judge was not shown to be better than chance: the 95% interval of Se + Sp - 1 reaches 0.
        ValueError: an argument is out of range.
    """
    if not 0 <= observed <= 1 or not effective_verdicts > 0:
        raise ValueError(f"a pass rate of {observed} from {effective_verdicts} verdicts is out of range")
    p, n = (effective_verdicts * observed + Z**2 / 2) / (effective_verdicts + Z**2), effective_verdicts + Z**2
    sensitivity, sensitivity_variance = _shrunk(error.sensitivity)
    specificity, specificity_variance = _shrunk(error.specificity)
    youden = sensitivity + specificity - 1
    if youden - Z * sqrt(sensitivity_variance + specificity_variance) <= 0:
        raise UncorrectableError(
            f"the judge is not clearly better than chance on labelled data: sensitivity {error.sensitivity.value:.2f} "
            f"of {error.sensitivity.labels:,} labels and specificity {error.specificity.value:.2f} of "
            f"{error.specificity.labels:,}; label more, or take a better judge"
        )
    value = _clipped((observed + error.specificity.value - 1) / (error.sensitivity.value + error.specificity.value - 1))
    rate = min(max((p + specificity - 1) / youden, 0.0), 1.0)
    shift = 2 * Z**2 * (rate * sensitivity_variance - (1 - rate) * specificity_variance)
    variance = p * (1 - p) / n + rate**2 * sensitivity_variance + (1 - rate) ** 2 * specificity_variance
    half = Z * sqrt(variance) / youden
    return Estimate(value, min(value, _clipped(rate + shift - half)), max(value, _clipped(rate + shift + half)))


def _shrunk(rate: MeasuredRate) -> tuple[float, float]:
    """Add one success and one failure to a rate; return it and its variance."""
    m = rate.effective_labels + 2
    value = (rate.effective_labels * rate.value + 1) / m
    return value, value * (1 - value) / m


def _clipped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


class ErrorSource(NamedTuple):
    """A measurement of a judge.

    Attributes:
        name: what to call it, such as `calibration team@1`.
        fingerprint, votes: the judge that was measured, and the number of votes per criterion.
        figures: `sensitivity` and `specificity` as `read_error` reads them; None if they were not measured.
    """

    name: str
    fingerprint: str | None
    votes: int
    figures: Mapping[str, Any] | None


def source_for(judges: Collection[tuple[str, int]], sources: Iterable[ErrorSource]) -> ErrorSource:
    """Return the first measurement of the judge of a run.

    `judges` has the pairs of a fingerprint and a number of votes that the run was judged with.

    Raises:
        UncorrectableError: the run has no judge or several, or none of the sources measured its judge.
    """
    if len(judges) != 1:
        found = "no judge" if not judges else f"{len(judges)} judges, or numbers of votes"
        raise UncorrectableError(f"the run was judged by {found}; a correction needs a run with one judge")
    ((fingerprint, votes),) = judges
    given = list(sources)
    for one in given:
        if (one.fingerprint, one.votes) == (fingerprint, votes):
            return one
    asked = f"{fingerprint[:19]}… with {votes} vote{'s' if votes > 1 else ''} per criterion"
    names = ", ".join(one.name for one in given[:3]) + (f" and {len(given) - 3} more" if len(given) > 3 else "")
    raise UncorrectableError(
        f"the run's judge, {asked}, was not measured by {names or 'any stored calibration'}; "
        "measure it with `adjudge evaluate --json`, and name the report with --evaluation"
    )


async def observed_rates(ledger: LedgerReader, part: RunRange) -> list[CorrectedRate]:
    """Return the pass rates of a part of a run by criterion, not yet corrected. A group is one request's.

    Counted are the judge's verdicts that did not fail. Criteria that programs decide are left out.
    """
    counts: dict[str, dict[Hashable, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    after = None
    while True:
        responses, after = await ledger.judged_responses(part, after, _RESPONSES_AT_A_TIME)
        await run_in_thread(_count, counts, responses)
        if after is None:
            break
    rates = []
    for name, by_group in counts.items():
        groups = [PassCount(*count) for count in by_group.values()]
        passed, verdicts = sum(one.passed for one in groups), sum(one.verdicts for one in groups)
        size = effective_size(groups)
        rates.append(
            CorrectedRate(criterion=name, passed=passed, verdicts=verdicts, groups=len(groups), effective_verdicts=size)
        )
    return rates


def _count(counts: Mapping[str, Mapping[Hashable, list[int]]], responses: Sequence[JudgedResponse]) -> None:
    """Count the verdicts that passed and all verdicts, by criterion and group."""
    for response in responses:
        group = (response.request_id, response.group_id)
        for _, slot in groupby(response.votes, key=lambda vote: vote.slot):
            votes = list(slot)
            score = recorded_score(votes) if votes[0].method in BY_JUDGE else None
            if score is not None:
                count = counts[votes[0].criterion][group]
                count[0] += score >= MET_FROM
                count[1] += 1


def correct_rates(
    run: str | None,
    judges: Collection[tuple[str, int]],
    observed: Iterable[CorrectedRate],
    sources: Iterable[ErrorSource],
) -> CorrectedRates:
    """Correct the pass rates of a run by the measurement of its judge; without one, say why they are as observed.

    `judges` and `sources` are as for `source_for`.
    """
    rates, source, error, reason = tuple(observed), None, None, None
    try:
        source = source_for(judges, sources)
        if source.figures is None:
            raise UncorrectableError("the measurement has no labels of both kinds, met and unmet")
        error = read_error(source.figures)
        rates = tuple([_corrected(one, error) for one in rates])
    except UncorrectableError as problem:
        reason = str(problem) if source is None else f"{source.name}: {problem}"
    return CorrectedRates(
        run=run,
        reason=reason,
        source=None if source is None else source.name,
        level=LEVEL,
        judge_error=error,
        judges=tuple([MeasuredJudge(fingerprint=fingerprint, votes=votes) for fingerprint, votes in judges]),
        criteria=rates,
    )


def _corrected(rate: CorrectedRate, error: JudgeError) -> CorrectedRate:
    found = corrected_rate(rate.passed / rate.verdicts, rate.effective_verdicts, error)
    return rate.model_copy(update={"corrected": Interval(**found._asdict(), n=rate.verdicts)})
