"""Fit a calibration: a map from the judge's raw probability of yes to how often such verdicts are right.

Four methods, from few labels to many: temperature (one number), Platt scaling (two), beta calibration (three; Kull et
al. 2017) and isotonic regression (one per step). Needs scikit-learn, the extra `evaluate`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from judge_server.evaluation.corrected_rates import measure_error
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.metrics import Bools, Estimate, Floats, RowBootstrap, VerdictArrays
from judge_server.evaluation.report import Measured
from judge_server.judging.calibration import Calibration, ProbabilityMap, criterion_key
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.ledger import JudgeError

Method: TypeAlias = Literal["temperature", "platt", "beta", "isotonic"]

METHODS: tuple[Method, ...] = ("temperature", "platt", "beta", "isotonic")

FEWEST_LABELS = 20
"""The fewest labels that anything is fitted on."""

LABELS_FOR: Mapping[Method, int] = {"temperature": FEWEST_LABELS, "platt": 60, "beta": 1000}
"""From how many labels on the method `auto` takes each, as the simulation in docs/evaluation.md shows. It never takes
`isotonic`, which was not the best method at any size that was tried, up to 3,000 labels."""

LABELS_OF_A_PART = 100
"""The fewest labels of a kind or a criterion for a map of its own, with at least a tenth of them met and unmet."""

_RIDGE = 1.0
"""The weight of the penalty on coefficients' distance from those of the neutral map, in labels."""

_CLIP = 1e-3
"""Raw probabilities nearer to 0 or 1 are fitted as these, so that a few saturated ones do not decide the slope."""


class NotEnoughLabelsError(ValueError):
    """There are too few labels, or all are the same."""


class MissingExtraError(ImportError):
    """scikit-learn is not installed."""


def best_method(labels: int) -> Method:
    """Return the method for a number of labels."""
    return [method for method, least in LABELS_FOR.items() if least <= max(labels, FEWEST_LABELS)][-1]


def fit_map(
    raw: Sequence[float], labels: Sequence[bool], method: Method, threshold: float | Literal["balanced"] = 0.5
) -> ProbabilityMap:
    """Fit one map.

    Args:
        raw: raw probabilities of yes, in [0, 1]; shape (n,).
        labels: whether each criterion is met; shape (n,).
        method: the method.
        threshold: the lowest calibrated probability that counts as yes; `balanced` chooses the one with the greatest
            balanced accuracy on these labels.

    Raises:
        NotEnoughLabelsError: there are fewer than `FEWEST_LABELS` labels, or all are the same.
        ValueError: the labels do not rise with the raw probability, so no map keeps its order.
        MissingExtraError: scikit-learn is not installed.
    """
    p, y = np.clip(np.asarray(raw, dtype=float), _CLIP, 1 - _CLIP), np.asarray(labels, dtype=bool)
    if len(y) < FEWEST_LABELS or y.all() or not y.any():
        raise NotEnoughLabelsError(
            f"{len(y)} labels, {int(y.sum())} of them met, are too few to fit on; give at least {FEWEST_LABELS}, some "
            "met and some unmet"
        )
    fitted = _FITS[method](p, y)
    if threshold == "balanced":
        threshold = _balanced_threshold(np.array([fitted.calibrate(float(one)) for one in p]), y)
    return ProbabilityMap(fitted.slope, fitted.intercept, fitted.slope_of_no, fitted.points, threshold)


def _temperature(p: Floats, y: Any) -> ProbabilityMap:
    (slope,) = _logistic(_log_odds(p)[:, None], y, np.array([1.0]))
    return ProbabilityMap(_rising(slope))


def _platt(p: Floats, y: Any) -> ProbabilityMap:
    slope, intercept = _logistic(np.column_stack([_log_odds(p), np.ones(len(p))]), y, np.array([1.0, 0.0]))
    return ProbabilityMap(_rising(slope), intercept)


def _beta(p: Floats, y: Any) -> ProbabilityMap:
    """Fit all three coefficients; one that comes out negative is left out, and the others are fitted again."""
    columns = np.column_stack([np.log(p), -np.log1p(-p), np.ones(len(p))])
    kept = [0, 1, 2]
    while True:
        found = dict(zip(kept, _logistic(columns[:, kept], y, np.array([1.0, 1.0, 0.0])[kept]), strict=True))
        negative = [place for place in (0, 1) if found.get(place, 0.0) < 0]
        if not negative:
            break
        kept.remove(min(negative, key=lambda place: found[place]))
    _rising(max(found.get(0, 0.0), found.get(1, 0.0)))
    return ProbabilityMap(found.get(0, 0.0), found[2], found.get(1, 0.0))


def _isotonic(p: Floats, y: Any) -> ProbabilityMap:
    isotonic = import_extra("sklearn.isotonic").IsotonicRegression(
        y_min=0.5 / len(y), y_max=1 - 0.5 / len(y), out_of_bounds="clip"
    )
    isotonic.fit(p, y.astype(float))
    points = zip(isotonic.X_thresholds_.tolist(), isotonic.y_thresholds_.tolist(), strict=True)
    fitted = ProbabilityMap(points=tuple([(round(x, 6), round(v, 6)) for x, v in points]))
    _rising(fitted.points[-1][1] - fitted.points[0][1])
    return fitted


_FITS: Mapping[Method, Callable[[Floats, Any], ProbabilityMap]] = {
    "temperature": _temperature,
    "platt": _platt,
    "beta": _beta,
    "isotonic": _isotonic,
}


def _log_odds(p: Floats) -> Floats:
    odds: Floats = np.log(p) - np.log1p(-p)
    return odds


def _logistic(x: Floats, y: Any, neutral: Floats) -> list[float]:
    """Fit a logistic regression with a ridge towards the neutral map's coefficients; shapes (n, k), (n,), (k,).

    The offset x @ neutral cannot be given to scikit-learn, so the ridge is written as labels: for each coefficient a
    pair of observations at its scale that the neutral map predicts, of weight `_RIDGE` together.
    """
    linear = import_extra("sklearn.linear_model")
    at = np.diag(np.maximum(np.std(x, axis=0), np.abs(x).mean(axis=0)))
    expected = 1 / (1 + np.exp(-(at @ neutral)))
    features = np.concatenate([x, at, at])
    labels = np.concatenate([y.astype(int), np.ones(len(at), dtype=int), np.zeros(len(at), dtype=int)])
    weights = np.concatenate([np.ones(len(y)), _RIDGE * expected, _RIDGE * (1 - expected)])
    model = linear.LogisticRegression(C=1e6, fit_intercept=False, max_iter=1000, tol=1e-8)
    return [float(one) for one in model.fit(features, labels, sample_weight=weights).coef_[0]]


def _rising(slope: float) -> float:
    if slope <= 0:
        raise ValueError(
            "the labels do not rise with the judge's probabilities, so no calibration can help: measure the judge with "
            "`adjudge evaluate`, and take another one for these criteria"
        )
    return slope


def _balanced_threshold(calibrated: Floats, y: Any) -> float:
    """Return the threshold with the greatest balanced accuracy, in the middle between two probabilities."""
    values = np.unique(calibrated)
    cuts = np.concatenate([values[:1] / 2, (values[1:] + values[:-1]) / 2, (values[-1:] + 1) / 2])
    said = calibrated[None, :] >= cuts[:, None]
    scores = (said[:, y].mean(axis=1) + (~said[:, ~y]).mean(axis=1)) / 2
    best = cuts[scores >= scores.max() - 1e-12]
    return float(np.clip(best[np.argmin(np.abs(best - 0.5))], 1e-6, 1 - 1e-6))


def import_extra(module: str) -> Any:
    """Import a module of scikit-learn or scipy. Raises `MissingExtraError` if they are not installed."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "fitting needs scikit-learn; install it with: pip install 'adjudge-server[evaluate]'"
        ) from error


def fit_calibration(
    measured: Sequence[Measured],
    descriptions: Mapping[tuple[str, str], str],
    *,
    name: str,
    method: Method | Literal["auto"] = "auto",
    threshold: float | Literal["balanced"] = 0.5,
) -> tuple[Method, Calibration]:
    """Fit a calibration, with maps of their own for the kinds and criteria that have enough labels.

    Args:
        measured: labelled verdicts; those without a raw probability are left out.
        descriptions: the description of each criterion, by row and id.
        name: the calibration's name.
        method: the method, or `auto` for the best one for the number of labels.
        threshold: as in `fit_map`.

    Raises:
        NotEnoughLabelsError, ValueError, MissingExtraError: as in `fit_map`.
    """
    known = [one for one in measured if one.score is not None and one.raw_probability is not None]
    chosen = best_method(len(known)) if method == "auto" else method
    by_kind: dict[CriterionKind, list[Measured]] = {}
    by_text: dict[str, list[Measured]] = {}
    for one in known:
        by_kind.setdefault(one.kind, []).append(one)  # type: ignore[arg-type]
        by_text.setdefault(criterion_key(descriptions[one.row, one.criterion]), []).append(one)

    def fit(some: Sequence[Measured]) -> ProbabilityMap:
        own = best_method(len(some)) if method == "auto" else chosen
        return fit_map([_raw(one) for one in some], [one.label >= MET_FROM for one in some], own, threshold)

    default = fit(known)
    kinds = {kind: fit(some) for kind, some in by_kind.items() if len(by_kind) > 1 and _enough(some)}
    texts = {text: fit(some) for text, some in by_text.items() if len(by_text) > 1 and _enough(some)}
    return chosen, Calibration(name, digest_of(known), len(known), default, kinds, texts)


def _raw(one: Measured) -> float:
    assert one.raw_probability is not None
    return one.raw_probability


def _enough(some: Sequence[Measured]) -> bool:
    met = sum(one.label >= MET_FROM for one in some)
    return len(some) >= LABELS_OF_A_PART and min(met, len(some) - met) >= len(some) / 10


def digest_of(measured: Sequence[Measured]) -> str:
    """Return the digest of labelled verdicts, in any order."""
    lines = sorted(repr((one.row, one.criterion, one.label, one.raw_probability)) for one in measured)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def before_and_after(
    measured: Sequence[Measured], descriptions: Mapping[tuple[str, str], str], calibration: Calibration
) -> dict[str, dict[str, Estimate]]:
    """Compare raw and calibrated probabilities on verdicts that nothing was fitted on.

    Returns:
        `raw`, `calibrated` and their `difference`, paired by resample: each with `balanced_accuracy`, `ece`, `brier`
        and the rates `sensitivity` and `specificity`. These two leave out verdicts that the calibration's band makes
        uncertain, as pass rates do.
    """
    from judge_server.evaluation.metrics import estimate

    rows, sample = _calibrated(measured, descriptions, calibration)
    raw = np.array([_raw(one) for one in _with_probability(measured)])
    weights = RowBootstrap(rows).weights(rows, sample.labels)
    samples = {"raw": VerdictArrays(sample.labels, raw >= 0.5, raw), "calibrated": sample}
    certain = {"raw": np.ones(len(rows), dtype=bool), "calibrated": _certain(sample, calibration)}
    plain = {name: _with_rates(one, np.ones((1, len(rows))), certain[name]) for name, one in samples.items()}
    drawn = {name: _with_rates(one, weights, certain[name]) for name, one in samples.items()}
    names = ("balanced_accuracy", "ece", "brier", "sensitivity", "specificity")
    found = {
        name: {f: estimate(float(plain[name][f][0]), drawn[name][f]) for f in names} for name in ("raw", "calibrated")
    }
    found["difference"] = {
        f: estimate(float(plain["calibrated"][f][0] - plain["raw"][f][0]), drawn["calibrated"][f] - drawn["raw"][f])
        for f in names
    }
    return found


def calibrated_error(
    measured: Sequence[Measured], descriptions: Mapping[tuple[str, str], str], calibration: Calibration
) -> JudgeError | None:
    """Measure the calibrated judge's error on verdicts that nothing was fitted on; None without both labels.

    Verdicts that the calibration's band makes uncertain are left out: they enter no pass rate either.
    """
    rows, sample = _calibrated(measured, descriptions, calibration)
    certain = _certain(sample, calibration)
    known = [row for row, one in zip(rows, certain, strict=True) if one]
    return measure_error(known, sample.labels[certain].tolist(), sample.satisfied[certain].tolist())


def _certain(sample: VerdictArrays, calibration: Calibration) -> Bools:
    """Which verdicts the calibration's band does not make uncertain."""
    low, high = calibration.uncertain_band or (0.0, 0.0)
    return (sample.probabilities < low) | (sample.probabilities >= high)


def _with_probability(measured: Sequence[Measured]) -> list[Measured]:
    return [one for one in measured if one.raw_probability is not None]


def _calibrated(
    measured: Sequence[Measured], descriptions: Mapping[tuple[str, str], str], calibration: Calibration
) -> tuple[list[str], VerdictArrays]:
    """Apply a calibration to verdicts with a probability; return their rows, and the verdicts it makes of them."""
    from judge_server.evaluation.labelled import criterion as make

    known = _with_probability(measured)
    maps = [
        calibration.scaling_for(make("c", descriptions[one.row, one.criterion], one.kind or "point")) for one in known
    ]
    labels = np.array([one.label >= MET_FROM for one in known], dtype=bool)
    calibrated = np.array([of.calibrate(_raw(one)) for of, one in zip(maps, known, strict=True)])
    said = calibrated >= np.array([of.threshold for of in maps])
    return [one.row for one in known], VerdictArrays(labels, said, calibrated)


def _with_rates(sample: VerdictArrays, weights: Floats, certain: Bools) -> dict[str, Floats]:
    yes, no = sample.labels & certain, ~sample.labels & certain
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = {
            "sensitivity": weights[:, yes] @ sample.satisfied[yes] / weights[:, yes].sum(axis=1),
            "specificity": weights[:, no] @ ~sample.satisfied[no] / weights[:, no].sum(axis=1),
        }
    return {**sample.figures(weights), **rates}  # type: ignore[dict-item]
