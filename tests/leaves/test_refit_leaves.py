"""``Robust.refit_leaves`` on real tables: against the library's own way, and what is deployed.

Errors are means over three splits, because a single one may go either way. Not every table gains:
where the density knows little of a missing value (independent columns, say) refitted leaves can
lose to the old ones and to the library, so nothing is claimed here beyond these two tables.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split

import knothole as kh
from knothole.errors import InvalidInput

SETTINGS = {"n_estimators": 100, "max_depth": 4, "learning_rate": 0.1, "n_jobs": 1}
MIXTURE = kh.Mixture(8, n_init=1, random_state=0)


@dataclass
class Deployed:
    """A model trained on rows with 30 % missing values, and other rows with as many."""

    model: Any
    X: Any
    y: Any
    X_new: Any
    y_new: Any

    @classmethod
    def of(cls, model, load, seed=0):
        X, y = load(return_X_y=True)
        X[np.random.default_rng(seed).random(X.shape) < 0.3] = np.nan
        X, X_new, y, y_new = train_test_split(X, y, random_state=seed, test_size=0.4)
        return cls(model.fit(X, y), X, y, X_new, y_new)

    def error(self, model):
        if hasattr(model, "classes_"):
            return log_loss(self.y_new, model.predict_proba(self.X_new))
        return mean_squared_error(self.y_new, model.predict(self.X_new))


@pytest.fixture(scope="module")
def regression():
    return Deployed.of(xgboost.XGBRegressor(**SETTINGS), load_diabetes)


@pytest.fixture(scope="module")
def robust(regression):
    return kh.wrap(regression.model, regression.X, density=MIXTURE, nan_policy="lost")


@pytest.fixture(scope="module")
def refitted(regression, robust):
    return robust.refit_leaves(regression.X, regression.y)


def ten_columns(return_X_y):
    X, y = load_breast_cancer(return_X_y=return_X_y)
    return X[:, :10].copy(), y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "load"),
    [(xgboost.XGBRegressor, load_diabetes), (xgboost.XGBClassifier, ten_columns)],
)
def test_boosted_models_are_better_than_their_library(kind, load):
    native, new = [], []
    for seed in range(3):
        part = Deployed.of(kind(**SETTINGS), load, seed)
        robust = kh.wrap(part.model, part.X, density=MIXTURE, nan_policy="lost")
        native.append(part.error(part.model))
        new.append(part.error(robust.refit_leaves(part.X, part.y)))
    assert np.mean(new) < np.mean(native)


def test_the_model_s_own_rate_is_kept(refitted):
    assert refitted.refit_.method == "boosting"
    assert refitted.refit_.learning_rate == pytest.approx(0.1, rel=0.01)


def test_the_density_of_deployment_stays(robust, refitted):
    """The one over (X, y) is for missing values in training; at deployment y is not known."""
    assert refitted.density_ is robust.density_
    assert not refitted.density_.target_
    assert refitted.refit_.conditioned in ("values", "scores")


def test_not_recorded_is_no_state_once_every_nan_is_missing(regression, refitted):
    usual = kh.wrap(regression.model, regression.X, density=MIXTURE)
    assert any(column.nullable for column in usual.columns_)
    again = usual.refit_leaves(regression.X, regression.y)
    assert not any(column.nullable for column in again.columns_)
    np.testing.assert_allclose(
        again.predict(regression.X_new), refitted.predict(regression.X_new), rtol=1e-9
    )


def test_states_stay_where_not_every_nan_is_missing(regression):
    usual = kh.wrap(regression.model, regression.X, density=MIXTURE)
    again = usual.refit_leaves(regression.X, regression.y, nan_policy="native")
    assert again.density_ is usual.density_ and again.nan_policy_ == "native"


def test_options_are_given_by_name_or_as_one_object(regression, robust):
    X, y = regression.X, regression.y
    options = kh.RefitOptions(ridge=3.0, objective="expected", learning_rate=0.1)
    by_name = robust.refit_leaves(X, y, ridge=2.0, objective="expected", learning_rate=0.1)
    as_one = robust.refit_leaves(X, y, options, ridge=2.0)
    np.testing.assert_array_equal(as_one.ensemble_.value, by_name.ensemble_.value)
    settings = {"density": MIXTURE, "prefit": True}
    first, second = (
        kh.ExpectedRegressor(regression.model, refit_leaves=refit_leaves, **settings)
        .fit(X, y)
        .robust_
        for refit_leaves in (options, {"ridge": 3.0, "objective": "expected", "learning_rate": 0.1})
    )
    np.testing.assert_array_equal(first.ensemble_.value, second.ensemble_.value)


def test_unknown_options_are_named_beside_the_known_ones(regression, robust):
    message = "refit_leaves has no option 'rigde'; its options are ridge, .*method, .*, n_jobs"
    with pytest.raises(InvalidInput, match=message):
        robust.refit_leaves(regression.X, regression.y, rigde=1.0)
    expected = kh.ExpectedRegressor(regression.model, refit_leaves={"rigde": 1.0}, prefit=True)
    with pytest.raises(InvalidInput, match=message):
        expected.fit(regression.X, regression.y)


def test_values_that_the_model_takes_for_nan_beside_categories():
    """They are missing, as NaN is, while densities are learned and leaves refitted."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=300)
    city = pd.Categorical(np.where(size + rng.normal(size=300) > 0, "Graz", "Linz"))
    y = size + (city == "Graz")
    missing_mask = np.where(rng.random(300) < 0.3, np.nan, size)
    settings = {"n_estimators": 3, "max_depth": 2, "n_jobs": 1, "enable_categorical": True}
    values = []
    for sentinel in (np.nan, -999.0):
        marked = np.where(np.isnan(missing_mask), sentinel, missing_mask)
        table = pd.DataFrame({"size": marked, "city": city})
        model = xgboost.XGBRegressor(missing=sentinel, **settings).fit(table, y)
        robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0), nan_policy="lost")
        values.append(robust.refit_leaves(table, y).ensemble_.value)
    np.testing.assert_allclose(*values, atol=1e-6)
