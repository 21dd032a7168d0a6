"""Ensembles over variables: the leaves of rows and of their points are the same."""

import numpy as np
import pandas as pd
import pytest
from generate import Shape, random_ensemble, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

from knothole.columns.columns import Column, Columns, Kind, OneHotGroup
from knothole.columns.evidence import with_nan
from knothole.errors import ColumnMismatch
from knothole.trees.in_variables import in_variables
from knothole.trees.read import read


def one_hot_rows(rng, X, group):
    """``X`` with the columns of a one-hot group overwritten by proper dummies."""
    X = X.copy()
    n = len(group.columns)
    category = rng.integers(0, n + group.baseline, len(X))
    X[:, group.columns] = category[:, None] == np.arange(n)
    return X


@st.composite
def cases(draw):
    """An ensemble, a description of its columns with one-hot groups and nullable ones, and rows."""
    n_dummies = draw(st.sampled_from([1, 2, 3, 66]))
    baseline = n_dummies == 1 or draw(st.booleans())
    others = draw(st.lists(st.sampled_from([0, 0, 3, 64]), max_size=3))
    levels = (0,) * n_dummies + tuple(others)
    shape = Shape(
        seed=draw(st.integers(0, 2**32 - 1)),
        n_trees=3,
        depth=draw(st.integers(0, 6)),
        levels=levels,
        sentinel=draw(st.booleans()),
    )
    ensemble = random_ensemble(shape)
    rng = np.random.default_rng(shape.seed)
    order = rng.permutation(n_dummies)
    group = OneHotGroup("hue", tuple(order.tolist()), baseline)
    further = draw(st.sampled_from([(), ("one more", "and another")]))
    columns = tuple(
        Column(c.name, c.kind, c.levels + further) if c.levels else c for c in ensemble.columns
    )
    nullable = rng.random(len(levels)) < 0.5
    nullable[:n_dummies] = nullable[0]
    columns = Columns(columns, (group,)).with_nullable(nullable)
    X = one_hot_rows(rng, random_rows(ensemble, 60, seed=shape.seed), group)
    n_levels = np.array([len(c.levels) for c in columns])
    for i in np.flatnonzero(n_levels):
        X[:, i] = rng.integers(0, n_levels[i], len(X))
    X[:, n_dummies:][rng.random((len(X), len(others))) < 0.2] = np.nan
    X[:5, :n_dummies] = np.nan
    return ensemble, columns, X


def read_in_variables(ensemble, columns, X):
    points = columns.evidence(with_nan(X, ensemble.sentinel, columns)).points
    return in_variables(ensemble, columns), points


@settings(max_examples=60, deadline=None)
@given(cases())
def test_points_reach_the_leaves_of_their_rows(case):
    """NaN of nullable variables is a state, any other NaN is lost: both go the library's way."""
    ensemble, columns, X = case
    over_variables, points = read_in_variables(*case)
    assert points.shape[1] == len(over_variables.columns) == len(columns.variables)
    np.testing.assert_array_equal(
        over_variables.leaves(points, threads=1), ensemble.leaves(X, threads=1)
    )


@settings(max_examples=20, deadline=None)
@given(cases())
def test_values_weights_and_leaves_stay(case):
    ensemble, columns, X = case
    over_variables, points = read_in_variables(*case)
    np.testing.assert_array_equal(over_variables.margin(points), ensemble.margin(X))
    assert over_variables.columns == columns.as_variables()
    assert (over_variables.left == ensemble.left).all()


@pytest.mark.parametrize(
    ("threshold", "left"),
    [
        (-0.5, set()),
        (0.0, set()),
        (5e-324, {0, 2, 3}),
        (0.5, {0, 2, 3}),
        (1.0, {0, 2, 3}),
        (np.nextafter(1.0, 2.0), {0, 1, 2, 3}),
        (np.inf, {0, 1, 2, 3}),
    ],
)
def test_a_split_on_a_dummy_is_a_set_of_categories(threshold, left):
    ensemble = random_ensemble(n_trees=1, depth=1, levels=(0, 0, 0))
    root = int(ensemble.roots[0])
    ensemble.threshold.flags.writeable = True
    ensemble.feature.flags.writeable = True
    ensemble.threshold[root], ensemble.feature[root] = threshold, 1
    columns = Columns(ensemble.columns.columns, (OneHotGroup("hue", (0, 1, 2), baseline=True),))
    over_variables = in_variables(ensemble, columns)
    assert over_variables.n_levels.tolist() == [4]
    assert np.isnan(over_variables.threshold[root])
    word = int(over_variables.sets[over_variables.set_start[root]])
    assert {c for c in range(4) if word >> c & 1} == left


def test_without_one_hot_groups_or_nullable_columns_nothing_changes():
    ensemble = random_ensemble(levels=(0, 5, 0), depth=5)
    over_variables = in_variables(ensemble, ensemble.columns)
    assert over_variables.columns == ensemble.columns
    X = random_rows(ensemble, 100)
    X[:, 1] = np.where(X[:, 1] == 5, np.nan, X[:, 1])
    np.testing.assert_array_equal(over_variables.leaves(X), ensemble.leaves(X))


def test_rows_without_sentinels_are_not_copied():
    ensemble = random_ensemble()
    X = random_rows(ensemble, 10)
    assert with_nan(X, ensemble.sentinel, ensemble.columns) is X


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns((Column("n0"),)), "1 columns, but the model 2"),
        (Columns((Column("n0"), Column("c"))), "'c' stands where the model has 'c1'"),
        (Columns((Column("n0"), Column("c1"))), "'c1' is described as continuous"),
        (
            Columns((Column("n0", Kind.CATEGORICAL, ("x",)), Column("c1", Kind.CATEGORICAL))),
            "'n0' is described as categorical",
        ),
        (
            Columns((Column("n0"), Column("c1", Kind.CATEGORICAL, ("level 1", "level 0")))),
            "'c1' is described",
        ),
    ],
)
def test_a_description_that_does_not_suit_the_model_is_refused(columns, message):
    ensemble = random_ensemble(levels=(0, 2))
    with pytest.raises(ColumnMismatch, match=message):
        in_variables(ensemble, columns)


def homes(n=400):
    """A table with a category, one-hot dummies, natural NaN, and a target."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(0, 60, n),
            "size": rng.normal(size=n),
            "city": rng.choice(["Graz", "Linz", "Wien"], n),
            "zone": pd.Categorical(rng.choice(["x", "y", "zz"], n)),
        }
    )
    y = table["age"] + 10 * (table["city"] == "Linz") + 3 * (table["zone"] == "y") + table["size"]
    table.loc[rng.random(n) < 0.2, "size"] = np.nan
    return pd.get_dummies(table, columns=["city"], dtype=float), y


def fitted_models():
    lightgbm = {"n_estimators": 8, "n_jobs": 1, "verbose": -1}
    xgboost = {"n_estimators": 8, "n_jobs": 1, "enable_categorical": True}
    hist = HistGradientBoostingRegressor(max_iter=8, categorical_features="from_dtype")
    return {
        "xgboost": ("xgboost", "XGBRegressor", xgboost),
        "xgboost, zeros missing": ("xgboost", "XGBRegressor", xgboost | {"missing": 0.0}),
        "lightgbm": ("lightgbm", "LGBMRegressor", lightgbm),
        "lightgbm, zeros missing": (
            "lightgbm",
            "LGBMRegressor",
            lightgbm | {"zero_as_missing": True},
        ),
        "scikit-learn": hist,
    }


@pytest.mark.parametrize("name", fitted_models())
def test_from_a_table_through_variables_to_the_librarys_own_prediction(name):
    """Parity to the rounding of float32: the leaves are exactly the library's."""
    model = fitted_models()[name]
    if isinstance(model, tuple):
        library, kind, options = model
        model = getattr(pytest.importorskip(library), kind)(**options)
    table, y = homes()
    model.fit(table, y)
    ensemble = read(model)
    columns = ensemble.columns.describe(table, one_hot="auto")
    assert columns.one_hot == (OneHotGroup("city", (3, 4, 5)),)
    assert columns[0].kind is Kind.INTEGER and columns[2].levels == ("x", "y", "zz")
    X = columns.matrix(table)
    seen = with_nan(X, ensemble.sentinel, columns)
    columns = columns.with_nullable(np.isnan(seen).any(axis=0))
    over_variables = in_variables(ensemble, columns)
    assert over_variables.columns.names == ("age", "size", "zone", "city")
    points = columns.evidence(seen).points
    assert not np.isnan(points).any()
    expected = model.predict(table)
    np.testing.assert_allclose(over_variables.predict(points)[:, 0], expected, rtol=1e-5)
