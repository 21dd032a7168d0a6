"""Rows that a reading checks itself with: half of them are steered to a split's threshold."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from knothole.trees.ensemble import left_codes
from knothole.trees.read import read
from knothole.trees.verify import probe_rows, steer

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(400, 4)).round(2)
CODES = RNG.integers(0, 6, (400, 1)).astype(float)


def arrives(ensemble, row, target):
    """Whether a row comes by a node, step by step."""
    tree = int(np.searchsorted(ensemble.roots, target, side="right")) - 1
    node = int(ensemble.roots[tree])
    while node != target and ensemble.feature[node] >= 0:
        x = row[ensemble.feature[node]]
        if ensemble.set_start[node] >= 0:
            left = left_codes(ensemble, node)[int(x)]
        else:
            left = x < ensemble.threshold[node]
        node = int(ensemble.left[node]) + (not left)
    return node == target


@pytest.mark.parametrize("model", ["numbers", "large numbers", "categories"])
def test_steered_rows_arrive_next_to_the_threshold(model):
    X, trained = NUMBERS, ExtraTreesRegressor(5, max_depth=6, random_state=0)
    if model == "large numbers":
        X = 1e30 * X
    if model == "categories":
        X = np.hstack([CODES, NUMBERS[:, :2]])
        trained = HistGradientBoostingRegressor(categorical_features=[0], max_iter=5)
    ensemble = read(trained.fit(X, X @ np.arange(1, X.shape[1] + 1)))
    inner = np.flatnonzero(ensemble.feature >= 0)
    rows = np.zeros((len(inner), X.shape[1]))
    steer(ensemble, inner, rows, np.random.default_rng(0))
    # A path that splits twice on a category may ask for codes that are not in both sets.
    found = [arrives(ensemble, row, node) for row, node in zip(rows, inner.tolist(), strict=True)]
    assert np.mean(found) >= (0.8 if model == "categories" else 1.0)
    numeric = ensemble.set_start[inner] < 0
    threshold, at = ensemble.threshold[inner], rows[np.arange(len(inner)), ensemble.feature[inner]]
    step = np.spacing(np.abs(threshold).astype(np.float32)).astype(np.float64)
    assert (np.abs(at - threshold)[numeric] <= 2 * step[numeric]).all()
    assert {*np.sign(at - threshold)[numeric]} == {-1.0, 0.0, 1.0}


def test_rows_have_missing_values_and_one_has_nothing_else():
    ensemble = read(HistGradientBoostingRegressor(max_iter=3).fit(NUMBERS, NUMBERS[:, 0]))
    rows = probe_rows(ensemble, 100, np.random.default_rng(0))
    assert np.isnan(rows[-1]).all()
    assert 0.2 < np.isnan(rows).any(axis=1).mean() < 0.8
