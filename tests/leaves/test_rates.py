"""The learning rate of boosted models: told by their leaves, kept while refitting."""

from dataclasses import replace

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
)
from tests.leaves.worlds import refit

from knothole.densities.mixture.density import Factorized, Mixture
from knothole.leaves.options import RefitOptions
from knothole.leaves.problem import Problem, rate_of_leaves
from knothole.leaves.refit import choose_rates
from knothole.trees.ensemble import Recipe
from knothole.trees.read import read

rng = np.random.default_rng(4)
X = rng.normal(size=(200, 4))
X[:, 3] = X[:, 0] + 0.3 * rng.normal(size=200)
y = X[:, 0] - 2 * (X[:, 1] > 0.3) + 0.5 * rng.normal(size=200)
INCOMPLETE = X.copy()
INCOMPLETE[rng.random(X.shape) < 0.3] = np.nan
SMALL = {"max_depth": 3, "random_state": 0}


@pytest.fixture(scope="module")
def density():
    return Mixture(4, random_state=0).fit(INCOMPLETE)


def boosted(trees, rate, table=INCOMPLETE, **options):
    model = xgboost.XGBRegressor(n_estimators=trees, max_depth=3, learning_rate=rate, **options)
    return read(model.fit(table, y))


@pytest.mark.parametrize("rate", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    ("kind", "options", "target", "ridge", "tolerance"),
    [
        # The model's own lambda: what is left is float32.
        (xgboost.XGBRegressor, {"n_estimators": 20}, y, 1.0, 1e-4),
        (xgboost.XGBClassifier, {"n_estimators": 20}, y > 0, 1.0, 1e-4),
        (GradientBoostingRegressor, {"n_estimators": 20}, y, 0.0, 1e-6),
        (GradientBoostingClassifier, {"n_estimators": 10}, y > 0, 0.0, 1e-6),
        (HistGradientBoostingRegressor, {"max_iter": 20}, y, 0.0, 1e-4),
        (lightgbm.LGBMRegressor, {"n_estimators": 20, "verbose": -1}, y, 0.0, 1e-4),
        # Another lambda, which counts for more where curvatures are small; samples of the rows.
        (GradientBoostingRegressor, {"n_estimators": 20}, y, 1.0, 0.1),
        (GradientBoostingClassifier, {"n_estimators": 10}, y > 0, 1.0, 0.5),
        (xgboost.XGBRegressor, {"n_estimators": 20, "subsample": 0.7}, y, 1.0, 0.3),
    ],
)
def test_leaves_tell_the_rate(kind, options, target, ridge, rate, tolerance):
    model = kind(**SMALL | {"learning_rate": rate} | options).fit(X, target)
    problem = Problem.of(read(model), target, np.ones(len(X)))
    assert rate_of_leaves(problem, X, ridge=ridge) == pytest.approx(rate, rel=tolerance)


def test_leaves_of_weighted_rows_tell_the_rate():
    weight = np.where(y > 0, 3.0, 0.1)
    model = GradientBoostingRegressor(n_estimators=10, learning_rate=0.2, **SMALL)
    ensemble = read(model.fit(X, y, sample_weight=weight))
    found = rate_of_leaves(Problem.of(ensemble, y, weight), X, ridge=0.0)
    assert found == pytest.approx(0.2, rel=1e-6)


def test_missing_values_go_where_the_model_sends_them():
    problem = Problem.of(boosted(20, 0.2), y, np.ones(len(X)))
    assert rate_of_leaves(problem, INCOMPLETE, ridge=1.0) == pytest.approx(0.2, rel=1e-4)


def test_complete_rows_leave_a_boosted_model_as_it_is():
    ensemble = boosted(20, 0.1, X)
    refitted = refit(ensemble, Factorized().fit(X), X, y)
    assert refitted.summary.method == "boosting"
    np.testing.assert_allclose(refitted.ensemble.value, ensemble.value, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        xgboost.XGBRegressor(n_estimators=5, learning_rate=0.2),
        lightgbm.LGBMRegressor(n_estimators=5, learning_rate=0.2, verbose=-1),
        catboost.CatBoostRegressor(
            iterations=5, learning_rate=0.2, verbose=0, allow_writing_files=False
        ),
        GradientBoostingRegressor(n_estimators=5, learning_rate=0.2),
        HistGradientBoostingRegressor(max_iter=5, learning_rate=0.2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_libraries_tell_the_rate(model):
    ensemble = read(model.fit(X, y))
    assert ensemble.recipe.learning_rate == pytest.approx(0.2, rel=1e-6)
    problem = Problem.of(ensemble, rng.normal(size=200), np.ones(200))  # leaves would not tell
    rates = choose_rates(RefitOptions(method="boosting", ridge=1.0), problem, X)
    assert rates[0] == ensemble.recipe.learning_rate and rates[-1] == 1.0


def test_a_rate_that_nothing_tells_is_cross_validated(density):
    """Targets that the model knows nothing of: whole steps are best, as in the paper."""
    ensemble = replace(boosted(5, 0.3), recipe=Recipe())
    problem = Problem.of(ensemble, -y, np.ones(len(y)))
    assert rate_of_leaves(problem, INCOMPLETE, ridge=1.0) is None
    refitted = refit(ensemble, density, INCOMPLETE, -y)
    assert refitted.summary.learning_rate == 1.0
    assert refitted.summary.after < 0.7 * refitted.summary.before
    again = refit(ensemble, density, INCOMPLETE, -y, condition_on_target=False)
    assert again.summary.learning_rate == 1.0


@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
def test_few_trees_take_larger_steps_until_the_loss_does_not_rise(integration, density):
    options = {"condition_on_target": False, "integration": integration}
    ensemble = boosted(4, 0.1)
    own = refit(
        ensemble, density, INCOMPLETE, y, method="boosting", learning_rate=0.1, **options
    ).summary
    assert own.after > own.before
    raised = refit(ensemble, density, INCOMPLETE, y, **options).summary
    assert raised.learning_rate > 0.1
    assert raised.after <= raised.before * 1.001 + 3 * raised.error


def test_full_steps_may_raise_the_loss_where_all_leaves_at_once_do_not():
    """Prop. 4 is greedy and starts anew, so even without a ridge the old leaves may be better."""
    draw = np.random.default_rng(2)
    table = draw.normal(size=(200, 4))
    table[:, 3] = table[:, 0] + 0.3 * draw.normal(size=200)
    target = table[:, 0] - 2 * (table[:, 1] > 0.3) + 0.5 * draw.normal(size=200)
    table[draw.random(table.shape) < 0.3] = np.nan
    model = xgboost.XGBRegressor(n_estimators=10, max_depth=3, learning_rate=0.3)
    arguments = (
        read(model.fit(table, target)),
        Mixture(3, n_init=1, random_state=0).fit(table),
        table,
        target,
    )
    options = {"integration": "exact", "condition_on_target": False, "ridge": 0.0}
    greedy = refit(*arguments, method="boosting", learning_rate=1.0, **options).summary
    at_once = refit(*arguments, method="forest", **options).summary
    own = refit(*arguments, **options).summary
    assert greedy.after > greedy.before
    assert at_once.after < own.after < at_once.before == own.before == greedy.before
