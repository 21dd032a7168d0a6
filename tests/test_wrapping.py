"""``wrap``: what it chooses, and densities that serve several models."""

import os
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.densities.base import Density
from knothole.errors import InvalidInput


def made():
    """Two groups, in which numbers are correlated differently, and a category that tells them."""
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=600)
    x = rng.normal(size=(600, 3))
    x[:, 1] += np.where(group, 1.0, -1.0) * x[:, 0]
    table = pd.DataFrame(x, columns=list("abc"))
    table["d"] = pd.Categorical(np.where(rng.random(600) < 0.9, group, 1 - group))
    return table.mask(rng.random(table.shape) < 0.05), x[:, 1] + x[:, 2]


def suite(name, rows=1200):
    """Some rows of a table of the suite."""
    if "KNOTHOLE_DATA" not in os.environ:
        pytest.skip("KNOTHOLE_DATA is not set")
    table = pd.read_csv(Path(os.environ["KNOTHOLE_DATA"], "suite", f"{name}.csv"))[:rows]
    y = table.pop("target").to_numpy()
    words = [column for column in table if not pd.api.types.is_numeric_dtype(table[column])]
    table[words] = table[words].astype("category")
    return table, y


@pytest.mark.parametrize("name", ["made", "abalone", "titanic"])
def test_the_order_of_columns_does_not_change_which_family_is_chosen(name):
    X, y = made() if name == "made" else suite(name)
    kind = HistGradientBoostingClassifier if name == "titanic" else HistGradientBoostingRegressor
    model = kind(max_iter=20, categorical_features="from_dtype", random_state=0)

    def wrapped(table):
        return kh.wrap(model.fit(table, y), table, y, correction=False)

    first, again = wrapped(X), wrapped(X)
    pd.testing.assert_frame_equal(
        first.selection_.drop(columns="seconds"), again.selection_.drop(columns="seconds")
    )
    assert_array_equal(first.margin(X), again.margin(X))
    for order in (X.columns[::-1], np.random.default_rng(1).permutation(X.columns)):
        other = wrapped(X[list(order)])
        assert type(other.density_) is type(first.density_)


def test_a_density_serves_another_model_of_the_table(monkeypatch):
    X, y = made()
    X = X.assign(d=X["d"].cat.codes.where(X["d"].notna()))
    forest = RandomForestRegressor(5, max_depth=4, random_state=0).fit(X, y)
    robust = kh.wrap(forest, X, y, [kh.Factorized(), kh.Mixture(4, random_state=0)])
    other = RandomForestRegressor(3, max_depth=2, random_state=1).fit(X, -y)
    monkeypatch.setattr(Density, "fit_matrix", None)  # nothing is learned again
    under = kh.wrap(other, X, -y, density=robust.density_)
    assert under.density_ is robust.density_ and under.selection_ is None
    rows = X.mask(np.random.default_rng(1).random(X.shape) < 0.3)
    copied = kh.wrap(other, X, -y, density=pickle.loads(pickle.dumps(robust.density_)))
    assert_array_equal(under.predict(rows), copied.predict(rows))
    assert np.corrcoef(under.predict(rows), robust.predict(rows))[0, 1] < -0.5


@pytest.mark.parametrize("given", [{"X_valid": 1}, {"patterns": 1}])
def test_what_no_correction_would_use_is_refused(given):
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = DecisionTreeRegressor(max_depth=2).fit(X, X[:, 0])
    (name,) = given
    given = {"X_valid": {"X_valid": X}, "patterns": {"patterns": np.eye(2, dtype=bool)}}[name]
    for density in ("independent", kh.Factorized(), kh.Factorized().fit(X)):
        with pytest.raises(InvalidInput, match=f"^{name} is for the correction.*correction=True"):
            kh.wrap(model, X, density=density, **given)
    kh.wrap(model, X, density=kh.Factorized(), correction=True, **given)


def test_a_classifier_of_several_labels_is_refused_and_its_booster_is_not():
    xgboost = pytest.importorskip("xgboost")
    X = np.random.default_rng(0).normal(size=(60, 3))
    labels = (X[:, :2] > 0).astype(int)
    model = xgboost.XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1).fit(X, labels)
    with pytest.raises(kh.errors.UnsupportedModel, match=r"several labels.*get_booster\(\)"):
        kh.wrap(model, X, density="independent")
    robust = kh.wrap(model.get_booster(), X, density="independent")
    np.testing.assert_allclose(robust.predict(X), model.predict_proba(X), rtol=1e-5)


def test_spaces_in_names_before_lightgbm_in_a_pipeline():
    lightgbm = pytest.importorskip("lightgbm")
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(100, 2)), columns=["a b", "c d e"])
    boosted = lightgbm.LGBMRegressor(n_estimators=3, verbose=-1, n_jobs=1)
    model = make_pipeline(StandardScaler(), boosted).set_output(transform="pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of spaces
        model.fit(X, X["a b"])
        robust = kh.wrap(model, X, density="independent")
        np.testing.assert_allclose(robust.predict(X), model.predict(X))
        assert np.isfinite(robust.predict(X.assign(**{"c d e": np.nan}))).all()
