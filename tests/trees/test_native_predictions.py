"""How closely complete rows have the library's own prediction: what docs/libraries.md says."""

import lightgbm
import numpy as np
import pytest
import xgboost
from catboost import CatBoostClassifier, CatBoostRegressor
from sklearn import ensemble, tree

from knothole.trees.read import read

rng = np.random.default_rng(0)
X = rng.normal(size=(1500, 4))
Y = X[:, 0] * X[:, 1] + np.sin(X[:, 2]) + 0.3 * rng.normal(size=1500) + 100
QUIET = {"verbose": False, "allow_writing_files": False}

EQUAL = {
    "LightGBM": lightgbm.LGBMRegressor(n_estimators=60, n_jobs=1, verbose=-1),
    "DecisionTree": tree.DecisionTreeRegressor(),
    "GradientBoosting": ensemble.GradientBoostingRegressor(),
    "HistGradientBoosting": ensemble.HistGradientBoostingRegressor(),
}
TO_ROUNDING = {
    "CatBoost": CatBoostRegressor(iterations=60, **QUIET),
    "RandomForest": ensemble.RandomForestRegressor(20, n_jobs=1),
    "ExtraTrees": ensemble.ExtraTreesRegressor(20, n_jobs=1),
    "Bagging": ensemble.BaggingRegressor(tree.DecisionTreeRegressor(), 10),
}
CLASSIFIERS = {
    "LightGBM": (lightgbm.LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1), 1e-14),
    "CatBoost": (CatBoostClassifier(iterations=30, **QUIET), 1e-14),
    "RandomForest": (ensemble.RandomForestClassifier(10, n_jobs=1), 1e-14),
    "GradientBoosting": (ensemble.GradientBoostingClassifier(n_estimators=20), 1e-14),
    "HistGradientBoosting": (ensemble.HistGradientBoostingClassifier(max_iter=20), 1e-14),
    "XGBoost": (xgboost.XGBClassifier(n_estimators=60, n_jobs=1), 1e-6),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_bit_for_bit(name):
    model = EQUAL[name].fit(X, Y)
    np.testing.assert_array_equal(read(model).predict(X)[:, 0], model.predict(X))


@pytest.mark.parametrize("name", TO_ROUNDING)
def test_equal_but_for_the_order_of_a_sum(name):
    model = TO_ROUNDING[name].fit(X, Y)
    np.testing.assert_allclose(read(model).predict(X)[:, 0], model.predict(X), rtol=1e-14)


def test_xgboost_adds_up_in_single_precision():
    model = xgboost.XGBRegressor(n_estimators=60, n_jobs=1).fit(X, Y)
    np.testing.assert_allclose(read(model).predict(X)[:, 0], model.predict(X), rtol=2e-6)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_probabilities(name):
    model, allowed = CLASSIFIERS[name]
    model.fit(X, np.digitize(Y, [99.7, 100.4]))
    np.testing.assert_allclose(read(model).predict(X), model.predict_proba(X), atol=allowed)
