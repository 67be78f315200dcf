"""Fit a calibration: a map from the judge's raw probability of yes to how often such verdicts are right.

Platt scaling is fitted with shrinkage, so that ten labels help: the maps of kinds and of criteria are drawn towards
that of all labels, and this one towards the judge's own probabilities. Beta calibration (Kull et al. 2017) and isotonic
regression have more freedom, and need a thousand labels and more.

Nothing is measured on labels that it was fitted on: `cross_validate` calibrates each verdict by maps that were fitted
without its row. Fitting needs scikit-learn and scipy, of the extra `evaluate`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from judge_server.evaluation.corrected_rates import clusters_of, effective_size, measure_error
from judge_server.evaluation.labelled import criterion as make_criterion
from judge_server.evaluation.metrics import (
    Bools,
    Estimate,
    Floats,
    RowBootstrap,
    VerdictArrays,
    estimate,
    weighted_auroc,
)
from judge_server.evaluation.report import Measured
from judge_server.judging.calibration import SATISFIED_THRESHOLD, Calibration, ProbabilityMap, criterion_key
from trainer_client.wire import UncertainBand
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.runs import JudgeError

Method: TypeAlias = Literal["platt", "beta", "isotonic"]

METHODS: tuple[Method, ...] = get_args(Method)

FEWEST_LABELS = 8
"""The fewest labels that anything is fitted on."""

LABELS_FOR_BETA = 1000
"""From how many labels on the method `auto` takes beta calibration."""

LABELS_OF_A_PART = 100
"""The fewest labels of a kind or a criterion for a map of its own by `beta` or `isotonic`, or for a `balanced`
threshold of its own, with at least a tenth of them met and unmet."""

LABELS_OF_A_SHRUNK_PART = 4
"""The fewest labels of a kind or a criterion for a map of its own by `platt`, which shrinks it."""

FOLDS = 10
"""The parts into which rows are dealt to measure a calibration; with fewer rows, each is a part."""

_CLIP = 1e-3
"""Raw probabilities nearer to 0 or 1 are fitted as these, so that a few saturated ones do not decide the slope."""


class Spread(NamedTuple):
    """How far maps may lie from the one that they are drawn to: the standard deviations of their normal priors.

    Attributes:
        log_slope: of the logarithm of the slope; 0.7 is a factor of 2.
        intercept: of the intercept, in log-odds.
    """

    log_slope: float
    intercept: float


SPREAD_OF_JUDGES = Spread(0.8, 1.5)
"""Of the map of all labels around the judge's own probabilities."""

SPREAD_OF_PARTS = Spread(0.6, 1.2)
"""Of the map of a kind around that of all labels, and of a criterion's around that of its kind."""


class NotEnoughLabelsError(ValueError):
    """There are too few labels, or all are the same."""


class MissingExtraError(ImportError):
    """scikit-learn is not installed; the message says how to install it."""

    code = "missing-extra"


def best_method(labels: int) -> Method:
    """Return the method for a number of labels."""
    return "beta" if labels >= LABELS_FOR_BETA else "platt"


def clipped(p: Sequence[float] | Floats) -> Floats:
    """Return probabilities at least `_CLIP` away from 0 and 1; shape (n,)."""
    inside: Floats = np.clip(np.asarray(p, dtype=float), _CLIP, 1 - _CLIP)
    return inside


def _check_labels(p: Floats, y: Bools) -> None:
    met, unmet = int(y.sum()), int((~y).sum())
    if len(y) < FEWEST_LABELS or not met or not unmet:
        raise NotEnoughLabelsError(
            f"{len(y)} labels, {met} of them met, are too few to fit on; give at least {FEWEST_LABELS}, some met and "
            "some unmet"
        )
    if not _rises(p, y, slack=2.0):
        raise ValueError(
            "the labels do not rise with the judge's probabilities, so no calibration can help: measure the judge with "
            "`adjudge evaluate`, and take another one for these criteria"
        )


def _rises(p: Floats, y: Bools, slack: float = 0.0) -> bool:
    """Whether labels of both kinds rise with the probability, give or take `slack` deviations.

    The area under the ROC curve is compared with one half; its deviation is that of labels that have nothing to do with
    the probability (Mann and Whitney 1947).
    """
    deviation = np.sqrt((len(y) + 1) / (12 * int(y.sum()) * int((~y).sum())))
    return bool(weighted_auroc(p, y, np.ones((1, len(y))))[0] > 0.5 - slack * deviation)


def _with_threshold(
    fitted: ProbabilityMap, p: Floats, y: Bools, threshold: float | Literal["balanced"]
) -> ProbabilityMap:
    if threshold == "balanced":
        threshold = _balanced_threshold(np.array([fitted.calibrate(float(one)) for one in p]), y)
    return replace(fitted, threshold=threshold)


def shrunk_platt(p: Floats, y: Bools, member: Bools | None = None) -> Floats:
    """Fit Platt scaling with shrinkage: the posterior mode of a slope and an intercept, and of each part's own.

    The log-odds of a label are exp(u) x + a, for x the log-odds of the raw probability. With u and a the sums over the
    parts that a verdict belongs to, and normal priors of mean 0 with the deviations of `SPREAD_OF_JUDGES` for all
    labels and `SPREAD_OF_PARTS` for each part, a slope is above 0 and without labels a map is neutral.

    Args:
        p: raw probabilities; shape (n,).
        y: whether each criterion is met; shape (n,).
        member: which verdicts belong to each part; shape (n, parts).

    Returns:
        log-slopes u and intercepts a of all labels, and of each part, to be added; shape (1 + parts, 2).
    """
    parts = np.zeros((len(p), 0), dtype=bool) if member is None else member
    belongs = np.column_stack([np.ones(len(p)), parts])
    deviations = np.array([SPREAD_OF_JUDGES, *[SPREAD_OF_PARTS] * parts.shape[1]])
    x, expit = np.log(p) - np.log1p(-p), import_extra("scipy.special").expit

    def loss(flat: Floats) -> tuple[float, Floats]:
        own = flat.reshape(-1, 2)
        u, a = (belongs @ own).T
        odds = np.exp(u) * x + a
        error = expit(odds) - y
        slopes = np.column_stack([belongs.T @ (error * np.exp(u) * x), belongs.T @ error]) + own / deviations**2
        value = np.logaddexp(0, np.where(y, -odds, odds)).sum() + ((own / deviations) ** 2).sum() / 2
        return float(value), slopes.ravel()

    start = np.zeros(2 * belongs.shape[1])
    found = import_extra("scipy.optimize").minimize(loss, start, jac=True, method="L-BFGS-B")
    mode: Floats = found.x.reshape(-1, 2)
    return mode


def _map_of(own: Floats) -> ProbabilityMap:
    """Return the map of a log-slope and an intercept; shape (2,)."""
    return ProbabilityMap(float(np.exp(own[0])), float(own[1]))


def _beta(p: Floats, y: Bools) -> ProbabilityMap:
    """Fit all three coefficients; one that comes out negative is left out, and the others are fitted again."""
    columns = np.column_stack([np.log(p), -np.log1p(-p), np.ones(len(p))])
    kept = [0, 1, 2]
    while True:
        model = import_extra("sklearn.linear_model").LogisticRegression(C=1e3, fit_intercept=False, max_iter=1000)
        found = dict(zip(kept, model.fit(columns[:, kept], y).coef_[0].tolist(), strict=True))
        negative = [place for place in (0, 1) if found.get(place, 0.0) < 0]
        if not negative:
            return ProbabilityMap(found.get(0, 0.0), found[2], found.get(1, 0.0))
        kept.remove(min(negative, key=lambda place: found[place]))


def _isotonic(p: Floats, y: Bools) -> ProbabilityMap:
    isotonic = import_extra("sklearn.isotonic").IsotonicRegression(
        y_min=0.5 / len(y), y_max=1 - 0.5 / len(y), out_of_bounds="clip"
    )
    isotonic.fit(p, y.astype(float))
    points = zip(isotonic.X_thresholds_.tolist(), isotonic.y_thresholds_.tolist(), strict=True)
    return ProbabilityMap(points=tuple([(round(x, 6), round(v, 6)) for x, v in points]))


_FITS: Mapping[Method, Callable[[Floats, Bools], ProbabilityMap]] = {
    "beta": _beta,
    "isotonic": _isotonic,
}


def _balanced_threshold(calibrated: Floats, y: Bools) -> float:
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
    """Fit a calibration, with maps of their own for kinds and criteria.

    Args:
        measured: labelled verdicts; those without a raw probability are left out.
        descriptions: the description of each criterion, by row and id.
        method: the method, or `auto` for the best one for the number of labels.
        threshold: the lowest calibrated probability that counts as yes; `balanced` chooses the one with the greatest
            balanced accuracy on these labels.

    Raises:
        NotEnoughLabelsError: there are fewer than `FEWEST_LABELS` labels, or all are the same.
        ValueError: the labels do not rise with the raw probability, so no map keeps its order.
        MissingExtraError: scikit-learn is not installed.
    """
    known = _with_probability(measured)
    chosen = best_method(len(known)) if method == "auto" else method
    p, y = clipped([_raw(one) for one in known]), _labels(known)
    _check_labels(p, y)
    return chosen, _fit(known, descriptions, name, chosen, threshold)


def fit_maps(measured: Sequence[Measured], descriptions: Mapping[tuple[str, str], str]) -> Calibration:
    """Fit Platt scaling with shrinkage to verdicts with a raw probability, however few: what the labels say so far."""
    return _fit(measured, descriptions, "so far", "platt", SATISFIED_THRESHOLD)


def _fit(
    known: Sequence[Measured],
    descriptions: Mapping[tuple[str, str], str],
    name: str,
    method: Method,
    threshold: float | Literal["balanced"],
) -> Calibration:
    """Fit a calibration on verdicts with a raw probability, however few."""
    p, y = clipped([_raw(one) for one in known]), _labels(known)
    one_kind = bool(y.all() or not y.any())  # a fold may have labels of one kind only, or falling ones
    if one_kind and threshold == "balanced":
        threshold = SATISFIED_THRESHOLD
    if one_kind or not _rises(p, y):
        method = "platt"
    kinds = np.array([one.kind for one in known], dtype=object)
    texts = np.array([criterion_key(descriptions[one.row, one.criterion]) for one in known], dtype=object)
    of_kind, of_text = _parts(kinds, y, method), _parts(texts, y, method)
    of_text = {text: of for text, of in of_text.items() if len(set(kinds[of])) == 1}  # others follow their kind
    parts = [*of_kind.values(), *of_text.values()]
    if method == "platt":
        own = shrunk_platt(p, y, np.column_stack(parts) if parts else None)
        places = {part: place for place, part in enumerate([*of_kind, *of_text], 1)}
        default, maps = _map_of(own[0]), []
        for part in of_kind:
            maps.append(_map_of(own[0] + own[places[part]]))
        for part, of in of_text.items():
            kind = places.get(kinds[of][0])
            maps.append(_map_of(own[0] + own[places[part]] + (own[kind] if kind else 0.0)))
    else:
        default = _FITS[method](p, y)
        maps = [_FITS[method](p[of], y[of]) if _rises(p[of], y[of]) else default for of in parts]
    default = _with_threshold(default, p, y, threshold)
    found = [
        _with_threshold(fitted, p[of], y[of], threshold if _enough(y[of]) else default.threshold)
        for fitted, of in zip(maps, parts, strict=True)
    ]
    by_kind: dict[CriterionKind, ProbabilityMap] = dict(zip(of_kind, found, strict=False))
    by_text = dict(zip(of_text, found[len(of_kind) :], strict=True))
    return Calibration(name, digest_of(known), len(known), default, by_kind, by_text)


def _parts(names: Any, y: Bools, method: Method) -> dict[Any, Bools]:
    """Return which verdicts belong to each kind or criterion that gets a map of its own, if there are several."""
    found = {name: names == name for name in dict.fromkeys(names)}
    if len(found) < 2:
        return {}
    enough = _enough if method != "platt" else lambda y: len(y) >= LABELS_OF_A_SHRUNK_PART
    return {name: of for name, of in found.items() if enough(y[of])}


def _with_probability(measured: Sequence[Measured]) -> list[Measured]:
    return [one for one in measured if one.score is not None and one.raw_probability is not None]


def _raw(one: Measured) -> float:
    assert one.raw_probability is not None
    return one.raw_probability


def _labels(some: Sequence[Measured]) -> Bools:
    return np.array([one.is_labelled_met for one in some], dtype=bool)


def _enough(y: Bools) -> bool:
    """Whether a part has labels enough for a map that no other labels support."""
    return len(y) >= LABELS_OF_A_PART and min(int(y.sum()), int((~y).sum())) >= len(y) / 10


def digest_of(measured: Sequence[Measured]) -> str:
    """Return the digest of labelled verdicts, in any order."""
    lines = sorted(repr((one.row, one.criterion, one.label, one.raw_probability)) for one in measured)
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


class OutOfFold(NamedTuple):
    """Labelled verdicts, each calibrated by maps that were fitted without its row; arrays of shape (n,).

    Attributes:
        rows: the row of each verdict.
        raw, calibrated: the verdicts before and after.
        certain: which of the calibrated ones are outside the calibration's band.
    """

    rows: tuple[str, ...]
    raw: VerdictArrays
    calibrated: VerdictArrays
    certain: Bools

    def with_band(self, band: UncertainBand | None) -> "OutOfFold":
        """Return the same verdicts with another band; None for no band."""
        return self._replace(certain=outside(self.calibrated.probabilities, band or (0.0, 0.0)))


def outside(p: Floats, band: UncertainBand) -> Bools:
    """Whether each probability is outside a band, so that its verdict is decided; shape (n,)."""
    low, high = band
    return (p < low) | (p >= high)


def deal_rows(rows: Sequence[str]) -> list[tuple[Bools, Bools]]:
    """Deal rows into at most `FOLDS` parts by a fixed hash.

    Returns:
        for each part, which labels are of other rows, and which of its own; shape (n,) each.

    Raises:
        NotEnoughLabelsError: there is only one row.
    """
    dealt = sorted(set(rows), key=lambda row: hashlib.sha256(row.encode()).digest())
    if len(dealt) < 2:
        raise NotEnoughLabelsError("all labels are of one row, so nothing can be measured on another; label more rows")
    part_of = {row: place % FOLDS for place, row in enumerate(dealt)}
    parts = np.array([part_of[row] for row in rows])
    return [(parts != part, parts == part) for part in np.unique(parts)]


def cross_validate(
    measured: Sequence[Measured],
    descriptions: Mapping[tuple[str, str], str],
    *,
    method: Method,
    threshold: float | Literal["balanced"] = 0.5,
) -> OutOfFold:
    """Calibrate every verdict by maps that were fitted without its row.

    Rows are dealt into `FOLDS` parts by a fixed hash. Every part is calibrated by maps that were fitted on the others.

    Raises:
        NotEnoughLabelsError: all labels are of one row.
        MissingExtraError: scikit-learn is not installed.
    """
    known = _with_probability(measured)
    folds = deal_rows([one.row for one in known])
    calibrated, satisfied = np.zeros(len(known)), np.zeros(len(known), dtype=bool)
    for others, fold in folds:
        kept = [one for one, other in zip(known, others, strict=True) if other]
        maps = _fit(kept, descriptions, "fold", method, threshold)
        for place in np.flatnonzero(fold):
            one = known[place]
            own = maps.scaling_for(make_criterion("c", descriptions[one.row, one.criterion], one.kind or "point"))
            calibrated[place] = own.calibrate(_raw(one))
            satisfied[place] = calibrated[place] >= own.threshold
    labels, raw = _labels(known), np.array([_raw(one) for one in known])
    return OutOfFold(
        tuple([one.row for one in known]),
        VerdictArrays(labels, raw >= SATISFIED_THRESHOLD, raw),
        VerdictArrays(labels, satisfied, calibrated),
        np.ones(len(known), dtype=bool),
    )


def before_and_after(verdicts: OutOfFold) -> dict[str, dict[str, Estimate]]:
    """Compare raw and calibrated probabilities.

    Returns:
        `raw`, `calibrated` and their `difference`, paired by resample: each with `balanced_accuracy`, `auroc`, `ece`,
        `brier` and the rates `sensitivity` and `specificity`. These two leave out verdicts that the calibration's band
        makes uncertain, as pass rates do.
    """
    weights = RowBootstrap(verdicts.rows).weights(verdicts.rows, verdicts.raw.labels)
    one_each = np.ones((1, len(verdicts.rows)))
    every = np.ones(len(verdicts.rows), dtype=bool)
    samples = {"raw": (verdicts.raw, every), "calibrated": (verdicts.calibrated, verdicts.certain)}
    plain = {name: _with_rates(sample, one_each, certain) for name, (sample, certain) in samples.items()}
    drawn = {name: _with_rates(sample, weights, certain) for name, (sample, certain) in samples.items()}
    names = ("balanced_accuracy", "auroc", "ece", "brier", "sensitivity", "specificity")
    found = {
        name: {f: estimate(float(plain[name][f][0]), drawn[name][f]) for f in names} for name in ("raw", "calibrated")
    }
    found["difference"] = {
        f: estimate(float(plain["calibrated"][f][0] - plain["raw"][f][0]), drawn["calibrated"][f] - drawn["raw"][f])
        for f in names
    }
    return found


def calibrated_error(verdicts: OutOfFold) -> JudgeError | None:
    """Measure the calibrated judge's error; None without both labels.

    Verdicts that the calibration's band makes uncertain are left out: they enter no pass rate either.
    """
    certain = verdicts.certain
    known = [row for row, one in zip(verdicts.rows, certain, strict=True) if one]
    sample = verdicts.calibrated
    return measure_error(known, sample.labels[certain].tolist(), sample.satisfied[certain].tolist())


def _with_rates(sample: VerdictArrays, weights: Floats, certain: Bools) -> dict[str, Floats]:
    yes, no = sample.labels & certain, ~sample.labels & certain
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = {
            "sensitivity": weights[:, yes] @ sample.satisfied[yes] / weights[:, yes].sum(axis=1),
            "specificity": weights[:, no] @ ~sample.satisfied[no] / weights[:, no].sum(axis=1),
        }
    return {**sample.figures(weights), **rates}  # type: ignore[dict-item]


CONFIDENCE = 0.95
"""The confidence with which a band keeps its promised rate of errors."""

_STARTS = (0, 2)
"""The wrong verdicts that the first band of each sequence of tests may contain."""


def band_for_error(verdicts: OutOfFold, error: float, threshold: float = SATISFIED_THRESHOLD) -> UncertainBand:
    """Return the narrowest band outside which at most a rate of `error` of the verdicts is wrong, with `CONFIDENCE`.

    Bands are tried from a wide one to narrower ones, as long as Clopper and Pearson's upper bound of the rate stays
    within `error`: testing in an order that no verdict decides, and stopping at the first failure, keeps the confidence
    (Learn then Test; Angelopoulos et al. 2021, arXiv 2110.01052). There are two such sequences, each with half of the
    risk. The first starts at the widest band that can pass if no decided verdict is wrong, the second at the widest
    that can pass if two are. Verdicts of one row count as fewer independent ones, by how alike their errors are.

    Args:
        verdicts: labelled verdicts that the maps were not fitted on.
        error: the wanted rate of wrong verdicts among those that are decided, in (0, 1).
        threshold: the threshold of the maps, towards which the band narrows.

    Raises:
        NotEnoughLabelsError: no band can be shown to keep the rate; the message says what was seen.
    """
    p, level = verdicts.calibrated.probabilities, 1 - (1 - CONFIDENCE) / len(_STARTS)
    wrong = verdicts.calibrated.satisfied != verdicts.calibrated.labels
    share = effective_size(clusters_of(zip(verdicts.rows, wrong.tolist(), strict=True))) / max(1, len(p))
    edges = [(threshold * (1 - t), threshold + t * (1 - threshold)) for t in np.linspace(0.99, 0, 100)]
    decided = [outside(p, edge) for edge in edges]
    counts = [share * of.sum() for of in decided]
    bounds = [
        upper_bound(float(wrong[of].mean()), n, level) if n else 1.0 for of, n in zip(decided, counts, strict=True)
    ]
    least = [_fewest(allowed, error, level) for allowed in _STARTS]
    starts = [start for n in least if (start := next((i for i, m in enumerate(counts) if m >= n), None)) is not None]
    if not starts:
        raise NotEnoughLabelsError(
            f"{len(p)} labels, which count as {counts[-1]:.0f} independent ones, are too few to promise that at most "
            f"{100 * error:g}% of the decided verdicts are wrong: at least {least[0]:,} decided ones without an error "
            "are needed. Label more rows, or raise --error"
        )
    kept = -1
    for start in starts:
        failed = next((place for place in range(start, len(edges)) if bounds[place] > error), len(edges))
        kept = max(kept, failed - 1 if failed > start else -1)
    if kept < 0:
        first = min(starts, key=lambda start: bounds[start])
        raise NotEnoughLabelsError(
            f"{len(p)} labels cannot show that at most {100 * error:g}% of the decided verdicts are wrong: even of the "
            f"{int(decided[first].sum()):,} that the judge is surest of, up to {bounds[first]:.0%} may be. Label more "
            "rows, raise --error, or take a better judge"
        )
    low, high = edges[kept]
    return (round(float(low), 4), round(float(high), 4))


def _fewest(wrong: int, error: float, level: float) -> int:
    """Return how few verdicts can pass with `wrong` of them wrong: the bound of their rate is within `error`."""
    return next(n for n in count(wrong + 1) if upper_bound(wrong / n, n, level) <= error)


def upper_bound(rate: float, n: float, level: float) -> float:
    """Return Clopper and Pearson's one-sided upper bound of a proportion, also for a fractional number of trials."""
    if rate >= 1:
        return 1.0
    return float(import_extra("scipy.special").betaincinv(rate * n + 1, n - rate * n, level))
