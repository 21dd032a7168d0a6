"""``wrap``: what it chooses, and densities that serve several models."""

import os
import pickle
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

import knothole as kh
from knothole.densities.base import Density


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
