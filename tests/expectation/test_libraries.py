"""Complete rows: the expectation is the library's own prediction, whatever the density."""

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeRegressor
from tests.expectation.cases import asked
from tests.trees.sklearn_parity import native_response
from xgboost import XGBClassifier, XGBRegressor

from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.expectation.expectation import Expectation
from knothole.trees.read import read

ROWS = 150

REGRESSORS = {
    "xgboost": lambda: XGBRegressor(n_estimators=8, max_depth=4, n_jobs=1),
    "lightgbm": lambda: LGBMRegressor(n_estimators=8, num_leaves=8, verbose=-1, n_jobs=1),
    "catboost": lambda: CatBoostRegressor(
        iterations=8, depth=3, verbose=False, thread_count=1, allow_writing_files=False
    ),
    "tree": lambda: DecisionTreeRegressor(max_depth=5, random_state=0),
    "forest": lambda: RandomForestRegressor(n_estimators=8, max_depth=4, random_state=0),
    "boosting": lambda: GradientBoostingRegressor(n_estimators=8, random_state=0),
    "histogram": lambda: HistGradientBoostingRegressor(max_iter=8, max_leaf_nodes=8),
}
CLASSIFIERS = {
    "xgboost": lambda: XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1),
    "lightgbm": lambda: LGBMClassifier(n_estimators=4, num_leaves=8, verbose=-1, n_jobs=1),
    "catboost": lambda: CatBoostClassifier(
        iterations=4, depth=3, verbose=False, thread_count=1, allow_writing_files=False
    ),
    "forest": lambda: RandomForestClassifier(n_estimators=8, max_depth=4, random_state=0),
    "extra": lambda: ExtraTreesClassifier(n_estimators=8, max_depth=4, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=4, random_state=0),
    "histogram": lambda: HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=8),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, ROWS)
    X = rng.normal(size=(ROWS, 4)) + group[:, None]
    X[:, 3] = rng.integers(0, 5, ROWS)
    return pd.DataFrame(X, columns=["a", "b", "c", "d"])


def mixture():
    return Mixture(3, n_init=1, max_iter=50, tol=10.0, random_state=0)


def fitted(make, table, classes):
    y = table["a"] * table["b"] + 0.1 * table["d"]
    target = pd.qcut(y, classes, labels=False).to_numpy() if classes else y.to_numpy()
    return make().fit(table.to_numpy(), target)


def assert_native(model, table, density):
    """Prediction, margin and leaf probabilities of complete rows, against library and trees."""
    X = table.to_numpy()
    ensemble = read(model)
    columns = ensemble.columns.describe(X)
    expectation = Expectation.of(ensemble, density.fit(X, columns=columns))
    tolerance = {"float32": 2e-6, "float64": 1e-12}[ensemble.precision]
    native = native_response(model, X, ensemble)
    scale = max(1.0, np.abs(native).max())
    prediction, error = expectation.predict(expectation.evidence(X))
    np.testing.assert_allclose(prediction, native, atol=tolerance * scale)
    assert not error.any()
    # The engine's own walk, which `predict` does not take for complete rows.
    margin, _ = expectation.engine.margin(expectation.evidence(X))
    np.testing.assert_allclose(margin, ensemble.margin(X, 1), atol=1e-12 * scale)
    probabilities = expectation.leaf_probabilities(expectation.evidence(X))
    assert (probabilities.getnnz(axis=1) == ensemble.n_trees).all()
    np.testing.assert_allclose(probabilities.data, 1.0, atol=1e-12)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name, table):
    assert_native(fitted(REGRESSORS[name], table, 0), table, mixture())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name, classes, table):
    assert_native(fitted(CLASSIFIERS[name], table, classes), table, mixture())


def test_under_a_latent_tree(table):
    density = LatentTree(3, max_iter=50, tol=10.0, random_state=0)
    assert_native(fitted(REGRESSORS["xgboost"], table, 0), table, density)


def test_categories_of_lightgbm(table):
    """Levels that the library knows by name, one of them never in a row."""
    town = pd.Categorical.from_codes(
        table["d"].astype(int), categories=["Linz", "Graz", "Wien", "Wels", "Enns", "Bruck"]
    )
    frame = table[["a", "b"]].assign(town=town)
    model = LGBMRegressor(n_estimators=6, num_leaves=8, min_data_per_group=1, verbose=-1, n_jobs=1)
    model.fit(frame, table["a"] * (table["d"] % 2))
    ensemble = read(model)
    assert len(ensemble.sets)
    columns = ensemble.columns.describe(frame)
    density = Mixture(2, n_init=1, max_iter=50, tol=10.0, random_state=0).fit(
        frame, columns=columns
    )
    prediction, _ = asked(Expectation.of(ensemble, density), "predict", frame)
    np.testing.assert_allclose(prediction[:, 0], model.predict(frame), rtol=1e-12)
