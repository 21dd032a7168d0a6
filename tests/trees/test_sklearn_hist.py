"""HistGradientBoosting: categories, column order, losses; read exactly, written back."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn_parity import assert_reads, assert_writes
from threadpoolctl import threadpool_limits

from knothole.columns.columns import Kind
from knothole.errors import NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees.links import Link
from knothole.trees.read import read
from knothole.trees.readers import sklearn as reader

Regressor = HistGradientBoostingRegressor
Classifier = HistGradientBoostingClassifier


@pytest.fixture(autouse=True)
def one_thread():
    """Tables this small are not worth threads that wait for each other."""
    with threadpool_limits(1, "openmp"):
        yield


def make_data(seed=0, rows=200, missing_rate=0.15):
    """Numbers and, in columns 1 and 3, categories that are numbers; a response and labels."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [
            rng.normal(size=rows),
            rng.integers(-2, 5, rows) * 1.5,
            rng.exponential(size=rows),
            rng.integers(0, 12, rows),
            rng.normal(size=rows) * 1e-12,
        ]
    )
    y = X[:, 0] + np.isin(X[:, 1], [0.0, 4.5]) * 3 + X[:, 3] % 3 + (X[:, 4] > 0)
    label = np.array(["a", "b", "c"])[np.digitize(y, np.quantile(y, [0.4, 0.8]))]
    X[rng.random(X.shape) < missing_rate] = np.nan
    return X, y, label


def make_table(seed=0, missing_rate=0.15):
    """The same as a table: categories of text, whole numbers and booleans between the numbers."""
    X, y, label = make_data(seed, missing_rate=missing_rate)
    known = ~np.isnan(X)
    text = np.where(known[:, 1], np.char.add("town ", X[:, 1].astype(str)), None)
    table = pd.DataFrame(
        {
            "size": X[:, 0],
            "town": pd.Series(text, dtype="category"),
            "age": X[:, 2],
            "code": pd.Series(X[:, 3]).astype("Int64").astype("category"),
            "owner": pd.Series(X[:, 4] > 0, dtype="category"),
        }
    )
    return table, y, label


def codes_of(ensemble, table):
    """The table as the ensemble wants it, entry by entry."""
    codes = np.empty(table.shape)
    for j, column in enumerate(ensemble.columns):
        for i, entry in enumerate(table.iloc[:, j]):
            if pd.isna(entry):
                codes[i, j] = np.nan
            elif column.kind == Kind.CATEGORICAL:
                levels = column.levels
                codes[i, j] = levels.index(entry) if entry in levels else len(levels)
            else:
                codes[i, j] = entry
    return codes


REGRESSORS = {
    "squared error": Regressor(max_iter=8),
    "absolute error": Regressor(loss="absolute_error", max_iter=8),
    "quantile": Regressor(loss="quantile", quantile=0.2, max_iter=8, learning_rate=0.6),
    "Poisson": Regressor(loss="poisson", max_iter=8),
    "gamma": Regressor(loss="gamma", max_iter=8),
    "few leaves": Regressor(max_leaf_nodes=3, max_iter=8, l2_regularization=1.0),
    "deep": Regressor(max_leaf_nodes=None, min_samples_leaf=1, max_iter=3),
    "few bins": Regressor(max_bins=8, max_iter=8, max_features=0.5, random_state=0),
    "monotonic": Regressor(monotonic_cst=[1, 0, -1, 0, 0], max_iter=8),
    "no interactions": Regressor(interaction_cst="no_interactions", max_iter=8),
    "early stopping": Regressor(
        early_stopping=True, n_iter_no_change=2, learning_rate=0.9, random_state=0
    ),
    "no split at all": Regressor(min_samples_leaf=150, max_iter=2),
}
LOG = ("poisson", "gamma")


@pytest.mark.parametrize("missing_rate", [0.0, 0.15], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name, missing_rate):
    X, y, _ = make_data(missing_rate=missing_rate)
    model = REGRESSORS[name].fit(X, y + 3, sample_weight=np.arange(len(y)) % 3 + 1)
    ensemble = assert_reads(model, X)
    assert ensemble.n_trees == model.n_iter_
    assert ensemble.link == Link("exp" if model.loss in LOG else "identity")
    if name != "no split at all":
        assert_writes(model, X)


@pytest.mark.parametrize("stop", [False, True], ids=["", "early stopping"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifiers(n_classes, stop):
    X, _, label = make_data()
    label = label if n_classes == 3 else label == "a"
    model = Classifier(
        max_iter=30 if stop else 5, early_stopping=stop, n_iter_no_change=2, learning_rate=0.5,
        class_weight="balanced", categorical_features=[1], random_state=0,
    ).fit(X, label)  # fmt: skip
    ensemble = read(model)
    codes = codes_of(ensemble, pd.DataFrame(X))
    assert_reads(model, X, codes)
    assert ensemble.link == Link("softmax" if n_classes == 3 else "sigmoid")
    assert ensemble.classes == tuple(np.unique(label).tolist())
    assert ensemble.n_trees == model.n_iter_ * (3 if n_classes == 3 else 1)
    assert_writes(model, X, codes)


@pytest.mark.parametrize("missing_rate", [0.0, 0.15], ids=["complete", "incomplete"])
@pytest.mark.parametrize(
    "categorical", [[3, 1], [False, True, False, True, False], [3]], ids=["places", "mask", "one"]
)
def test_categories_that_are_numbers(categorical, missing_rate):
    """The model moves them to the front; the ensemble keeps the order of the user's table."""
    X, y, _ = make_data(missing_rate=missing_rate)
    model = Regressor(categorical_features=categorical, max_iter=10).fit(X, y)
    ensemble = read(model)
    assert not ensemble.columns.named
    assert ensemble.columns[3].levels == tuple(np.unique(X[~np.isnan(X[:, 3]), 3]).tolist())
    assert [c.kind == Kind.CATEGORICAL for c in ensemble.columns] == model.is_categorical_.tolist()
    assert (ensemble.set_start >= 0).any()
    codes = codes_of(ensemble, pd.DataFrame(X))
    assert_reads(model, X, codes)
    assert_writes(model, X, codes)


@pytest.mark.parametrize("missing_rate", [0.0, 0.15], ids=["complete", "incomplete"])
@pytest.mark.parametrize(
    "categorical", ["from_dtype", ["code", "town"], ["owner"], [1, 3]], ids=str
)
def test_tables(categorical, missing_rate):
    table, y, _ = make_table(missing_rate=missing_rate)
    if categorical == ["owner"]:
        table = table.drop(columns=["town", "code"])
    model = Regressor(categorical_features=categorical, max_iter=10).fit(table, y)
    ensemble = read(model)
    assert ensemble.columns.names == tuple(table) and ensemble.columns.named
    codes = codes_of(ensemble, table)
    assert_reads(model, table, codes)
    assert_writes(model, table, codes)


def test_levels_of_every_type():
    table, y, _ = make_table()
    by_name = {column.name: column for column in read(Regressor(max_iter=2).fit(table, y)).columns}
    assert by_name["size"].kind == Kind.CONTINUOUS and not by_name["size"].levels
    assert by_name["owner"].levels == (False, True)
    assert by_name["town"].levels[:2] == ("town -1.5", "town -3.0")
    assert by_name["code"].levels[:3] == (0, 1, 2)


def test_the_tables_of_a_user_encode_to_what_the_ensemble_wants():
    table, y, _ = make_table()
    model = Regressor(max_iter=10).fit(table, y)
    ensemble = read(model)
    matrix = ensemble.columns.matrix(table)
    assert np.array_equal(matrix, codes_of(ensemble, table), equal_nan=True)
    np.testing.assert_allclose(ensemble.predict(matrix)[:, 0], model.predict(table), rtol=1e-12)


def test_unseen_categories_go_where_nan_goes():
    table, y, _ = make_table()
    seen = table["town"] != "town 6.0"
    model = Regressor(max_iter=20).fit(table[seen], y[seen])
    table["town"] = table["town"].astype(object)
    ensemble = read(model)
    codes = codes_of(ensemble, table)
    assert (codes[:, 1] == len(ensemble.columns[1].levels)).any()
    assert_reads(model, table, codes)
    incomplete = np.where(codes == ensemble.n_levels, np.nan, codes)
    incomplete[:, ensemble.n_levels == 0] = codes[:, ensemble.n_levels == 0]
    assert np.array_equal(ensemble.margin(incomplete), ensemble.margin(codes))


def test_object_arrays():
    table, y, _ = make_table(missing_rate=0.0)
    objects = table.astype(object).to_numpy()
    model = Regressor(categorical_features=[1, 3], max_iter=5).fit(objects, y)
    ensemble = read(model)
    assert not ensemble.columns.named
    assert_reads(model, objects, codes_of(ensemble, table))


def test_polars():
    table, y, _ = make_table(missing_rate=0.0)
    frame = pl.from_pandas(table.astype({"town": str, "code": int, "owner": bool}))
    frame = frame.with_columns(pl.col("town").cast(pl.Categorical))
    model = Regressor(categorical_features="from_dtype", max_iter=5).fit(frame, y)
    ensemble = read(model)
    assert [column.kind for column in ensemble.columns].count(Kind.CATEGORICAL) == 1
    assert_reads(model, frame, codes_of(ensemble, frame.to_pandas()))


@pytest.mark.parametrize("n_levels", [1, 31, 32, 63, 64, 128, 254, 255])
def test_many_levels(n_levels):
    # A category takes part in splits from ten rows on.
    rng = np.random.default_rng(n_levels)
    code = np.resize(np.arange(n_levels), 12 * n_levels + 60)
    y = rng.normal(size=n_levels)[code] * 5 + rng.normal(size=len(code))
    X = np.column_stack([rng.normal(size=len(code)), code])
    X[-60:, 1] = np.nan
    y[-60:] += 8
    model = Regressor(categorical_features=[1], max_iter=4, min_samples_leaf=2).fit(X, y)
    ensemble = read(model)
    assert len(ensemble.columns[1].levels) == n_levels
    assert (ensemble.set_start >= 0).any()
    assert_reads(model, X, codes_of(ensemble, pd.DataFrame(X)))


def test_a_categorical_column_without_any_level():
    X, y, _ = make_data()
    X[:, 3] = np.nan
    model = Regressor(categorical_features=[1, 3], max_iter=3).fit(X, y)
    ensemble = read(model)
    assert ensemble.columns[3].levels == ()
    assert_reads(model, X, codes_of(ensemble, pd.DataFrame(X)))


def test_splits_between_missing_and_the_rest():
    """Such a split has an infinite threshold."""
    rng = np.random.default_rng(0)
    X = np.where(rng.random((100, 1)) < 0.5, np.nan, rng.normal(size=(100, 1)))
    model = Regressor(max_iter=2, max_leaf_nodes=2).fit(X, np.isnan(X[:, 0]))
    assert np.isinf(model._predictors[0][0].nodes["num_threshold"][0])
    assert_reads(model, X)


@settings(max_examples=25, deadline=None)
@given(
    X=arrays(np.float64, (24, 2), elements=st.sampled_from([0.0, 1.0, 2.0, np.nan, 1e-300, 1e30])),
    categorical=st.sampled_from([None, [0], [1], [0, 1]]),
)
def test_any_data_with_missing_values(X, categorical):
    # scikit-learn itself cannot fit a numeric column without any value.
    assume(not np.isnan(X).all(axis=0).any())
    y = np.arange(24.0) % 7
    model = Regressor(
        max_iter=3, min_samples_leaf=1, categorical_features=categorical, early_stopping=False
    ).fit(X, y)
    assert_reads(model, X, codes_of(read(model), pd.DataFrame(X)))


def test_at_the_thresholds():
    X, y, _ = make_data(missing_rate=0.0)
    model = Regressor(max_iter=5).fit(X, y)
    ensemble = read(model)
    nodes = np.concatenate([tree.nodes for tree in reader.predictors_of(model)])
    nodes = nodes[nodes["is_leaf"] == 0]
    for step in (-np.inf, 0.0, np.inf):
        rows = np.resize(X, (len(nodes), X.shape[1]))
        at = nodes["num_threshold"]
        rows[np.arange(len(nodes)), nodes["feature_idx"]] = np.nextafter(at, step) if step else at
        leaves = ensemble.native_leaf[ensemble.leaves(rows)]
        assert np.array_equal(leaves, reader.native_leaves(model, rows))


def test_the_self_check_notices_columns_in_the_internal_order(monkeypatch):
    X, y, _ = make_data()
    model = Regressor(categorical_features=[3], max_iter=3).fit(X, y)
    order = reader.column_order(model)
    assert order.tolist() == [3, 0, 1, 2, 4]
    swapped = order[[0, 2, 1, 3, 4]]
    monkeypatch.setattr(reader, "column_order", lambda model: swapped)
    with pytest.raises(ReaderMismatch):
        read(model)


def test_the_self_check_notices_a_wrong_side_for_unseen_categories(monkeypatch):
    X, y, _ = make_data()
    model = Regressor(categorical_features=[1, 3], max_iter=10).fit(X, y)
    right = reader.left_sets
    monkeypatch.setattr(reader, "left_sets", lambda sets, n, missing: right(sets, n, ~missing))
    with pytest.raises(ReaderMismatch):
        read(model)


def test_refusals():
    X, _, label = make_data()
    with pytest.raises(NotFitted, match="has not been fitted"):
        read(Regressor())
    with pytest.raises(UnsupportedModel, match="single class"):
        read(Classifier(max_iter=2).fit(X, np.zeros(len(X))))
    table = np.column_stack([X[:, :1], np.where(X[:, 1] > 0, "town", None)]).astype(object)
    model = Classifier(categorical_features=[1], max_iter=2).fit(table, label)
    with pytest.raises(UnsupportedModel, match="None among its categories"):
        read(model)
