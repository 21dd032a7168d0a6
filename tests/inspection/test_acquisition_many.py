"""Rows with many missing values: their gains come from bins of whole draws."""

import numpy as np
import pandas as pd
import pytest
import xgboost
from numpy.testing import assert_allclose

import knothole as kh
from knothole.inspection import acquisition as module


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(600, 1)) + rng.normal(size=(600, 5)) * [0.3, 0.6, 1.0, 1.5, 1.0]


def both(robust, rows, monkeypatch, **options):
    """Gains from expectations of single values, and from bins."""
    plain = robust.acquire(rows, **options)
    monkeypatch.setattr(module, "MANY", 1)
    return plain, robust.acquire(rows, **options)


@pytest.mark.parametrize("criterion", [None, "brier", "entropy"])
def test_bins_tell_the_same_gains(X, criterion, monkeypatch):
    y = X[:, 0] * X[:, 1] + X[:, 2]
    kind = xgboost.XGBRegressor if criterion is None else xgboost.XGBClassifier
    model = kind(n_estimators=15, max_depth=3).fit(X, y if criterion is None else y > 0.5)
    robust = kh.wrap(model, X, density=kh.Mixture(4, random_state=0))
    rows = X[:25].copy()
    rows[:, :4] = np.nan
    plain, bins = both(robust, rows, monkeypatch, criterion=criterion)
    assert bins.gain["x4"].isna().all()
    total = plain.gain.max(axis=1).mean()
    apart = (bins.gain - plain.gain).iloc[:, :4].to_numpy()
    error = np.hypot(bins.error, plain.error).iloc[:, :4].to_numpy()
    assert np.abs(apart.mean(axis=0)).max() < 0.05 * total
    assert (np.abs(apart) < 3 * error + 0.05 * total).mean() > 0.95
    assert error.mean() < 0.2 * total


def test_errors_of_binned_gains_hold(X, monkeypatch):
    model = xgboost.XGBRegressor(n_estimators=15, max_depth=3).fit(X, X[:, 0] * X[:, 1] + X[:, 2])
    density = kh.GaussianMixture(1, random_state=0).fit(X)
    rows = X[:20].copy()
    rows[:, :3] = np.nan
    monkeypatch.setattr(module, "MANY", 1)
    found = [kh.wrap(model, X, density=density, random_state=s).acquire(rows) for s in range(8)]
    gain, error = (np.array([getattr(f, part).iloc[:, :3] for f in found])
                   for part in ("gain", "error"))  # fmt: skip
    ratio = np.sqrt(gain.var(axis=0, ddof=1).mean() / (error**2).mean())
    assert 0.5 < ratio < 1.25


def test_one_row_one_answer_and_categories_stay_exact(X, monkeypatch):
    table = pd.DataFrame(X[:, :3], columns=list("abc"))
    table["k"] = pd.Categorical(np.where(X[:, 3] > 0, "high", "low"))
    model = xgboost.XGBRegressor(n_estimators=15, max_depth=3, enable_categorical=True)
    model.fit(table, X[:, 0] + (X[:, 3] > 0))
    robust = kh.wrap(model, table, density=kh.Mixture(4, random_state=0))
    rows = table[:12].copy()
    rows.loc[:, ["a", "b"]] = np.nan
    rows["k"] = pd.Categorical([None] * 12, categories=["high", "low"])
    plain, bins = both(robust, rows, monkeypatch)
    assert_allclose(bins.gain["k"], plain.gain["k"], rtol=1e-12)
    assert (bins.gain[["a", "b"]] != plain.gain[["a", "b"]]).all().all()
    again = robust.acquire(rows[::-1])
    pd.testing.assert_frame_equal(again.gain[::-1], bins.gain, check_exact=True)
    one = robust.acquire(rows[5:6])
    pd.testing.assert_frame_equal(one.gain, bins.gain[5:6], check_exact=True)
