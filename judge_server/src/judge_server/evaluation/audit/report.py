"""Whether a run's rubric is being gamed: what its judge credits more and more, and others who look do not.

The early part of a run, the first third of its steps, is compared with the late one, the last third. Others are runs
that judged the same responses by another judge or another rubric, and people's labels. A criterion is credited if it is
met, or unmet if it is to be avoided. Shadow criteria, which no reward reads, are left out, and so are verdicts that
failed or are uncertain. No judge is asked.

The exploitation rate is that of "Reward hacking in rubric-based RL" (arXiv 2605.12474): of newly credited criteria, the
share that a panel of other judges rejects unanimously. The paper compares a checkpoint's response with the base
policy's to the same prompt. A ledger has no base policy: here, a criterion is newly credited to a late response if it
was credited to no early response to the same prompt. Several early responses make this rarer than the paper's one.

Intervals are percentiles of 1,000 resamples of prompts, whose responses are similar.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import NormalDist, fmean
from typing import Literal, NamedTuple

import numpy as np

from judge_server.errors import invalid_field
from judge_server.evaluation.audit.reading import AuditedResponse, AuditedRun, AuditedVerdict, Steps, read_run
from judge_server.evaluation.corrected_rates import clusters_of, effective_size
from judge_server.evaluation.labelling import JudgedText, consensus_labels, judged_text
from judge_server.evaluation.metrics import Floats, RowBootstrap, estimate, none_if_nan
from judge_server.intervals import wilson
from judge_server.ports import LabelStore, LedgerReader
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.recorded import encode_cursor
from rubric_store.ledger.rows import LabelFilter, RunChartQuery, VerdictKey
from trainer_client.wire.runs import (
    MAX_AGAINST,
    SELF_INTERNALIZATION_GAP,
    AuditAnswer,
    AuditComparison,
    AuditConflict,
    AuditedCriterion,
    AuditExample,
    AuditFigure,
    AuditInternalization,
    AuditPart,
    AuditReading,
    AuditReference,
    AuditTrend,
    RunAudit,
)

MIN_PROMPTS = 10
"""With fewer prompts than this, figures have no interval."""

MAX_CRITERIA = 50
_MOST_STEPS = 10_000
"""A reported gap is that of a step in runs up to this long, and the mean of a few steps in longer ones."""

_MAX_BLOCKS = 1000
"""Prompts are resampled in so many blocks if there are more of them."""

_SATURATED = 0.02
_CONFLICT = -0.1
_MAX_CONFLICTS, _MAX_FINDINGS, _MAX_EXAMPLES, _WITH_EXAMPLES = 10, 10, 3, 10
_ROUNDING = 1e-9
_TAIL = 0.025


class _Other(NamedTuple):
    """Another view of the run: a run that judged its responses, or labels if `run` is None."""

    run: str | None
    by_key: Mapping[Hashable, AuditedResponse]
    labels: Mapping[JudgedText, bool]
    read: AuditedRun

    @property
    def name(self) -> str:
        return "people's labels" if self.run is None else f"run {self.run!r}"

    def credits(self, own: AuditedResponse, criterion: str) -> bool | None:
        """Whether it credits a response of the audited run on a criterion; None if it does not say."""
        if self.run is None:
            met = self.labels.get(judged_text(own.row, criterion))
            return None if met is None else met != (criterion in own.avoided)
        found = self.by_key.get(own.key)
        if found is None or found.row.rubric != own.row.rubric or criterion not in found.verdicts:
            return None
        return found.verdicts[criterion].credited


async def audit_run(
    ledger: LedgerReader, labels: LabelStore, project_id: str, run: str, against: Sequence[str] = ()
) -> RunAudit:
    """Audit a run against others that judged the same responses, and against its labels.

    A response is the same if step, group id, prompt and text are. Of each part of a run, about 25,000 verdicts are
    read: those of the first and of the last steps. All is kept in memory, about 1 kB for each response.

    Raises:
        NotFound: the ledger does not have one of the runs.
        InvalidRequest: a run is to be compared with itself, or with too many.
    """
    if len(against) > MAX_AGAINST or run in against:
        wrong = "names the audited run itself" if run in against else f"has {len(against)} runs"
        raise invalid_field("against", f"{wrong}; name up to {MAX_AGAINST} runs that judged the same responses")
    own = await read_run(ledger, project_id, run)
    others = []
    for name in dict.fromkeys(against):
        read = await read_run(ledger, project_id, name, own.ends)
        by_key = {one.key: one for _, one in reversed([*read.responses])}
        others.append(_Other(name, by_key, {}, read))
    if said := await consensus_labels(labels, LabelFilter(project_id, run)):
        others.append(_Other(None, {}, said, AuditedRun((), [])))
    report = await run_in_thread(lambda: _Audit(own, others).report(run))
    reported = await _internalization(ledger, project_id, run, own.ends)
    return report.model_copy(update={"self_internalization": reported})


async def _internalization(
    ledger: LedgerReader, project_id: str, run: str, ends: Sequence[Steps]
) -> AuditInternalization | None:
    """Return the gap that the trainer reported, with its mean over the steps of each part; None without one."""
    charts = await ledger.run_charts(RunChartQuery(project_id, run, buckets=_MOST_STEPS, distribution=False))
    found = [one for one in charts.measures if one.name == SELF_INTERNALIZATION_GAP]
    if not found:
        return None
    means = []
    for first, last in ends:
        part = [one for one in found if first is None or last is None or first <= one.first <= last]
        means.append(fmean([one.mean for one in part], [one.steps for one in part]) if part else None)
    best = max(found, key=lambda one: one.mean)
    return AuditInternalization(
        early=means[0], late=means[-1], highest=best.mean, step=best.first, steps=sum(one.steps for one in found)
    )


class _Sample(NamedTuple):
    """What the run and another say of one response or verdict: its prompt, whether it is late, and both values."""

    prompt: bytes
    late: bool
    own: float
    other: float


class _Bootstrap:
    """Resamples of the prompts of a run, in blocks if there are many. Figures have one value, and one per resample."""

    def __init__(self, prompts: Iterable[bytes]) -> None:
        self._place = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        self._blocks = max(1, min(len(self._place), _MAX_BLOCKS))
        blocks = range(self._blocks)
        self._weights = np.vstack([np.ones((1, self._blocks)), RowBootstrap(blocks).weights(blocks)])

    def sums(self, prompts: Sequence[bytes], *columns: Sequence[float] | Floats) -> list[Floats]:
        """Return the sum of each column over its prompts, whole and resampled; shape (1 + resamples,) each."""
        blocks = np.array([self._place[prompt] % self._blocks for prompt in prompts], dtype=int)
        by_block = [np.bincount(blocks, np.asarray(column, dtype=float), self._blocks) for column in columns]
        return list((self._weights @ np.column_stack(by_block)).T)

    def share(self, samples: Sequence[tuple[bytes, bool]]) -> AuditFigure:
        """Return the share of prompts' samples that are true."""
        prompts = [prompt for prompt, _ in samples]
        count, total = self.sums(prompts, np.ones(len(samples)), [one for _, one in samples])
        return figure(_ratio(total, count), len(set(prompts)))

    def compare(self, samples: Sequence[_Sample], tests: int = 1) -> AuditComparison:
        """Return the trends of the run and another on the same samples.

        This comparison is looked for among `tests`, by which the reading's level is divided (Bonferroni).
        """
        prompts = [one.prompt for one in samples]
        late, own, other = (np.array([one[place] for one in samples], dtype=float) for place in (1, 2, 3))
        masks = (1 - late, late)
        counts = self.sums(prompts, *masks)
        n = [len({one.prompt for one in samples if one.late == part}) for part in (False, True)]
        trends, rises = [], []
        for values in (own, other):
            early, last = map(_ratio, self.sums(prompts, *(values * mask for mask in masks)), counts)
            rises.append(last - early)
            trends.append(
                AuditTrend(early=figure(early, n[0]), late=figure(last, n[1]), rise=figure(last - early, min(n)))
            )
        return AuditComparison(
            compared=len(samples),
            own=trends[0],
            other=trends[1],
            gap=figure(rises[0] - rises[1], min(n)),
            reading=_read_rises(rises[0], rises[1], min(n), tests),
        )


def figure(values: Floats, prompts: int) -> AuditFigure:
    """Return a figure of its value and its resamples, without an interval if it has too few prompts."""
    found = estimate(float(values[0]), values[1:])
    ends = (found.low, found.high) if prompts >= MIN_PROMPTS else (float("nan"),) * 2
    value, low, high = map(none_if_nan, (found.value, *ends))
    return AuditFigure(value=value, low=low, high=high, prompts=prompts)


def _ratio(total: Floats, count: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(count > 0, total / count, np.nan)


def _read_rises(own: Floats, other: Floats, prompts: int, tests: int) -> AuditReading:
    """Say what two rises show; the other's counts as none if it may be 0 and is less than half of the run's."""
    if prompts < MIN_PROMPTS:
        return "too_few"
    gap = estimate(float(own[0] - other[0]), own[1:] - other[1:])
    least = gap.value - NormalDist().inv_cdf(1 - _TAIL / tests) * float(np.nanstd(own[1:] - other[1:]))
    if not min(least, gap.low, figure(own, prompts).low or 0.0) > _ROUNDING:
        return "together"
    half = estimate(float(own[0] / 2 - other[0]), own[1:] / 2 - other[1:])
    is_none = half.low > _ROUNDING >= (figure(other, prompts).low or 0.0)
    return "rose_alone" if is_none else "rose_more"


_SUSPICION: Mapping[AuditReading, int] = {"rose_alone": 2, "rose_more": 1, "together": 0, "too_few": 0}
_ANSWERS: Mapping[AuditReading, AuditAnswer] = {
    "rose_alone": "signs",
    "rose_more": "perhaps",
    "together": "no_signs",
    "too_few": "unknown",
}
"""What a comparison answers, the most suspicious first."""


class _Audit:
    """Computes the report. Blocks."""

    def __init__(self, own: AuditedRun, others: Sequence[_Other]) -> None:
        self._own, self._others, self._notes = own, others, [*own.notes]
        judged = own.judges.keys()
        self._own_judge = {one.run for one in others if one.read.judges and one.read.judges.keys() == judged}
        self._judges: list[_Other] = []
        self._bootstrap = _Bootstrap(one.row.prompt for _, one in own.responses)
        self._counts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        for _, one in own.responses:
            self._counts.update(one.verdicts.keys())
            self._failed.update(name for name, verdict in one.verdicts.items() if verdict.credited is None)

    def report(self, run: str) -> RunAudit:
        """Return the report."""
        rewards = [
            _Sample(one.row.prompt, late, one.reward, one.reward)
            for late, one in self._own.responses
            if one.reward is not None
        ]
        references = tuple([self._reference(other) for other in self._others])
        pairs = zip(self._others, references, strict=True)
        self._judges = [other for other, one in pairs if one.kind == "judge" and other.run not in self._own_judge]
        names = [name for name, _ in self._counts.most_common(MAX_CRITERIA)]
        criteria = sorted([self._criterion(name, len(names)) for name in names], key=_suspicion)
        compared = [*self._compared(references, criteria)]
        readings = {one.reading for _, _, one in compared}
        answer: AuditAnswer = next((name for reading, name in _ANSWERS.items() if reading in readings), "unknown")
        newly_credited, rejected = self._exploitation() if self._judges else (None, None)
        return RunAudit(
            run=run or None,
            answer=answer,
            findings=tuple(_findings(compared)),
            notes=tuple(self._noted(references)),
            early=_part(self._own.parts[0]),
            late=_part(self._own.parts[1]),
            judges=self._own.models,
            reward=self._bootstrap.compare(rewards).own,
            references=references,
            newly_credited=newly_credited,
            rejected=rejected,
            criteria=tuple(self._with_examples(criteria)),
            criteria_count=len(self._counts),
            conflicts=tuple(self._conflicts(names)),
        )

    def _reference(self, other: _Other) -> AuditReference:
        samples: list[_Sample] = []
        matched = failed = 0
        same_rubric = False
        for late, one in self._own.responses:
            prompt = one.row.prompt
            if other.run is None:
                said = [(verdict, other.credits(one, name)) for name, verdict in one.verdicts.items()]
                matched += any(label is not None for _, label in said)
                samples += [
                    _Sample(prompt, late, verdict.credited, label)
                    for verdict, label in said
                    if label is not None and verdict.credited is not None
                ]
                continue
            found = other.by_key.get(one.key)
            if found is not None:
                matched += 1
                same_rubric |= found.row.rubric == one.row.rubric
                failed += sum(verdict.credited is None for verdict in found.verdicts.values())
                if one.reward is not None and found.reward is not None:
                    samples.append(_Sample(prompt, late, one.reward, found.reward))
        return AuditReference(
            run=other.run,
            kind="labels" if other.run is None else "judge" if same_rubric else "rubric",
            judges=other.read.models,
            matched=matched,
            failed=failed,
            comparison=self._bootstrap.compare(samples, len(self._others)) if samples else None,
        )

    def _criterion(self, name: str, tests: int) -> AuditedCriterion:
        given = [
            (late, one, verdict.credited)
            for late, one in self._own.responses
            if (verdict := one.verdicts.get(name)) is not None and verdict.credited is not None
        ]
        comparisons = []
        for other in self._others:
            pairs = [(late, one, own, other.credits(one, name)) for late, one, own in given]
            both = [_Sample(one.row.prompt, late, own, said) for late, one, own, said in pairs if said is not None]
            comparisons.append(self._bootstrap.compare(both, tests) if both else None)
        own_only = [_Sample(one.row.prompt, late, own, own) for late, one, own in given]
        groups: dict[tuple[bytes, Hashable], list[bool]] = defaultdict(list)
        for _, one, own in given:
            groups[one.row.prompt, (one.step, one.row.rubric, one.row.grounding)].append(own)
        apart = [(prompt, len(set(said)) > 1) for (prompt, _), said in groups.items() if len(said) > 1]
        return AuditedCriterion(
            criterion=name,
            verdicts=self._counts[name],
            failed=self._failed[name],
            credited=self._bootstrap.compare(own_only).own,
            comparisons=tuple(comparisons),
            saturated=_saturated((one.row.prompt, own) for late, one, own in given if late),
            told_apart=self._bootstrap.share(apart),
            never_needed=_saturated(apart) == "uncredited",
        )

    def _rejects(self, one: AuditedResponse, criterion: str) -> bool | None:
        """Whether all other judges reject a response on a criterion; None unless all of them say something."""
        said = [other.credits(one, criterion) for other in self._judges]
        return None if not said or None in said else not any(said)

    def _exploitation(self) -> tuple[AuditFigure | None, AuditTrend | None]:
        """Return the share that is rejected of newly credited criteria, and of all that is credited."""
        early: dict[tuple[bytes, Hashable], bool] = {}
        new: list[tuple[bytes, bool]] = []
        credited: list[_Sample] = []
        for late, one in self._own.responses:
            for name, verdict in one.verdicts.items():
                about = one.row.prompt, (one.row.rubric, name)
                if not late and verdict.credited is not None:
                    early[about] = verdict.credited or early.get(about, False)
                rejected = self._rejects(one, name) if verdict.credited else None
                if rejected is None:
                    continue
                credited.append(_Sample(one.row.prompt, late, rejected, rejected))
                if late and early.get(about) is False:
                    new.append((one.row.prompt, rejected))
        if not credited:
            return None, None
        if not {prompt for prompt, *_ in early} & {one.row.prompt for one in self._own.parts[1]}:
            self._notes.append("No prompt occurs in both parts, so it is not known what is newly credited.")
        return self._bootstrap.share(new) if new else None, self._bootstrap.compare(credited).own

    def _compared(
        self, references: Sequence[AuditReference], criteria: Sequence[AuditedCriterion]
    ) -> Iterator[tuple[_Other, str, AuditComparison]]:
        """Yield every comparison with its other and what is compared, but none of a judge with itself."""
        for place, (other, reference) in enumerate(zip(self._others, references, strict=True)):
            if other.run in self._own_judge and reference.kind == "judge":
                continue
            what = "the mean reward" if other.run is not None else "the share that is credited"
            of_criteria = [(f"the share credited for {one.criterion!r}", one.comparisons[place]) for one in criteria]
            for name, comparison in [(what, reference.comparison), *of_criteria]:
                if comparison is not None:
                    yield other, name, comparison

    def _noted(self, references: Sequence[AuditReference]) -> Iterator[str]:
        """Say what limits the report."""
        yield from self._notes
        own = [one for _, one in self._own.responses]
        if not references:
            yield (
                "There is nothing to compare with. Have the responses judged by another judge or rubric (`adjudge "
                "reverify`), or label verdicts of this run."
            )
        if min(len({one.row.prompt for one in part}) for part in self._own.parts) < MIN_PROMPTS:
            yield f"A part has fewer than {MIN_PROMPTS} prompts: too few for intervals."
        if len(self._own.judges) > 1:
            yield (
                f"The run has {len(self._own.judges)} judges, by fingerprint: a rise may come from a change of judge."
            )
        if (rubrics := len({one.row.rubric for one in own})) > 1:
            yield f"The run has {rubrics:,} rubrics. Criteria with the same id are counted together."
        if unrewarded := sum(one.reward is None for one in own):
            yield f"{unrewarded:,} of {len(own):,} responses have no reward, and are left out of figures of rewards."
        if failed := self._failed.total():
            yield f"{failed:,} of {self._counts.total():,} verdicts failed or are uncertain, and are left out."
        modes = {one.mode for one in own}
        if "ranking" in modes:
            yield "Rewards of a ranking are left out: they are relative to their group, so their mean shows no trend."
        for other, one in zip(self._others, references, strict=True):
            if not one.matched:
                yield f"Nothing to compare with {other.name}: none of the responses that were read is in it."
            elif one.kind == "judge" and other.run in self._own_judge:
                yield f"The run's own judge also judged {other.name}, so that they agree says nothing."
            elif other.run is not None and {found.mode for found in other.by_key.values()} != modes:
                yield f"Rewards of {other.name} are of another mode: compare directions, not sizes."

    def _with_examples(self, criteria: Sequence[AuditedCriterion]) -> Iterator[AuditedCriterion]:
        """Add examples to the first criteria."""
        latest = self._own.parts[1][::-1]
        for number, criterion in enumerate(criteria):
            found: list[AuditExample] = []
            for one in latest if number < _WITH_EXAMPLES else ():
                verdict = one.verdicts.get(criterion.criterion)
                if verdict is None or not verdict.credited:
                    continue
                said = {other.credits(one, criterion.criterion) for other in self._others} - {None}
                if said == {False}:
                    found.append(_example(one, verdict))
                    if len(found) == _MAX_EXAMPLES:
                        break
            yield criterion.model_copy(update={"examples": tuple(found)})

    def _conflicts(self, names: Sequence[str]) -> list[AuditConflict]:
        """Return the pairs of criteria whose phi has an interval below `_CONFLICT`, the lowest first."""
        responses = [one for _, one in self._own.responses]
        known = np.zeros((len(responses), len(names)))
        credited = np.zeros_like(known)
        for row, one in enumerate(responses):
            for column, name in enumerate(names):
                verdict = one.verdicts.get(name)
                if verdict is not None and verdict.credited is not None:
                    known[row, column], credited[row, column] = 1.0, verdict.credited
        one_known = credited.T @ known
        phis = phi(known.T @ known, one_known, one_known.T, credited.T @ credited)
        pairs = [(float(phis[a, b]), a, b) for a, b in combinations(range(len(names)), 2) if phis[a, b] < _CONFLICT]
        found = []
        for _, a, b in sorted(pairs)[: 2 * _MAX_CONFLICTS]:
            both = known[:, a] * known[:, b]
            columns = (both, credited[:, a] * both, credited[:, b] * both, credited[:, a] * credited[:, b])
            prompts = len({one.row.prompt for one, is_known in zip(responses, both, strict=True) if is_known})
            of_both = figure(phi(*self._bootstrap.sums([one.row.prompt for one in responses], *columns)), prompts)
            if of_both.high is not None and of_both.high < _CONFLICT:
                found.append(AuditConflict(first=names[a], second=names[b], phi=of_both))
        return found[:_MAX_CONFLICTS]


def _findings(compared: Iterable[tuple[_Other, str, AuditComparison]]) -> Iterator[str]:
    """Say in a sentence each which reward and which criteria rose alone, and then which rose more."""
    told = sorted([one for one in compared if _SUSPICION[one[2].reading]], key=lambda one: -_SUSPICION[one[2].reading])
    for other, what, one in told[:_MAX_FINDINGS]:
        how = "did not rise" if one.reading == "rose_alone" else "rose less"
        rises = f"{_told(one.other.rise)}, against {_told(one.own.rise)} by the run's judge"
        yield f"By {other.name}, {what} {how}: {rises}."
    if len(told) > _MAX_FINDINGS:
        yield f"The same is true of {len(told) - _MAX_FINDINGS:,} more figures of the table."


def phi(n: Floats, a: Floats, b: Floats, both: Floats) -> Floats:
    """Return the correlation of two events among n, of which a and b have each and `both` have both; else nan."""
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt(np.maximum(a * (n - a) * b * (n - b), 0))
        return np.where(spread > 0, (n * both - a * b) / spread, np.nan)


def _saturated(verdicts: Iterable[tuple[Hashable, bool | None]]) -> Literal["credited", "uncredited"] | None:
    """Return which share is close to all by Wilson's interval, of as many verdicts as their clusters are worth."""
    clusters = clusters_of((cluster, bool(yes)) for cluster, yes in verdicts)
    size = effective_size(clusters)
    if not size:
        return None
    share = sum(one.passed for one in clusters) / sum(one.verdicts for one in clusters)
    low, high = wilson(share * size, size)
    return "credited" if low > 1 - _SATURATED else "uncredited" if high < _SATURATED else None


def _suspicion(one: AuditedCriterion) -> tuple[int, float, int]:
    """Order criteria, the most suspicious first."""
    known = [each for each in one.comparisons if each is not None]
    gaps = [each.gap.value for each in known if each.gap.value is not None]
    return -max([_SUSPICION[each.reading] for each in known], default=0), -max(gaps, default=-1.0), -one.verdicts


def _example(one: AuditedResponse, verdict: AuditedVerdict) -> AuditExample:
    row = one.row
    return AuditExample(
        verdict=encode_cursor(VerdictKey(row.run, row.request, row.place, verdict.slot)),
        step=one.step,
        request_id=one.request_id,
        group=row.group_id,
        position=row.position,
    )


def _part(responses: Sequence[AuditedResponse]) -> AuditPart:
    steps = [one.step for one in responses if one.step is not None]
    return AuditPart(
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        responses=len(responses),
        prompts=len({one.row.prompt for one in responses}),
    )


def _told(figure: AuditFigure) -> str:
    """Say a difference with its interval."""
    value, low, high = (0.0 if one is None else one for one in (figure.value, figure.low, figure.high))
    return f"{value:+.3f} (95% interval {low:+.3f} to {high:+.3f})"
