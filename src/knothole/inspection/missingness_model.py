"""A model of missingness: the probability that a value is missing, given the others.

It weights calibration rows. Each variable has a logistic regression on the values of the others,
learned from the masks of calibration rows. Values that a row lacks are replaced by their
expectation under the density. A variable whose mask the others do not predict on held-out rows has
a constant probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.columns.columns import Kind
from knothole.densities.base import drawn_rows
from knothole.densities.held_out import FOLDS
from knothole.expectation.expectation import Expectation
from knothole.inspection.outputs import evidence_of

#: The most rows that the regressions are learned from.
ROWS = 2000
#: With fewer rows in which the value is missing, or present, nothing is learned.
LEAST = 10
#: The most features of a regression: those that correlate most with the mask.
FEATURES = 20
#: The most levels of a categorical variable that are features, the most frequent first.
LEVELS = 10
# Quadratic penalty of the coefficients, in rows. On five tables under MAR, 1, 5 and 20 gave the
# same coverage; 5 had shorter intervals than 1.
RIDGE = 5.0
# By how many standard errors a regression must beat a constant on held-out rows.
SURE = 3.0
# Draws from which expectations of missing features are computed.
DRAWS = 16
# Bounds of standardised numbers, and of probabilities.
FARTHEST, LEAST_PROBABILITY = 4.0, 1e-4


@dataclass(frozen=True, eq=False)
class MissingnessModel:
    """P(a variable is missing, given the others), for each variable.

    Attributes
    ----------
    variable : int64 (features,)
        The variable of each feature.
    level : float64 (features,)
        The category that it indicates; NaN for a numeric feature.
    centre, width : float64 (features,)
        Centre and scale by which features are standardised.
    coefficients : float64 (variables, 1 + features)
        Of a constant and the features; all 0 if nothing predicts the mask.
    """

    variable: NDArray[np.int64]
    level: Floats
    centre: Floats
    width: Floats
    coefficients: Floats

    @classmethod
    def constant(cls, variables: int) -> Self:
        """A model in which no mask depends on anything."""
        none = np.zeros(0)
        return cls(none.astype(np.int64), none, none, none, np.zeros((variables, 1)))

    @classmethod
    def learned(cls, expectation: Expectation, points: Floats) -> Self:
        """Learned from points of rows, NaN where a value is missing."""
        points = points[:ROWS]
        missing = np.isnan(points)
        count = missing.sum(axis=0)
        candidates = np.flatnonzero((count >= LEAST) & (len(points) - count >= LEAST))
        if not len(candidates):
            return cls.constant(points.shape[1])
        made = cls._features_of(expectation, points)
        features = made.features(expectation, points, np.arange(points.shape[1]))
        coefficients = np.zeros((points.shape[1], 1 + len(made.variable)))
        for v in candidates.tolist():
            others = np.flatnonzero(made.variable != v)
            if _predicts(features[:, others], missing[:, v]):
                fitted = _fitted(features[:, others], missing[:, v])
                coefficients[v, np.append(0, 1 + others)] = fitted
        return cls(made.variable, made.level, made.centre, made.width, coefficients)

    @classmethod
    def _features_of(cls, expectation: Expectation, points: Floats) -> Self:
        """A model without coefficients; its features are numbers and frequent levels that vary."""
        found = []
        for v, described in enumerate(expectation.columns.variables):
            known = points[np.isfinite(points[:, v]), v]
            if described.kind is Kind.CATEGORICAL:
                levels, count = np.unique(known, return_counts=True)
                for level in levels[np.argsort(-count, kind="stable")][:LEVELS]:
                    share = np.mean(known == level)
                    found.append((v, level, share, np.sqrt(share * (1 - share))))
            elif len(known):
                found.append((v, np.nan, known.mean(), known.std()))
        kept = np.array([each for each in found if each[3] > 0]).reshape(-1, 4)
        none = np.zeros((points.shape[1], 1 + len(kept)))
        level, centre, width = kept[:, 1:].T
        return cls(kept[:, 0].astype(np.int64), level, centre, width, none)

    @cached_property
    def predicted(self) -> Mask:
        """Variables whose mask is predicted by the others, (variables,)."""
        return np.asarray(self.coefficients.any(axis=1))

    def features(
        self, expectation: Expectation, points: Floats, needed: NDArray[np.int64]
    ) -> Floats:
        """Standardised features (rows, features); complete for the ``needed`` variables."""
        out = np.zeros((len(points), len(self.variable)))
        lacking = np.asarray(np.isnan(points[:, needed]).any(axis=1))
        self._add(points[~lacking, None], out, np.logical_not(lacking))
        if lacking.any():
            evidence = evidence_of(expectation, points[lacking])
            drawn = drawn_rows(expectation.density, evidence, DRAWS, expectation.seed)
            self._add(drawn, out, lacking)
        return out

    def _add(self, points: Floats, out: Floats, rows: Mask) -> None:
        """Mean features of draws (rows, draws, variables)."""
        for f, (v, level) in enumerate(zip(self.variable, self.level, strict=True)):
            values = points[:, :, v]
            if not np.isnan(level):
                values = np.where(np.isnan(values), self.centre[f], values == level)
            scored = (values - self.centre[f]) / self.width[f]
            # A number that was not recorded has no size.
            scored = np.where(np.isfinite(scored), scored, 0.0)
            out[rows, f] = np.clip(scored, -FARTHEST, FARTHEST).mean(axis=1)

    def log_weight(
        self, expectation: Expectation, points: Floats, hide: Mask, pattern: Mask
    ) -> Floats | None:
        """Log P(missing as in ``pattern`` | known), the part that depends on the row; None if none.

        In ``points``, everything in ``hide`` is missing, which includes ``pattern``, and everything
        else is known. The probability is among rows in which nothing outside ``hide`` is missing.
        """
        from scipy.special import expit

        asked = np.flatnonzero(hide & self.predicted)
        if not len(asked):
            return None
        used = self.coefficients[asked, 1:].any(axis=0)
        features = self.features(expectation, points, np.unique(self.variable[used]))
        out = np.zeros(len(points))
        for v in asked:
            total = np.full(len(points), self.coefficients[v, 0])
            # Not a matrix product, whose last bit depends on the number of rows.
            for f in np.flatnonzero(self.coefficients[v, 1:]):
                total += self.coefficients[v, 1 + f] * features[:, f]
            chance = np.clip(expit(total), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
            out += np.log(chance if pattern[v] else 1 - chance)
        return out


def _predicts(features: Floats, missing: Mask) -> bool:
    """Whether a regression clearly beats a constant on held-out rows."""
    from scipy.special import expit

    gain = np.empty(len(missing))
    fold = np.arange(len(missing)) % FOLDS
    for number in range(FOLDS):
        own = fold == number
        share = missing[~own].mean()
        if not 0 < share < 1:
            return False
        fitted = _fitted(features[~own], missing[~own])
        chance = expit(fitted[0] + features[own] @ fitted[1:])
        chance = np.clip(chance, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        gain[own] = np.log(np.where(missing[own], chance / share, (1 - chance) / (1 - share)))
    return bool(gain.mean() > SURE * gain.std() / np.sqrt(len(gain)))


def _fitted(features: Floats, missing: Mask) -> Floats:
    """Coefficients of a constant and of the features that correlate most, (1 + features,)."""
    from scipy.special import expit

    y = missing.astype(np.float64)
    spread = features.std(axis=0)
    alike = np.abs((features - features.mean(axis=0)).T @ (y - y.mean()))
    alike /= np.where(spread > 0, spread, np.inf)
    chosen = np.sort(np.argsort(-alike, kind="stable")[:FEATURES])
    X = np.column_stack([np.ones(len(y)), features[:, chosen]])
    penalty = np.full(X.shape[1], RIDGE)
    penalty[0] = 1e-6
    beta = np.zeros(X.shape[1])
    beta[0] = np.log(y.mean() / (1 - y.mean()))
    for _ in range(30):  # Newton's method
        chance = expit(X @ beta)
        slope = X.T @ (y - chance) - penalty * beta
        curvature = (X.T * (chance * (1 - chance))) @ X + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        beta += step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))
        if np.abs(step).max() < 1e-9:
            break
    out = np.zeros(1 + features.shape[1])
    out[np.append(0, 1 + chosen)] = beta
    return out
