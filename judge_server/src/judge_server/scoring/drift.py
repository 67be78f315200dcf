"""Drift of a judge: how far its verdicts on a control set move when its weights change.

A control set is an ordinary request for verdicts. It is judged before the first change that names it, and after each,
and compared with that first time. Both are remembered in this process only.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from math import fsum
from typing import NamedTuple

from judge_server.scheduling.weights import WeightsReport
from trainer_client.wire import Verdict, VerdictAnswer, VerdictRequest
from trainer_client.wire.judges import WeightsDrift

CONTROL_SETS = 64
"""How many control sets are remembered; the one that was not used for the longest time is forgotten."""


class Baseline(NamedTuple):
    """What a control set was judged at first, and the verdicts on it."""

    weights: WeightsReport
    verdicts: tuple[Verdict, ...]


class DriftLog:
    """Remembers the first verdicts on control sets, and the last drift by project and judge."""

    def __init__(self) -> None:
        self._baselines: OrderedDict[bytes, Baseline] = OrderedDict()
        self._last: dict[tuple[str, str], WeightsDrift] = {}

    def baseline(self, project_id: str, judge: str, control: VerdictRequest) -> Baseline | None:
        """Return the first verdicts on a control set; None if it has not been judged yet."""
        found = self._baselines.get(key := _key(project_id, judge, control))
        if found is not None:
            self._baselines.move_to_end(key)
        return found

    def remember(self, project_id: str, judge: str, control: VerdictRequest, baseline: Baseline) -> None:
        """Remember the first verdicts on a control set."""
        self._baselines[_key(project_id, judge, control)] = baseline
        while len(self._baselines) > CONTROL_SETS:
            self._baselines.popitem(last=False)

    def note(self, project_id: str, judge: str, drift: WeightsDrift | None) -> None:
        """Remember what the last change of this project said, or that it said nothing."""
        self._last.pop((project_id, judge), None)
        if drift is not None:
            self._last[project_id, judge] = drift

    def last(self, project_id: str, judge: str) -> WeightsDrift | None:
        """Return the drift at the last change of this project, if it named a control set."""
        return self._last.get((project_id, judge))


def _key(project_id: str, judge: str, control: VerdictRequest) -> bytes:
    """Return what tells control sets apart: everything but the run and step that they are recorded under."""
    asked = control.model_dump_json(exclude={"run", "step", "deadline_s", "priority"})
    return hashlib.sha256(f"{project_id}\0{judge}\0{asked}".encode()).digest()


def verdicts_of(answer: VerdictAnswer) -> tuple[Verdict, ...]:
    """Return all verdicts of an answer, in its order."""
    return tuple(chain.from_iterable(response.verdicts for group in answer.groups for response in group.responses))


def drift_between(before: Baseline, after: tuple[Verdict, ...]) -> WeightsDrift:
    """Compare the verdicts on a control set, V of them, with its first ones.

    Each figure is a mean over the pairs of verdicts that both are known, 1/V' sum f(p_now, p_first).
    """
    pairs = [pair for pair in zip(before.verdicts, after, strict=True) if all(one.score is not None for one in pair)]
    changes = list(_changes(pairs))
    return WeightsDrift(
        since=before.weights.version,
        since_tag=before.weights.tag,
        verdicts=len(pairs),
        missing=len(after) - len(pairs),
        changed=_mean([float(one.score != other.score) for one, other in pairs]),
        probability_change=_mean(changes),
        probability_distance=_mean([abs(change) for change in changes]),
    )


def _changes(pairs: list[tuple[Verdict, Verdict]]) -> Iterator[float]:
    for one, other in pairs:
        if one.probability is not None and other.probability is not None:
            yield other.probability - one.probability


def _mean(values: list[float]) -> float | None:
    return fsum(values) / len(values) if values else None
