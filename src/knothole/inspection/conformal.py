"""Split conformal prediction: intervals and sets for y that hold for every pattern.

Calibration rows, whose y is known, have values hidden until they look like the new row, with its
pattern ``m``. The distances of their y from their expected predictions, in units of a scale
``s(x_o)``, then bound that of the new row. For a classifier the score of a class is one minus its
expected probability: a set has the classes whose score is no larger than the bound.

Why it holds
------------
Let ``M_k`` be the missing values of calibration row k. Which rows serve pattern ``m`` is decided
from patterns alone:

1. Rows with ``M_k = m``, if there are at least :data:`OWN`. Given the patterns, they and the new
row
   are draws from one distribution p(x, y | M = m), *whatever made values go missing*.
2. Otherwise rows with ``M_k`` contained in ``h``, which contains ``m``; in all of them, and in the
   new row, exactly ``h`` is hidden. If values go missing independently of (x, y), all of these are
   again draws from one distribution.

Either way, the scores of these n rows and the new row's score are exchangeable. So the new score
is at most the ceil((n + 1) level)-th smallest of theirs with probability at least the confidence
level, and at most ``level + 1 / (n + 1)`` if no two are equal: given the pattern, for every n,
every model and every density. With ``h = m`` this is CP-MDA-Exact (Zaffran, Dieuleveut, Josse,
Romano 2023). Where few rows fit ``m``, their CP-MDA-Nested compares the new row with each
calibration row under the union of both patterns. That averages p-values of different patterns, for
which no more than ``1 - 2 (1 - level)`` is guaranteed, and gives wide intervals in practice. One
common ``h`` keeps the full guarantee; of the candidates on a greedy path, the one with the shortest
expected interval is used.

If observed values decide what goes missing (MAR), the rows of the second way are draws from
p(x_o, y | M within h), and the new row is one from p(x_o, y | M = m). The densities differ by the
factor P(M = m | x_o, M within h), the probability that a row has the pattern. Rows are weighted by
it, the new one too, and the bound is the weighted quantile (Tibshirani, Foygel Barber, Candes,
Ramdas 2019; for missing values arXiv 2512.14221). With the true factor that is valid for every n.
The factor is learned (:mod:`.missingness_model`), so the guarantee is as good as the factor. If no
variable's mask is predicted by other values, all weights are equal, and the guarantee is exact.

A weight is at most :data:`LARGEST` times the mean, and that of the new row at most what still
leaves one score as a bound: intervals are always finite. If values go missing depending on
unobserved values (MNAR), only the first way is valid.

Scale and path are learned from calibration rows that are set aside, and so are independent of
those whose scores are used. All scores come from the first draws for missing values, the new row's
too: where predictions are drawn, the middle of an interval may differ from them by the error of
these draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_number
from knothole.columns.evidence import Evidence
from knothole.densities.held_out import FOLDS, TOO_FEW_TO_JUDGE, fold_numbers
from knothole.errors import FewCalibrationRows, InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.inspection.missingness_model import MissingnessModel
from knothole.inspection.outputs import Outputs, chances
from knothole.leaves.problem import codes, in_rows, numbers
from knothole.progress import bar
from knothole.trees.classes import class_lists, is_classifier

Pattern = NDArray[np.bool_]
Rows = NDArray[np.intp]

#: Most calibration rows that are kept; of more, so many are drawn at random.
KEPT = 5000
#: Most of them that serve one pattern: so many predictions does a new pattern cost.
USED = 1000
#: With so many rows of its own a pattern needs no others.
OWN = 200
#: The largest weight of a row, in mean weights.
LARGEST = 5.0

# Rows set aside are hidden at these rates, so that the scale is learned for few and for many
# missing values.
_RATES = (0.0, 0.15, 0.15, 0.35, 0.35, 0.6)
# Rows from which the cost of hiding one variable is estimated.
_PROBES = 50
# Sizes of the caches of scores and of weights.
_REMEMBERED = 2000
# Rows that are scored at once, for one pattern or several.
_AT_ONCE = 20_000
# A warning is issued if one calibration set in twenty may be this far below the level.
_LOOSE = 0.05
# Powers of the scale to choose from within a pattern, and the levels that they are chosen for.
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEVELS = (0.8, 0.85, 0.9, 0.95)


# ---- the scale: how large a residual is to be expected, given what is known of a row ------------


class Scale(NamedTuple):
    """The expected size of a residual, from simple features of the prediction.

    Attributes
    ----------
    weights : float64 (5,)
        Non-negative: of a constant, the spread due to missing values, the model's own half width,
        and how far the centre is above ``limits[0]`` and below ``limits[1]``.
    limits : float64 (2,)
        Centres are clipped to them.
    floor : float
        The smallest scale.
    power : float
        Scores are divided by the scale to this power; 0 where the scale is not informative.
    """

    weights: Floats
    limits: Floats
    floor: float
    power: float

    @classmethod
    def constant(cls) -> Scale:
        """The same scale for all rows."""
        return cls(np.array([1.0, 0.0, 0.0, 0.0, 0.0]), np.zeros(2), 0.0, 1.0)

    @classmethod
    def learned(cls, outputs: Outputs, residual: Floats, patterns: int) -> Scale:
        """The scale with the largest likelihood of the residuals, as Laplace variables.

        Rows are repeated ``patterns`` times, under one pattern after the other. Each pattern has
        its own quantile of scores in the end, so the power is chosen by the width of intervals
        *within* patterns, for rows that the weights were not fitted to.
        """
        if not residual.any():
            return cls.constant()
        limits = np.quantile(outputs.centre, [0.02, 0.98])
        features = _features(outputs, limits)
        weights, floor = _fitted(features, residual)
        fold = np.tile(fold_numbers(len(residual) // patterns), patterns)
        expected = np.empty(len(residual))  # by weights that know nothing of the row
        for number in range(FOLDS):
            own = fold == number
            others, least = _fitted(features[~own], residual[~own])
            expected[own] = np.maximum(features[own] @ others, least)
        widths = [
            _width_within(residual.reshape(patterns, -1), expected.reshape(patterns, -1) ** power)
            for power in _POWERS
        ]
        return cls(weights, limits, floor, _POWERS[int(np.argmin(widths))])

    def expected(self, outputs: Outputs) -> Floats:
        """Expected size of the residual."""
        parts = _features(outputs, self.limits).T
        # Not a matrix product, whose last bit depends on the number of rows.
        total = np.zeros(len(outputs.centre))
        for weight, part in zip(self.weights, parts, strict=True):
            total += weight * part
        return np.maximum(total, self.floor)

    def __call__(self, outputs: Outputs) -> Floats:
        """What scores are divided by."""
        return np.asarray(self.expected(outputs) ** self.power)


def _features(outputs: Outputs, limits: Floats) -> Floats:
    low, high = limits
    clipped = np.clip(outputs.centre, low, high)
    ones = np.ones(len(clipped))
    return np.stack([ones, outputs.spread, outputs.half, clipped - low, high - clipped], axis=1)


def _fitted(features: Floats, residual: Floats) -> tuple[Floats, float]:
    """Weights with the largest likelihood of the residuals, as Laplace variables, and the floor.

    Found by iteratively reweighted least squares.
    """
    from scipy.optimize import nnls

    unit = residual.mean() or 1.0
    size = np.where(features.any(axis=0), features.mean(axis=0), 1.0)
    parts, share = features / size, residual / unit
    weights, _ = nnls(parts, share)
    for _ in range(10):
        scale = np.maximum(parts @ weights, 1e-6)
        weights, _ = nnls(parts / scale[:, None], share / scale)
    floor = np.quantile(np.maximum(parts @ weights, 1e-6), 0.05)
    return weights * unit / size, float(floor * unit)


def _width_within(residual: Floats, scale: Floats) -> float:
    """Mean log width of intervals that cover most residuals (patterns, rows) of each pattern.

    Of the logarithm, because the mean itself is least where rows of large residuals are covered
    less often than others.
    """
    bound = np.quantile(residual / scale, _LEVELS, axis=1).mean(axis=0)
    return float(np.mean(np.log(np.maximum(bound, 1e-300)) + np.log(scale).mean(axis=1)))


# ---- calibration rows ---------------------------------------------------------------------------


class CalibrationRule(NamedTuple):
    """What serves a pattern: what is hidden, and whether only rows of exactly that pattern do."""

    hide: Pattern
    own: bool

    @property
    def key(self) -> tuple[bytes, bool]:
        """To remember scores by."""
        return self.hide.tobytes(), self.own


@dataclass(frozen=True, eq=False)
class Conformal:
    """Calibration rows, and what was learned from those that were set aside.

    Attributes
    ----------
    points : float64 (rows, variables)
        Rows whose scores are used, in random order; NaN where a value is missing.
    target : float64 (rows,)
        Their y; of a classifier the number of the class.
    scale : Scale or None
        None for classifiers.
    residual : float
        Mean size of the residual, or of the score, of a row without missing values.
    cost : float64 (variables,)
        What hiding a variable adds to its square.
    missingness : MissingnessModel
        What rows are weighted by.
    """

    points: Floats
    target: Floats
    scale: Scale | None
    residual: float
    cost: Floats
    missingness: MissingnessModel
    _scores: dict[Any, Floats] = field(default_factory=dict, init=False, repr=False)
    _weights: dict[Any, Floats | None] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def learned(
        cls, expectation: Expectation, evidence: Evidence, y: Any, threads: int | None = None
    ) -> Self:
        """From rows that the model was not trained on, and their y.

        A one-hot group that is known in part counts as missing.
        """
        points = evidence.points[:, : len(expectation.columns.variables)]
        labels = is_classifier(expectation.original)
        target = _checked(y, len(points), class_lists(expectation.original)[0] if labels else None)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(target))[:KEPT]
        aside = _set_aside(len(order))
        rows, part = order[aside:], order[:aside]
        variables = points.shape[1]
        missingness = MissingnessModel.learned(expectation, points[order])
        scale = None if labels else Scale.constant()
        residual, cost = 1.0, np.ones(variables) if not aside else np.zeros(variables)
        if aside and not labels:
            patterns = [rng.random(variables) < rate for rate in _RATES]
            hidden = np.concatenate([np.where(hide, np.nan, points[part]) for hide in patterns])
            outputs = Outputs.of(expectation, hidden, threads)
            away = np.abs(np.tile(target[part], len(patterns)) - outputs.centre)
            scale = Scale.learned(outputs, away, len(patterns))
            plain = Outputs(outputs.centre[:aside], outputs.half[:aside], np.zeros(aside))
            residual = float(scale.expected(plain).mean())
        if aside and np.isnan(points[rows]).any():  # else every row serves every pattern
            probes = part[:_PROBES]
            if scale is not None:
                added = _added_variance(expectation, points[probes], threads)
                cost = scale.weights[1] ** 2 * added
            else:
                residual, cost = _added_score(expectation, points[probes], target[probes], threads)
        return cls(points[rows], target[rows], scale, residual, cost, missingness)

    def intervals(
        self, expectation: Expectation, evidence: Evidence, level: float, threads: int | None
    ) -> Floats:
        """Ends of the intervals, (rows, 2)."""
        assert self.scale is not None
        points, bound = self._bounds(expectation, evidence, level, threads)
        outputs = Outputs.of(expectation, points, threads)
        half = np.maximum(outputs.half + bound * self.scale(outputs), 0.0)
        return np.stack([outputs.centre - half, outputs.centre + half], axis=1)

    def sets(
        self, expectation: Expectation, evidence: Evidence, level: float, threads: int | None
    ) -> Pattern:
        """Classes of the sets, (rows, classes); the most probable one is always among them."""
        points, bound = self._bounds(expectation, evidence, level, threads)
        chance = chances(expectation, points, threads)
        within = 1 - chance <= bound[:, None]
        within[np.arange(len(chance)), chance.argmax(axis=1)] = True
        return np.asarray(within)

    def _bounds(
        self, expectation: Expectation, evidence: Evidence, level: float, threads: int | None
    ) -> tuple[Floats, Floats]:
        """Rows with all hidden that is hidden for them, and the score that bounds theirs."""
        self._check(level)
        points = evidence.points[:, : self.points.shape[1]].copy()
        patterns, which = np.unique(np.isnan(points), axis=0, return_inverse=True)
        serving = [self._serving(pattern, level) for pattern in patterns]
        scores = self._scores_of(expectation, serving, threads)
        bound = np.empty(len(points))
        fewest = float(len(self.target))
        with bar("weighting calibration rows", len(patterns)) as advance:
            for number, (pattern, how) in enumerate(zip(patterns, serving, strict=True)):
                asking = np.flatnonzero(which == number)
                points[np.ix_(asking, how.hide)] = np.nan
                of_rows = scores[how.key]
                weight = self._weight_of(expectation, pattern, how)
                if weight is None:
                    used = float(_best_number(len(of_rows), level))
                    bound[asking] = np.sort(of_rows[: int(used)])[_rank(int(used), level) - 1]
                else:
                    own = self.missingness.log_weight(
                        expectation, points[asking], how.hide, pattern
                    )
                    assert own is not None
                    bound[asking], used = _weighted_bounds(of_rows, weight, own, level)
                fewest = min(fewest, used)
                advance()
        _warn_of_few(max(int(fewest), _needed(level)), level)
        return points, bound

    def _check(self, level: float) -> None:
        check_number("confidence_level", level, above=0, below=1)
        rows = min(len(self.target), USED)
        if rows < _needed(level):
            raise InvalidInput(
                f"confidence_level={level:g} needs at least {_needed(level)} calibration rows; "
                f"there are {rows} (of more than {USED:,}, so many are used). Call conformalize "
                f"with more rows, or ask for a level of at most {rows / (rows + 1):.3g}."
            )

    @cached_property
    def _missing(self) -> Pattern:
        return np.isnan(self.points)

    def _serving(self, pattern: Pattern, level: float) -> CalibrationRule:
        """What is hidden for a pattern: the greedy path, and the best place on it."""
        if (self._missing == pattern).all(axis=1).sum() >= max(OWN, _needed(level)):
            return CalibrationRule(pattern, True)
        hide = best = pattern
        shortest = np.inf
        while True:
            beyond = self._missing & ~hide
            lacking = beyond.sum(axis=1)
            fitting = int((lacking == 0).sum())
            hidden = float(self.cost[hide].sum())
            width = self._expected_width(hidden, fitting, level)
            if width < shortest:
                shortest, best = width, hide
            further = np.flatnonzero(beyond.any(axis=0))
            if not len(further) or self._expected_width(hidden, None, level) >= shortest:
                return CalibrationRule(best, False)
            rows = fitting + beyond[lacking == 1][:, further].sum(axis=0)
            added = hidden + self.cost[further]
            options = [
                (self._expected_width(more, int(n), level), more, v)
                for more, n, v in zip(added.tolist(), rows, further.tolist(), strict=True)
            ]
            hide = hide | (np.arange(len(hide)) == min(options)[2])

    def _rows(self, serving: CalibrationRule) -> Rows:
        """Rows that are to be hidden like this."""
        hide = serving.hide
        fit = (self._missing == hide) if serving.own else (~self._missing | hide)
        return np.flatnonzero(fit.all(axis=1))[:USED]

    def _expected_width(self, hidden: float, rows: int | None, level: float) -> float:
        """Expected half width, where ``hidden`` is the cost of what is and so many rows serve.

        None stands for any number of rows.
        """
        scale = self.residual + np.sqrt(hidden)
        if rows is None:
            return float(-np.log1p(-level) * scale)
        return float(_order_statistics(level)[_best_number(rows, level)] * scale)

    def _scores_of(
        self, expectation: Expectation, serving: list[CalibrationRule], threads: int | None
    ) -> dict[Any, Floats]:
        """Scores of the rows that serve, by key; of several patterns at once."""
        wanted = {how.key: how for how in serving}
        found = {key: self._scores[key] for key in wanted if key in self._scores}
        new = [how for key, how in wanted.items() if key not in found]
        with bar("scoring calibration rows", len(new)) as advance:
            for batch in _batches([(how, self._rows(how)) for how in new]):
                points = np.concatenate(
                    [np.where(h.hide, np.nan, self.points[r]) for h, r in batch]
                )
                target = np.concatenate([self.target[rows] for _, rows in batch])
                scores = self._scores_at(expectation, points, target, threads)
                ends = np.cumsum([len(rows) for _, rows in batch])[:-1]
                parts = np.split(scores, ends)
                found |= {how.key: part for (how, _), part in zip(batch, parts, strict=True)}
                advance(amount=len(batch))
        _remember(self._scores, {how.key: found[how.key] for how in new})
        return found

    def _scores_at(
        self, expectation: Expectation, points: Floats, target: Floats, threads: int | None
    ) -> Floats:
        """How far y lies outside, in units of the scale; how improbable a class is."""
        if self.scale is None:
            chance = chances(expectation, points, threads)
            return np.asarray(1 - chance[np.arange(len(target)), target.astype(np.intp)])
        outputs = Outputs.of(expectation, points, threads)
        outside = np.abs(target - outputs.centre) - outputs.half
        return np.asarray(outside / self.scale(outputs))

    def _weight_of(
        self, expectation: Expectation, pattern: Pattern, serving: CalibrationRule
    ) -> Floats | None:
        """Log weights of the rows that serve a pattern; None where they are all alike."""
        if serving.own:
            return None
        key = serving.hide.tobytes(), pattern.tobytes()
        if key not in self._weights:
            points = np.where(serving.hide, np.nan, self.points[self._rows(serving)])
            found = self.missingness.log_weight(expectation, points, serving.hide, pattern)
            _remember(self._weights, {key: found})
            return found
        return self._weights[key]


def _batches(
    servings: list[tuple[CalibrationRule, Rows]],
) -> Iterator[list[tuple[CalibrationRule, Rows]]]:
    """Several at a time, up to a number of rows."""
    batch: list[tuple[CalibrationRule, Rows]] = []
    rows = 0
    for each in servings:
        if batch and rows + len(each[1]) > _AT_ONCE:
            yield batch
            batch, rows = [], 0
        batch.append(each)
        rows += len(each[1])
    if batch:
        yield batch


def _remember(kept: dict[Any, Any], new: dict[Any, Any]) -> None:
    if len(kept) + len(new) > _REMEMBERED:
        kept.clear()
    kept.update(list(new.items())[:_REMEMBERED])


def _weighted_bounds(
    scores: Floats, log_weight: Floats, own: Floats, level: float
) -> tuple[Floats, float]:
    """The score that bounds the next one, for rows of these weights; and how many rows count.

    The smallest score that has, with all smaller ones, this share of all weights, where the asking
    row's own is as if beyond all scores. With equal weights it is the ceil((n + 1) level)-th. The
    number is that of Kish: as many equal weights would be as exact.

    >>> equal = np.zeros(19)
    >>> bound, number = _weighted_bounds(np.arange(1.0, 20.0), equal, np.zeros(1), 0.9)
    >>> bound.tolist(), round(number)
    ([18.0], 19)
    """
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    weight = np.minimum(weight, LARGEST * weight.mean())
    asking = np.exp(np.minimum(own - top, 50.0))
    most = weight.sum() * (1 - level) / level * (1 - 1e-9)
    asking = np.minimum(asking, min(LARGEST * weight.mean(), most))
    order = np.argsort(scores, kind="stable")
    total = np.cumsum(weight[order])
    place = np.searchsorted(total, level * (total[-1] + asking) * (1 - 1e-12))
    return scores[order][np.minimum(place, len(order) - 1)], float(
        total[-1] ** 2 / (weight**2).sum()
    )


def _checked(y: Any, rows: int, labels: list[Any] | None) -> Floats:
    """Targets as one number a row: their values, or the numbers of their classes."""
    table = in_rows(y, rows)
    if table.shape[1] != 1:
        raise InvalidInput(
            f"y must have one column, since intervals are for one target; got {table.shape[1]}. "
            f"Wrap and conformalize a model for each target."
        )
    if labels is None:
        return numbers(table)[:, 0]
    return codes(table[:, 0], labels).astype(np.float64)


def _added_variance(expectation: Expectation, points: Floats, threads: int | None) -> Floats:
    """Variance of the prediction that hiding a variable adds by itself, (variables,)."""
    spread = Outputs.of(expectation, _each_hidden(points), threads).spread
    variance = (spread.reshape(points.shape[1] + 1, -1) ** 2).mean(axis=1)
    return np.asarray(np.maximum(variance[:-1] - variance[-1], 0.0))


def _added_score(
    expectation: Expectation, points: Floats, target: Floats, threads: int | None
) -> tuple[float, Floats]:
    """Mean score of a classifier's rows, and what hiding a variable adds to its square."""
    chance = chances(expectation, _each_hidden(points), threads)
    code = np.tile(target.astype(np.intp), points.shape[1] + 1)
    score = 1 - chance[np.arange(len(code)), code]
    mean = score.reshape(points.shape[1] + 1, -1).mean(axis=1)
    return float(mean[-1]), np.maximum(mean[:-1] - mean[-1], 0.0) ** 2


def _each_hidden(points: Floats) -> Floats:
    """Copies of rows that lack one variable each, and last the rows themselves."""
    variables = points.shape[1]
    hidden = np.tile(points, (variables + 1, 1, 1))
    hidden[np.arange(variables), :, np.arange(variables)] = np.nan
    return hidden.reshape(-1, variables)


def _set_aside(rows: int) -> int:
    """Rows for the scale: a fifth, within limits; none of few rows (one scale for all).

    >>> [_set_aside(rows) for rows in (99, 100, 200, 700, 5000)]
    [0, 20, 40, 140, 250]
    """
    return min(250, rows // 5) if rows >= TOO_FEW_TO_JUDGE else 0


def _rank(rows: int, level: float) -> int:
    """Which of the sorted scores bounds the next one with this probability."""
    return max(1, int(np.ceil((rows + 1) * level - 1e-9)))


def _needed(level: float) -> int:
    """The fewest rows of which one bounds the next.

    >>> [_needed(level) for level in (0.5, 0.9, 0.95, 0.99)]
    [1, 9, 19, 99]
    """
    return max(1, int(np.ceil(level / (1 - level) - 1e-9)))


@lru_cache(maxsize=64)
def _order_statistics(level: float) -> Floats:
    """Expected score that bounds the next one with n = 0, 1, ... rows: infinite with too few.

    Of exponential scores, as those of Laplace residuals are; a difference of harmonic numbers.
    """
    from scipy.special import digamma

    rows = np.arange(USED + 1)
    above = rows - np.maximum(1, np.ceil((rows + 1) * level - 1e-9))
    expected = digamma(rows + 1) - digamma(np.maximum(above, 0) + 1)
    return np.where(above < 0, np.inf, expected)


def _best_number(rows: int, level: float) -> int:
    """How many of the rows to use, so that the interval is expected to be shortest.

    With 28 rows the largest but one bounds the next with probability 27/29; with 19 of them, with
    18/20, and that is all that was asked for.

    >>> [_best_number(rows, 0.9) for rows in (8, 9, 18, 28, 29, 1000)]
    [0, 9, 9, 19, 29, 999]
    """
    return int(np.argmin(_order_statistics(level)[: rows + 1]))


def _assured(rows: int, level: float) -> float:
    """What all but one calibration set in twenty cover at least."""
    from scipy.stats import beta

    rank = _rank(rows, level)
    return float(beta.ppf(0.05, rank, rows + 1 - rank))


def _warn_of_few(rows: int, level: float) -> None:
    aim = level - _LOOSE
    if _assured(rows, level) >= aim:
        return
    enough = rows
    while _assured(enough, level) < aim:
        enough += max(1, enough // 20)
    warnings.warn(
        f"some intervals or sets rest on only {rows} calibration rows, so their true coverage may "
        f"be as low as {_assured(rows, level):.0%} (in one of 20 calibration sets). Conformalize "
        f"with more rows, best with complete ones: {enough} that lack no further values suffice "
        f"for {aim:.0%}.",
        FewCalibrationRows,
        stacklevel=5,
    )
