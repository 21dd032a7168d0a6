"""Errors of draws are at most what the missing values can change."""

from itertools import product

import numpy as np
import pytest
from catboost import CatBoostClassifier
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from tests.trees.generate import random_ensemble

import knothole as kh
from knothole.expectation.monte_carlo.statistics import change_of
from knothole.trees.links import Link


@pytest.mark.parametrize("seed", range(12))
def test_range_of_margins_by_enumeration(seed):
    """All combinations of cells of the missing values; each tree by itself."""
    rng = np.random.default_rng(seed)
    ensemble = random_ensemble(seed=seed, sentinel=False)
    X = np.stack(
        [
            rng.integers(n, size=6).astype(float) if n else rng.normal(size=6)
            for n in ensemble.n_levels
        ],
        axis=1,
    )
    X[rng.random(X.shape) < 0.4] = np.nan
    low, high = ensemble.margin_range(X)
    weighted = ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None]
    for row, least, most in zip(X, low, high, strict=True):
        choices = []
        for v, n in enumerate(ensemble.n_levels):
            if not np.isnan(row[v]):
                choices.append([row[v]])
            elif n:
                choices.append([*range(n), n + 1.0])
            else:
                thresholds = ensemble.threshold[(ensemble.feature == v) & (ensemble.set_start < 0)]
                choices.append([-1e9, *np.unique(thresholds)])
        leaves = np.concatenate(
            [ensemble.leaves(np.array([values], dtype=float)) for values in product(*choices)]
        )
        ends = [np.array(ensemble.base, dtype=float) for _ in range(2)]
        for t, output in enumerate(ensemble.tree_output):
            values = weighted[leaves[:, t]]
            for end, extreme in zip(ends, (values.min(axis=0), values.max(axis=0)), strict=True):
                end[output : output + len(extreme)] += extreme
        # Some leaves have no cell of their own.
        assert (least <= ends[0] + 1e-12).all() and (most >= ends[1] - 1e-12).all()
        if not np.isnan(row).any():
            np.testing.assert_allclose(least, ensemble.margin(row[None])[0], rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(least, most)


@pytest.mark.parametrize("name", ["identity", "sigmoid", "exp", "softmax"])
def test_change_of_predictions(name):
    rng, link = np.random.default_rng(0), Link(name)
    low = rng.normal(size=(20, 3))
    high = low + rng.exponential(size=(20, 3)) * (rng.random((20, 3)) < 0.7)
    inside = low + rng.random((500, 20, 3)) * (high - low)
    corners = np.array([np.where(take, high, low) for take in product([False, True], repeat=3)])
    found = np.concatenate([link(inside), link(corners)])
    change = change_of(link)(low, high)
    assert (np.ptp(found, axis=0) <= change + 1e-12).all()
    np.testing.assert_allclose(np.ptp(link(corners), axis=0), change, rtol=1e-9, atol=1e-12)


X = np.random.default_rng(0).normal(size=(1500, 3))
#: Where x0 is below 0, nothing else matters.
Y = np.where(X[:, 0] < 0, 0.0, 1.0 * (X[:, 1] > 0) + (X[:, 2] > 0))
MODELS = {
    "regressor": (GradientBoostingRegressor(n_estimators=10), Y),
    "two classes": (GradientBoostingClassifier(n_estimators=5), Y > 0),
    "three classes": (GradientBoostingClassifier(n_estimators=5), Y),
}


@pytest.mark.parametrize("density", [kh.GaussianMixture, kh.Mixture, kh.LatentTree])
@pytest.mark.parametrize("kind", MODELS)
def test_irrelevant_missing_values_have_no_error(kind, density):
    model, y = MODELS[kind]
    robust = kh.wrap(model.fit(X, y), X, density=density(2, random_state=0))
    ask = robust.predict if kind == "regressor" else robust.predict_proba
    irrelevant, relevant = np.array([[-1.0, np.nan, np.nan], [1.0, np.nan, np.nan]])[:, None]
    _, *beside = ask(irrelevant, return_std=True, return_error=True)
    for part in beside:
        assert part.max() < 1e-12
    assert ask(relevant, return_std=True)[1].max() > 0.01


def test_probabilities_of_vector_leaves_are_exact_where_one_number_is_missing():
    """CatBoost's trees hold a value for every class: sets of leaves do not serve them."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 3))
    y = np.digitize(x[:, 0] + x[:, 1] * x[:, 2], [-0.5, 0.7])
    model = CatBoostClassifier(iterations=15, depth=3, verbose=False, allow_writing_files=False)
    robust = kh.wrap(model.fit(x, y), x, density=kh.Mixture(3, random_state=0))
    rows = np.where(np.eye(3, dtype=bool)[np.arange(12) % 3], np.nan, x[:12])
    chance, error = robust.predict_proba(rows, return_error=True)
    assert (error == 0).all()
    np.testing.assert_allclose(chance.sum(axis=1), 1, rtol=1e-12)
    drawn = robust.density_.complete(rows, 20_000)
    truth = np.stack([model.predict_proba(each).mean(axis=0) for each in drawn])
    np.testing.assert_allclose(chance, truth, atol=0.012)
    parts = [robust.predict_proba(row[None]) for row in rows]
    np.testing.assert_array_equal(np.concatenate(parts), chance)
