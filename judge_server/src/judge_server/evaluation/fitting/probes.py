"""Fit a probe: what a judge's hidden states say about criteria, learnt from labels.

A probe is a direction in the hidden states at the place where the judge's answer would begin, after one of its layers
(Alain and Bengio 2016, arXiv 1610.01644). It is a logistic regression on standardised states with a penalty, so that
few labels do not fit noise. It needs no words of the judge, hence none of the layers above.

Fitting needs scikit-learn, of the extra `evaluate`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from judge_server.evaluation.capacity import PLANNING_S
from judge_server.evaluation.fitting.calibrations import (
    NotEnoughLabelsError,
    clipped,
    deal_rows,
    import_extra,
    shrunk_platt,
)
from judge_server.evaluation.judging import JudgeChoice, request_for
from judge_server.evaluation.labelled import FEWEST_LABELS_OF_A_PROBE, LabelledResponse
from judge_server.evaluation.metrics import Bools, Floats, VerdictArrays
from judge_server.judging.calibration import SATISFIED_THRESHOLD
from judge_server.ports import Batch, Call
from judge_server.scoring.judge import Judge
from judge_server.scoring.planner import AskedGroups, plan_groups
from judge_server.scoring.rubrics import ResolvedRubric
from trainer_client.wire import VerdictRequest

PENALTY = 30.0
"""scikit-learn's C, on states whose mean squared length is 1. Chosen on the half `fit` of six tasks."""

_LEAST_DEVIATION = 0.3
"""Of the median deviation of a dimension: added to each, so that a dimension that hardly varies does not decide."""


class Probe(NamedTuple):
    """A direction in the states of a layer; states have a root mean square of 1.

    Attributes:
        direction: the log-odds of yes are its product with a state; shape (hidden,).
        mean: the mean of the states that it was fitted on; shape (hidden,).
    """

    direction: Floats
    mean: Floats

    def probabilities(self, states: Floats) -> Floats:
        """Return the probabilities of yes for states of shape (n, hidden); shape (n,)."""
        p: Floats = import_extra("scipy.special").expit(states @ self.direction)
        return p


def normalised(states: Floats) -> Floats:
    """Divide states by their root mean squares, as a model's last normalisation does; shape (n, hidden)."""
    found: Floats = states / np.sqrt((states**2).mean(axis=-1, keepdims=True))
    return found


def fit_probe(rows: Sequence[str], states: Floats, labels: Bools) -> Probe:
    """Fit a probe, as sure of itself as it is right on rows that it has not seen.

    A direction fitted to few labels separates them too well. It is therefore multiplied by the slope of Platt scaling
    of what directions say about rows that they were fitted without. The intercept becomes part of the probe's
    direction, along the mean state: all states at the same place of a prompt have nearly the same product with it.

    Args:
        rows: the row of each label.
        states: normalised states; shape (n, hidden).
        labels: whether each criterion is met, both kinds; shape (n,).
    """
    direction, intercept, mean = _fit(states, labels)
    unseen = np.full(len(labels), np.nan)
    if len(set(rows)) > 1:
        for others, fold in deal_rows(rows):
            if len(set(labels[others].tolist())) == 2:
                theirs, _, center = _fit(states[others], labels[others])
                unseen[fold] = (states[fold] - center) @ theirs
    known = ~np.isnan(unseen)
    if len(set(labels[known].tolist())) == 2:
        p = clipped(import_extra("scipy.special").expit(unseen[known]))
        direction = np.exp(shrunk_platt(p, labels[known])[0][0]) * direction
    return Probe(direction + (intercept - mean @ direction) * mean / (mean @ mean), mean)


def _fit(states: Floats, labels: Bools) -> tuple[Floats, float, Floats]:
    """Fit a direction w, an intercept b and the mean m: the log-odds of a state x are w (x - m) + b."""
    mean, deviation = states.mean(axis=0), states.std(axis=0)
    deviation = deviation + _LEAST_DEVIATION * np.median(deviation)
    deviation = np.where(deviation == 0, 1.0, deviation)
    seen = (states - mean) / deviation
    length = np.sqrt((seen**2).sum(axis=1).mean()) or 1.0
    # With fewer labels than dimensions, a direction across all states would only cost its penalty.
    left, singular, right = np.linalg.svd(seen / length, full_matrices=False)
    kept = singular > 1e-9 * singular[0]
    model = import_extra("sklearn.linear_model").LogisticRegression(C=PENALTY, max_iter=3000)
    model.fit(left[:, kept] * singular[kept], labels)
    return (right[kept].T @ model.coef_[0]) / length / deviation, float(model.intercept_[0]), mean


async def calls_about(
    judge: Judge, example: LabelledResponse, options: Mapping[str, Any]
) -> dict[str, tuple[Batch, Call]]:
    """Return the call that a started judge would make for each criterion of an example, by the criterion's id.

    `options` are those of `judging`. Criteria that programs verify, or that take several calls, are left out.

    Raises:
        ServiceError: as for a request for verdicts.
    """
    asked, _ = request_for(example, "", JudgeChoice())
    request = VerdictRequest.model_validate({**asked, "judging": dict(options)})
    deadline = asyncio.get_running_loop().time() + PLANNING_S
    prepared = judge.prepared_for(request.judging, request.protocol)
    rubric = ResolvedRubric(example.criteria)
    (group,) = await plan_groups(judge, prepared, AskedGroups.of(request), [rubric], deadline)
    plan = group.responses[0].plan
    calls = {call.digests: call.question.call for call in plan.planned_calls}
    return {
        one.criterion: (plan.batch, calls[one.digests])
        for one in plan.pending
        if one.method == "judge" and not one.turns and one.digests in calls
    }


def require_labels(rows: Sequence[str], labels: Bools) -> None:
    """Check, before anything is judged, that a probe can be fitted to labels of these rows, and measured.

    Raises:
        NotEnoughLabelsError: there are fewer than `FEWEST_LABELS_OF_A_PROBE` labels, or all are alike or of one row.
        MissingExtraError: scikit-learn is not installed.
    """
    import_extra("sklearn.linear_model")
    deal_rows(rows)
    met = int(labels.sum())
    if len(labels) < FEWEST_LABELS_OF_A_PROBE or min(met, len(labels) - met) < 2:
        raise NotEnoughLabelsError(
            f"{len(labels)} labels, {met} of them met, are too few for a probe; give at least "
            f"{FEWEST_LABELS_OF_A_PROBE}, some met and some unmet, or calibrate the judge's words: adjudge calibrate"
        )


def cross_validate_probe(rows: Sequence[str], states: Floats, labels: Bools) -> VerdictArrays:
    """Judge every state by a probe that was fitted without its row.

    Raises:
        NotEnoughLabelsError: there are fewer than `FEWEST_LABELS_OF_A_PROBE` labels, they are of one row, or without
            some of the rows all are the same.
    """
    require_labels(rows, labels)
    p = np.zeros(len(labels))
    for others, fold in deal_rows(rows):
        if len(set(labels[others].tolist())) < 2:
            raise NotEnoughLabelsError("nearly all met or unmet labels are of the same rows; label more rows")
        kept = [row for row, other in zip(rows, others, strict=True) if other]
        p[fold] = fit_probe(kept, states[others], labels[others]).probabilities(states[fold])
    return VerdictArrays(labels, p >= SATISFIED_THRESHOLD, p)
