"""Corrections of models of all kinds, on tables as users have them."""

from dataclasses import replace
from shutil import rmtree

import catboost
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import knothole as kh
from knothole.columns.columns import Column, Columns
from knothole.inspection.correction import as_trained
from knothole.trees.in_variables import in_levels
from knothole.trees.libraries import unfitted, weight_name
from knothole.trees.read import read

SMALL = {"n_estimators": 20, "max_depth": 3, "n_jobs": 1}
BOOSTED = {"max_iter": 15, "max_leaf_nodes": 8}
DENSITY = kh.Factorized(random_state=0)


def frame(n=600, seed=0):
    """Columns that depend on one another, so that independence is wrong, and a target."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    table = pd.DataFrame({"a": a, "b": a + 0.1 * rng.normal(size=n), "c": rng.normal(size=n)})
    return table, (np.sin(2 * a) + table["b"] * (table["c"] > 0)).to_numpy()


def with_missing(table, seed=1):
    return table.mask(np.random.default_rng(seed).random(table.shape) < 0.4)


def test_a_pipeline_has_the_correction_of_its_trees():
    X, y = frame()
    bare = xgboost.XGBRegressor(**SMALL).fit(X, y)
    piped = make_pipeline(StandardScaler(), xgboost.XGBRegressor(**SMALL)).fit(X, y)
    rows = with_missing(frame(100, 5)[0])
    own, found = (kh.wrap(model, X, y, DENSITY, correction=True) for model in (bare, piped))
    # Rounding may make small trees split elsewhere: answers are alike, not the same.
    apart, moved = found.predict(rows) - own.predict(rows), own.predict(rows, corrected=False)
    moved -= own.predict(rows)
    assert np.abs(moved).max() > 0.1
    assert np.sqrt(np.mean(apart**2)) < 0.2 * np.sqrt(np.mean(moved**2))


@pytest.mark.parametrize("told", ["names", "indices", "fit"])
def test_catboost_with_categories_has_clones(told, tmp_path, monkeypatch, capfd):
    X, y = frame()
    X["d"] = np.where(X["a"] > 0, "up", "down")
    given = {"names": ["d"], "indices": [3], "fit": None}[told]
    model = catboost.CatBoostRegressor(
        iterations=15, depth=3, max_ctr_complexity=1, cat_features=given, thread_count=1
    )
    monkeypatch.chdir(tmp_path)
    model.fit(X, y, verbose=False, cat_features=["d"] if told == "fit" else None)
    rmtree(tmp_path / "catboost_info")  # what it writes by default
    robust = kh.wrap(model, X, y, DENSITY, correction=True)
    assert not list(tmp_path.iterdir())
    assert robust.correction_["kept"].any()
    assert "learn:" not in capfd.readouterr().out  # CatBoost tells by default how it gets on
    again = unfitted(model)
    assert not again.is_fitted()
    assert again.get_params()["cat_features"] is not None


@pytest.mark.parametrize(
    "model",
    [
        catboost.CatBoostRegressor(
            iterations=15,
            depth=3,
            verbose=0,
            max_ctr_complexity=1,
            cat_features=["d"],
            allow_writing_files=False,
        ),
        HistGradientBoostingRegressor(categorical_features="from_dtype", **BOOSTED),
    ],
)
def test_a_level_that_some_clones_have_not_seen(model):
    X, y = frame()
    X["d"] = np.where(X["a"] > 0, "up", "down")
    X.loc[7, "d"] = "a rare one"
    if not hasattr(model, "get_cat_feature_indices"):
        X["d"] = X["d"].astype("category")
    robust = kh.wrap(unfitted(model).fit(X, y), X, y, DENSITY, correction=True)
    assert robust.correction_["kept"].any()


def test_trees_over_levels_in_another_order():
    X, y = frame()
    X["d"] = pd.Categorical(np.random.default_rng(0).choice(list("uvwxyz"), len(X)))
    model = HistGradientBoostingRegressor(categorical_features="from_dtype", **BOOSTED)
    ensemble = read(model.fit(X, y + 2 * X["d"].isin(["v", "x"])))
    own = [
        replace(column, levels=("new", *reversed(column.levels)) if column.levels else ())
        for column in ensemble.columns
    ]
    found = in_levels(ensemble, replace(ensemble.columns, columns=tuple(own)))
    table = X.assign(d=X["d"].astype(object))
    assert_array_equal(
        found.predict(found.columns.matrix(table)),
        ensemble.predict(ensemble.columns.matrix(table)),
    )
    assert in_levels(ensemble, ensemble.columns) is ensemble
    unsplit = read(model.fit(X.assign(d="u").astype({"d": "category"}), y))
    wider = replace(unsplit.columns, columns=tuple(own))
    assert in_levels(unsplit, wider).columns.names == unsplit.columns.names


def test_columns_in_another_order_and_others_beside_them_change_nothing():
    X, y = frame()
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    rows = with_missing(frame(60, 5)[0])
    own = kh.wrap(model, X, y, DENSITY, correction=True)
    other = kh.wrap(model, X[["c", "a", "b"]], y, DENSITY, correction=True)
    apart, moved = other.predict(rows) - own.predict(rows), own.predict(rows, corrected=False)
    moved -= own.predict(rows)
    assert np.sqrt(np.mean(apart**2)) < 0.2 * np.sqrt(np.mean(moved**2))


def test_tables_for_clones_are_as_the_model_takes_them():
    columns = Columns((Column("a"), Column("b")))
    table = pd.DataFrame({"b": [1.0], "x": [2.0], "a": [3.0]})
    assert list(as_trained(table, columns, None).columns) == ["a", "b"]
    found = as_trained(pl.DataFrame({"b": ["text"], "a": [1.0]}), columns, None)
    assert isinstance(found, pd.DataFrame)  # of text in polars, LightGBM ends the process
    assert list(found.columns) == ["a", "b"]
    array = np.zeros((1, 2))
    assert as_trained(array, columns, None) is array


def blends():
    hist, boosted = HistGradientBoostingClassifier(**BOOSTED), xgboost.XGBClassifier(**SMALL)
    poisson = HistGradientBoostingRegressor(loss="poisson", **BOOSTED)
    return {
        "transformed": TransformedTargetRegressor(poisson, func=np.log, inverse_func=np.exp),
        "votes for numbers": VotingRegressor(
            [("a", poisson), ("b", xgboost.XGBRegressor(**SMALL))]
        ),
        "votes": VotingClassifier([("a", hist), ("b", boosted)], voting="soft"),
        "calibrated": CalibratedClassifierCV(hist, cv=2),
    }


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("transformed", 0), ("votes for numbers", 0), ("votes", 2), ("votes", 3),
        ("calibrated", 2), ("calibrated", 3),
    ],
)  # fmt: skip
def test_models_made_of_models(name, classes, tmp_path):
    X, y = frame(400)
    y = y - y.min() + 1
    classifier = classes > 0
    if classifier:
        y = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    if name == "transformed":
        y = np.exp(y)
    robust = kh.wrap(blends()[name].fit(X, y), X, y, DENSITY, correction=True)
    rows = with_missing(frame(50, 5)[0])
    ask = robust.predict_proba if classifier else robust.predict
    found = np.asarray(ask(rows))
    assert robust.correction_["kept"].any()
    assert np.isfinite(found).all()
    if classifier:
        assert_allclose(found.sum(axis=1), 1.0)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    assert_array_equal(
        np.asarray((again.predict_proba if classifier else again.predict)(rows)), found
    )


def test_positive_predictions_have_no_scale():
    X, y = frame(500)
    y, rows = np.exp(y), with_missing(frame(50, 5)[0])
    found = []
    for unit in (1.0, 2.0**-27):  # a power of two: trees are the same to the last bit
        model = HistGradientBoostingRegressor(loss="gamma", **BOOSTED).fit(X, unit * y)
        robust = kh.wrap(model, X, unit * y, DENSITY, correction=True)
        assert robust.correction_["kept"].any()
        found.append(robust.predict(rows) / unit)
    assert np.abs(np.log(found[1] / found[0])).mean() < 0.02


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_outputs_too_large_to_be_squared_have_no_correction():
    X, y = frame(300)
    model = HistGradientBoostingRegressor(**BOOSTED).fit(X, y)
    large = TransformedTargetRegressor(
        model, func=_small, inverse_func=_large, check_inverse=False
    ).fit(X, 1e160 * y)
    robust = kh.wrap(large, X, 1e160 * y, DENSITY, correction=True)
    assert "cannot be squared" in robust.correction_["why"].iloc[0]
    assert np.isfinite(robust.predict(with_missing(X))).all()


def _small(y):
    return y / 1e160


def _large(y):
    return y * 1e160


# ---- the spread, and rows that no part has learned from ------------------------------------------


def test_a_missing_value_that_no_tree_uses_matters_to_the_spread():
    """Of columns a and d, d tells a, but the model has split on a alone."""
    rng = np.random.default_rng(0)
    d = rng.integers(0, 2, 900).astype(float)
    X = np.column_stack([d, rng.normal(size=900), d])
    y = 3 * X[:, 0] + X[:, 1]
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    robust = kh.wrap(model, X, y, kh.Mixture(4, random_state=0), correction=True)
    rows = np.array([[np.nan, 0.5, np.nan], [np.nan, -0.5, np.nan]])
    _, std = robust.predict(rows, return_std=True)
    assert_allclose(std, 1.5, atol=0.3)


def test_values_that_the_caller_says_are_lost_are_left_to_p():
    """No part has learned from them: there it was inferred whether a value was lost."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 4, 1200).astype(float)
    value = np.where(rng.random(1200) < 0.5, np.nan, code)
    X = np.column_stack([code, value, rng.normal(size=1200)])
    y = np.where(np.isnan(value), 20.0, 0.0) + code + 0.1 * X[:, 2]
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    robust = kh.wrap(model, X, density=kh.Mixture(8, random_state=0), correction=True, X_valid=X)
    rows = np.column_stack([np.arange(4.0), np.full(4, np.nan), np.zeros(4)])
    mask = np.isnan(rows)
    found, std = robust.predict(rows, mask, return_std=True)
    assert_array_equal(found, robust.predict(rows, mask, corrected=False))
    assert_allclose(found, np.arange(4), atol=0.1)
    assert_allclose(std, 0.0, atol=0.1)


@pytest.mark.parametrize("policy", ["infer", "native"])
def test_a_column_that_is_absent_where_nan_is_a_value_is_left_to_p(policy):
    """An absent column says nothing; parts learned where its missing value says something."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 4, 1200).astype(float)
    value = np.where(rng.random(1200) < 0.5, np.nan, code)
    X = pd.DataFrame({"x0": code, "x1": value, "x2": rng.normal(size=1200)})
    y = np.where(np.isnan(value), 20.0, 0.0) + code + 0.1 * X["x2"]
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    density = kh.Mixture(8, random_state=0)
    robust = kh.wrap(model, X, density=density, correction=True, X_valid=X, nan_policy=policy)
    rows = X[["x0", "x2"]].head(4)
    expected = robust.predict(rows, absent="missing", corrected=False)
    assert_array_equal(robust.predict(rows, absent="missing"), expected)


# ---- one row, one answer; complete rows are the model's ------------------------------------------


def test_many_classes_of_a_row_alone_and_among_others():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 4)), rng.integers(0, 10, 600)
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1).fit(X, y)
    robust = kh.wrap(model, X, density=DENSITY)
    together = robust.predict_proba(X[:100])
    alone = np.concatenate([robust.predict_proba(X[i : i + 1]) for i in range(100)])
    assert_array_equal(alone, together)


def test_what_a_model_takes_for_nan_is_known():
    """XGBoost's missing=0: a zero is no missing value, also where NaN would be one."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (800, 3)).astype(float)
    X[:, 1] = X[:, 0]
    y = X[:, 0] + X[:, 2]
    model = xgboost.XGBRegressor(missing=0, **SMALL).fit(X, y)
    robust = kh.wrap(model, X, y, kh.Mixture(4, random_state=0))
    assert_allclose(robust.predict(X), model.predict(X), atol=1e-5)


# ---- weights, and categories of pandas in pipelines ----------------------------------------------


def test_weights_reach_the_last_step_of_a_pipeline():
    X, y = frame(300)
    X["d"] = pd.Categorical(np.where(X["a"] > 0, "up", "down"))
    dummies = make_column_transformer((OneHotEncoder(), ["d"]), remainder="passthrough")
    model = make_pipeline(dummies, HistGradientBoostingRegressor(**BOOSTED))
    assert weight_name(model) == "histgradientboostingregressor__sample_weight"
    weight = np.where(X["a"] > 0, 5.0, 0.1)
    for learn in ("own", "expected"):
        heavy, light = (
            kh.ExpectedRegressor(model, density=DENSITY, learn=learn).fit(X, y, sample_weight=own)
            for own in (weight, 1 / weight)
        )
        up = (X["a"] > 0).to_numpy()
        of_heavy, of_light = (np.abs(one.predict(X) - y)[up].mean() for one in (heavy, light))
        assert of_heavy < of_light


def test_names_that_lightgbm_has_changed_are_those_of_the_table(tmp_path):
    X, y = frame(300)
    X = X.rename(columns={"a": "blood pressure"})
    model = lightgbm.LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1).fit(X, y)
    assert "blood_pressure" in model.feature_name_
    robust = kh.wrap(model, X, y, DENSITY, correction=True)
    assert robust.correction_["kept"].any()
    assert_allclose(robust.predict(X), model.predict(X))
    robust.save(tmp_path / "model.knothole")
    rows = with_missing(X.head(20))
    assert_array_equal(kh.load(tmp_path / "model.knothole").predict(rows), robust.predict(rows))
