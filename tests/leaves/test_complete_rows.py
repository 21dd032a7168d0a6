"""On complete rows, refitting is what libraries do: leaf means, least squares, boosting."""

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.leaves.worlds import refit

from knothole.densities.mixture.density import Factorized
from knothole.trees.read import read, write

rng = np.random.default_rng(0)
X = rng.normal(size=(200, 4))
y = X[:, 0] - 2 * (X[:, 1] > 0.3) + 0.5 * rng.normal(size=200)
label = np.where(y > np.quantile(y, 0.6), "yes", "no")
three = np.digitize(y, np.quantile(y, [0.3, 0.7]))
DENSITY = Factorized().fit(X)


def read_and_refit(model, target=y, **options):
    ensemble = read(model)
    options = {"ridge": 0.0, "condition_on_target": False} | options
    return ensemble, refit(ensemble, DENSITY, X, target, **options)


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeRegressor(max_depth=4),
        RandomForestRegressor(5, max_depth=4, max_features=2, bootstrap=False, random_state=0),
    ],
)
def test_trees_and_forests_have_the_means_of_their_leaves(model):
    model.fit(X, y)
    ensemble, refitted = read_and_refit(model)
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=1e-10)
    assert refitted.summary.method == "tree"


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeClassifier(max_depth=3),
        RandomForestClassifier(4, max_depth=3, bootstrap=False, random_state=0),
        BaggingClassifier(
            DecisionTreeClassifier(max_depth=3), 4, max_features=3, bootstrap=False, random_state=0
        ),
    ],
)
@pytest.mark.parametrize("target", [label, three])
def test_classifiers_have_the_frequencies_of_their_leaves(model, target):
    model.fit(X, target)
    ensemble, refitted = read_and_refit(model, target)
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=1e-10)
    assert refitted.summary.loss == "cross-entropy"
    written = write(model, refitted.ensemble).predict_proba(X)
    np.testing.assert_allclose(written, model.predict_proba(X), atol=1e-12)
    assert (refitted.ensemble.value >= 0).all()


def test_a_ridge_draws_averaged_leaves_to_the_mean():
    model = RandomForestClassifier(3, max_depth=3, random_state=0).fit(X, label)
    _, refitted = read_and_refit(model, label, ridge=1e9)
    np.testing.assert_allclose(refitted.ensemble.value[:, 1], np.mean(label == "yes"), atol=1e-6)
    _, refitted = read_and_refit(model, label, ridge=3.0)
    np.testing.assert_allclose(refitted.ensemble.value.sum(axis=1), 1.0)


@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
def test_forest_is_least_squares_on_leaf_indicators(integration):
    model = xgboost.XGBRegressor(n_estimators=6, max_depth=3, learning_rate=0.3).fit(X, y)
    ensemble, refitted = read_and_refit(model, method="forest", integration=integration)
    indicator = np.zeros((len(X), ensemble.n_leaves))
    np.put_along_axis(indicator, ensemble.leaves(X), 1.0, axis=1)
    expected = np.linalg.lstsq(indicator, y - ensemble.base[0], rcond=1e-10)[0]
    np.testing.assert_allclose(refitted.ensemble.value[:, 0], expected, atol=1e-8)
    rest = y - refitted.ensemble.margin(X)[:, 0]
    np.testing.assert_allclose(refitted.summary.after, (rest**2).mean())
    assert refitted.summary.error <= 1e-12


@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_boosting_is_xgboost(integration, ridge):
    """Its leaf values are rounded to float32, and its gradients are sums in float32."""
    model = xgboost.XGBRegressor(
        n_estimators=8, max_depth=3, learning_rate=0.3, reg_lambda=ridge, tree_method="exact"
    ).fit(X, y)
    ensemble, refitted = read_and_refit(
        model, method="boosting", ridge=ridge, learning_rate=0.3, integration=integration
    )
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=2e-6)


@pytest.mark.parametrize(
    "model",
    [
        GradientBoostingRegressor(n_estimators=6, max_depth=3, learning_rate=0.2),
        HistGradientBoostingRegressor(max_iter=6, max_depth=3, learning_rate=0.2),
    ],
)
def test_boosting_is_scikit_learn(model):
    ensemble, refitted = read_and_refit(model.fit(X, y), method="boosting", learning_rate=0.2)
    theta = [e.value * e.tree_weight[e.leaf_tree][:, None] for e in (refitted.ensemble, ensemble)]
    np.testing.assert_allclose(*theta, atol=1e-6)


def test_boosting_of_a_classifier_is_xgboost():
    """Newton steps, tree by tree; XGBoost sums gradients in float32."""
    model = xgboost.XGBClassifier(
        n_estimators=6, max_depth=3, learning_rate=0.3, reg_lambda=1.0, tree_method="exact"
    ).fit(X, label == "yes")
    ensemble, refitted = read_and_refit(
        model, label == "yes", method="boosting", ridge=1.0, learning_rate=0.3
    )
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=1e-5)


def test_lightgbm_keeps_its_start_in_its_first_tree():
    model = lightgbm.LGBMRegressor(
        n_estimators=5, max_depth=3, learning_rate=0.3, reg_lambda=1.0, verbose=-1
    ).fit(X, y + 50)
    ensemble, refitted = read_and_refit(
        model, y + 50, method="boosting", ridge=1.0, learning_rate=0.3
    )
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=1e-4)
    written = write(model, refitted.ensemble)
    np.testing.assert_allclose(written.predict(X), refitted.ensemble.margin(X)[:, 0])
