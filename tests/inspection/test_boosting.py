"""The small trees of a correction: those of scikit-learn, and every split the best there is."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import HistGradientBoostingRegressor

from knothole.inspection.boosting import (
    DISTINCT,
    LEAST_ROWS,
    LEAVES,
    PENALTY,
    RATE,
    TREES,
    Grower,
    as_ensemble,
    boost,
    least_squares,
    poisson,
    step,
    thresholds_of,
)


def numbers_with_nan(rows, columns=6):
    """Columns with few and with many distinct values, one constant, one without a number."""
    rng = np.random.default_rng(rows)
    inputs = rng.normal(size=(rows, columns))
    inputs[:, 1] = np.round(inputs[:, 1])
    inputs[rng.random(inputs.shape) < 0.2] = np.nan
    inputs[:, 0] = rng.normal(size=rows)  # without NaN
    inputs[:, 4], inputs[:, 5] = np.where(inputs[:, 4] > 0, 1.0, np.nan), np.nan
    return inputs, rng


def nearest(inputs):
    """The same with few distinct values, each number the nearest of some quantiles."""
    few = inputs.copy()
    for column in few.T[:5]:
        known = ~np.isnan(column)
        levels = np.linspace(0, 1, DISTINCT)
        grid = np.unique(np.quantile(column[known], levels, method="nearest"))
        column[known] = grid[np.searchsorted((grid[1:] + grid[:-1]) / 2, column[known])]
    few[:, 5] = 0.0
    return few


@pytest.mark.parametrize("rows", [25, 40, 200, 1500])
@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_trees_are_those_of_the_library(rows, loss):
    """Equal but for single precision, in which the library computes; it bins the same numbers."""
    inputs, rng = numbers_with_nan(rows)
    y = np.abs(inputs[:, 0]) + np.nan_to_num(inputs[:, 1]) ** 2 + rng.gamma(1.0, size=rows)
    weight = rng.gamma(1.0, size=rows) if loss == "squared_error" else np.ones(rows)
    y /= np.average(y, weights=weight)  # so that both begin at log 1
    library = HistGradientBoostingRegressor(
        loss=loss, learning_rate=RATE, max_leaf_nodes=LEAVES, min_samples_leaf=LEAST_ROWS,
        l2_regularization=PENALTY, max_iter=TREES, max_bins=DISTINCT, early_stopping=False,
    ).fit(nearest(inputs), y, sample_weight=weight)  # fmt: skip
    grower = Grower(inputs, thresholds_of(inputs))
    if loss == "poisson":
        grown = poisson(grower, y, TREES)
        margin = np.exp(step([grown], inputs)[:, 0])
    else:
        grown, margin = least_squares(grower, y, weight)
        assert_allclose(step([grown], inputs)[:, 0], margin, rtol=1e-12)
    assert_allclose(margin, library.predict(nearest(inputs)), rtol=2e-6)
    assert (grown.sizes > 1).any() == (rows > 2 * LEAST_ROWS)


def test_a_split_is_the_best_of_all_that_there_are():
    """Against a twin that tries every threshold, with NaN on either side."""
    inputs, rng = numbers_with_nan(90)
    slope, curvature = rng.normal(size=90), rng.gamma(1.0, size=90)
    thresholds = thresholds_of(inputs)
    grown, margin = Grower(inputs, thresholds).boost(0.0, 1, lambda _: (slope, curvature))

    def worth(rows):
        return slope[rows].sum() ** 2 / (curvature[rows].sum() + PENALTY)

    best = 0.0, None
    for j, own in enumerate(thresholds):
        for threshold in [*own, np.inf]:
            for nan_left in (False, True):
                left = np.where(np.isnan(inputs[:, j]), nan_left, inputs[:, j] <= threshold)
                if LEAST_ROWS <= left.sum() <= 90 - LEAST_ROWS:
                    best = max(best, (worth(left) + worth(~left), (j, tuple(left))))
    feature, left = best[1]
    assert grown.trees.feature[0, 0] == feature
    gone = np.isnan(inputs[:, feature])
    own = np.where(gone, grown.trees.missing_left[0, 0], inputs[:, feature] < grown.threshold[0, 0])
    assert_array_equal(own, left)
    for number in np.unique(margin):  # every leaf has Newton's step, times the rate
        rows = margin == number
        assert rows.sum() >= LEAST_ROWS
        assert number == pytest.approx(
            -RATE * slope[rows].sum() / (curvature[rows].sum() + PENALTY)
        )


def test_the_ensemble_of_all_stages_adds_up_to_them():
    inputs, _ = numbers_with_nan(800, 6)
    truth = np.nan_to_num(inputs[:, :2]) ** 2
    made = boost(inputs, np.zeros((800, 2)), np.ones(800), lambda z: (truth - z, np.ones_like(z)))
    stages = [next(made) for _ in range(3)]
    total = sum(step(stage, inputs) for stage in stages)
    assert np.mean((truth - total) ** 2) < 0.1 * truth.var()
    for share in (1.0, 0.25):
        ensemble = as_ensemble(stages, list("abcdef"), share)
        assert_allclose(ensemble.margin(inputs), share * total, rtol=1e-12, atol=1e-12)
