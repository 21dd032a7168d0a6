"""Rivals: CP-MDA in both variants, and one calibration for all patterns.

Own small implementations of Zaffran, Dieuleveut, Josse, Romano, "Conformal prediction with missing
values" (ICML 2023). All work on a function from rows with missing values to the ends of a model's
own interval, (rows, 2): twice the prediction for a model of the mean. There are two such functions:
the expected prediction, so that only the calibrations differ, and, as in that paper, a model
whose missing values an imputer fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer

from knothole import Robust
from knothole.arrays import Floats, Mask

Ends = Callable[[Floats], Floats]

#: Test rows of a split that CP-MDA-Nested answers.
NESTED = 200


@dataclass(frozen=True)
class Rows:
    """Calibration rows (complete values, their missing values, y) and test rows."""

    X: Floats
    missing_mask: Mask
    y: Floats
    X_test: Floats
    missing_mask_test: Mask


def expecting(robust: Robust) -> Ends:
    """The expected prediction."""
    return lambda X: _ends(robust.predict(X))


def imputing(train: Floats, model: Any) -> Ends:
    """Predictions for rows whose missing values an iterative ridge regression fills."""
    imputer = IterativeImputer(random_state=0, max_iter=5, tol=0).fit(train)
    return lambda X: _ends(model.predict(imputer.transform(X) if np.isnan(X).any() else X))


def _ends(answer: Any) -> Floats:
    outputs = np.asarray(answer, dtype=np.float64).reshape(len(answer), -1)
    return np.stack([outputs.min(axis=1), outputs.max(axis=1)], axis=1)


def rank(n: int, coverage: float) -> int:
    """Which of n sorted scores bounds the next."""
    return int(np.ceil((n + 1) * coverage - 1e-9))


def bound(scores: Floats, coverage: float) -> float:
    """The score that bounds the next one; infinite where there are too few."""
    place = rank(len(scores), coverage)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else np.inf


def widened(ends: Floats, by: float) -> Floats:
    """Both ends moved outwards."""
    return np.asarray(ends + np.array([-by, by]))


def scores_of(ends: Floats, y: Floats) -> Floats:
    """How far y is outside."""
    return np.maximum(ends[:, 0] - y, y - ends[:, 1])


def once(ends: Ends, rows: Rows, coverage: float) -> Floats:
    """One calibration for all patterns, on the calibration rows as they are."""
    at = ends(np.where(rows.missing_mask, np.nan, rows.X))
    by = bound(scores_of(at, rows.y), coverage)
    return widened(ends(np.where(rows.missing_mask_test, np.nan, rows.X_test)), by)


def exact(ends: Ends, rows: Rows, coverage: float) -> Floats:
    """CP-MDA-Exact: for a pattern, the calibration rows whose missing values are within it."""
    out = ends(np.where(rows.missing_mask_test, np.nan, rows.X_test))
    patterns, which = np.unique(rows.missing_mask_test, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        fit = ~(rows.missing_mask & ~pattern).any(axis=1)
        by = np.inf
        if fit.any():
            at = ends(np.where(pattern, np.nan, rows.X[fit]))
            by = bound(scores_of(at, rows.y[fit]), coverage)
        out[which == number] = widened(out[which == number], by)
    return out


def nested(ends: Ends, rows: Rows, coverage: float) -> Floats:
    """CP-MDA-Nested: all calibration rows, each compared under the union of both patterns.

    It costs a prediction for each test row under each of these unions, so only the first
    :data:`NESTED` rows are answered; the others are NaN.
    """
    out = np.full((len(rows.X_test), 2), np.nan)
    patterns, which = np.unique(rows.missing_mask_test[:NESTED], axis=0, return_inverse=True)
    place = rank(len(rows.y), coverage)
    for number, pattern in enumerate(patterns):
        asking = np.flatnonzero(which == number)
        unions, member = np.unique(rows.missing_mask | pattern, axis=0, return_inverse=True)
        at = ends(np.where(rows.missing_mask | pattern, np.nan, rows.X))
        scores = scores_of(at, rows.y)
        hidden = np.where(unions[:, None], np.nan, rows.X_test[asking])
        own = ends(hidden.reshape(-1, hidden.shape[2])).reshape(len(unions), len(asking), 2)
        low = np.sort(own[member, :, 0] - scores[:, None], axis=0)
        high = np.sort(own[member, :, 1] + scores[:, None], axis=0)
        out[asking] = np.stack([low[len(low) - place], high[place - 1]], axis=1)
    return out


#: By name: how a predictor becomes an interval.
CALIBRATIONS = {"CP-MDA-Exact": exact, "CP-MDA-Nested": nested, "once for all": once}
