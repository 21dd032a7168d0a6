"""Quantile forests: the library's own quantiles of complete rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import VotingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import knothole as kh
from knothole.errors import DamagedFile, InvalidInput, ReaderMismatch, UnsupportedModel
from knothole.trees.curves import (
    curves_from,
    describe_curves,
    reached,
    sample_quantiles,
    weighted_mean,
    weighted_quantiles,
)
from knothole.trees.read import read, write
from knothole.trees.readers import quantile_forest as reader
from knothole.trees.verify import probe_rows

forests = pytest.importorskip("quantile_forest")

ROWS = 5000
LEVELS = [0.0, 0.01, 0.1, 0.5, 0.501, 0.9, 1.0]
SETTINGS = {
    "one sample": {},
    "all samples": {"max_samples_leaf": None},
    "all samples as a share": {"max_samples_leaf": 1.0},
    "some samples": {"max_samples_leaf": 3},
    "a share": {"max_samples_leaf": 0.02},
    "monotonic": {"monotonic_cst": [1, 0, 0]},
    "absolute error": {"criterion": "absolute_error", "max_samples_leaf": 4},
    "without bootstrap": {"bootstrap": False, "max_features": 1},
}


def data(outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(300, 3)) * [1, 1e-3, 1e5]
    y = 1000 + (X[:, :1] + rng.normal(size=(300, outputs))).round(1)
    return X, y[:, 0] if outputs == 1 else y


CASES = [
    *((name, "RandomForest", 1) for name in SETTINGS),
    ("some samples", "ExtraTrees", 1),
    ("one sample", "ExtraTrees", 2),
    ("all samples", "RandomForest", 2),
]


@pytest.mark.parametrize(("name", "kind", "outputs"), CASES)
def test_quantiles_at_and_beside_thresholds(name, kind, outputs):
    X, y = data(outputs)
    make = getattr(forests, f"{kind}QuantileRegressor")
    model = make(12, min_samples_leaf=4, random_state=0, **SETTINGS[name]).fit(X, y)
    ensemble = read(model)
    rows = probe_rows(ensemble, 2 * ROWS, np.random.default_rng(1))
    rows = rows[~np.isnan(rows).any(axis=1)][:ROWS]
    assert len(rows) == ROWS
    leaves = reached(ensemble.leaves(rows), ensemble.n_leaves)
    for levels in (LEVELS, "mean"):
        asked = np.array([] if levels == "mean" else levels)
        ours = sample_quantiles(ensemble.curves, leaves, asked)
        native = model.predict(rows, quantiles=levels).reshape(ours.shape)
        np.testing.assert_allclose(ours, native, rtol=1e-13)


def test_a_wrapped_one_has_the_shapes_and_defaults_of_the_library():
    X, y = data()
    frame = pd.DataFrame(X, columns=list("abc"))
    model = forests.RandomForestQuantileRegressor(10, random_state=0).fit(frame, y)
    robust = kh.wrap(model, frame, y, density=kh.Factorized())
    assert robust.correction_ is None
    median = robust.predict(frame)
    assert median.index.equals(frame.index)
    np.testing.assert_allclose(median, model.predict(frame), rtol=1e-13)
    for levels in (0.3, [0.3], [0.1, 0.9], "mean"):
        ours, error = robust.predict(frame, quantiles=levels, return_error=True)
        native = model.predict(frame, quantiles=levels)
        assert np.shape(ours) == native.shape
        np.testing.assert_allclose(ours, native, rtol=1e-13)
        assert not np.any(error)
    assert list(robust.predict(frame, quantiles=[0.1, 0.9]).columns) == [0.1, 0.9]
    np.testing.assert_allclose(robust.score(frame, y), model.score(frame, y))


@pytest.mark.parametrize("default", ["mean", [0.1, 0.5, 0.9], 0.25])
def test_default_quantiles_are_those_of_the_model(default, tmp_path):
    X, y = data(2)
    model = forests.ExtraTreesQuantileRegressor(8, default_quantiles=default, random_state=0)
    model.fit(X, y)
    robust = kh.wrap(model, X, density=kh.Factorized())
    native = model.predict(X)
    assert robust.predict(X).shape == native.shape
    np.testing.assert_allclose(robust.predict(X), native, rtol=1e-13)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    X[::2, 0] = np.nan
    assert np.array_equal(again.predict(X), robust.predict(X))


def test_in_a_pipeline():
    X, y = data()
    steps = make_pipeline(StandardScaler(), forests.RandomForestQuantileRegressor(10))
    model = steps.fit(X[:, :2], y)
    robust = kh.wrap(model, X[:, :2], density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(X[:, :2]), model.predict(X[:, :2]), rtol=1e-9)
    vote = VotingRegressor([("a", forests.RandomForestQuantileRegressor(3))]).fit(X, y)
    with pytest.raises(UnsupportedModel, match="VotingRegressor of a model of quantiles"):
        kh.wrap(vote, X, density=kh.Factorized())


def test_quantiles_of_counts_are_those_of_numpy():
    rng = np.random.default_rng(0)
    from scipy import sparse

    counts = rng.integers(0, 4, (50, 8)) + np.eye(50, 8, dtype=int)
    counts[:, 0] += counts.sum(axis=1) == 0
    grid = np.sort(rng.normal(size=8)) + 1e6
    levels = rng.random(20)
    found = weighted_quantiles(sparse.csr_matrix(counts.astype(float)), grid, levels)
    expected = [np.quantile(np.repeat(grid, row), levels) for row in counts]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    mean = weighted_mean(sparse.csr_matrix(counts.astype(float)), grid)[:, 0]
    np.testing.assert_allclose(mean, [np.repeat(grid, row).mean() for row in counts], rtol=1e-14)


def test_a_wrong_reading_is_refused(monkeypatch):
    X, y = data()
    model = forests.RandomForestQuantileRegressor(5, min_samples_leaf=5, random_state=0).fit(X, y)
    read(model)
    original = reader._samples

    def shifted(model, forest):
        curves = original(model, forest)
        return {name: each.of_leaves(np.arange(forest.n_leaves)[::-1]) for name, each in
                curves.items()}  # fmt: skip

    monkeypatch.setattr(reader, "_samples", shifted)
    with pytest.raises(ReaderMismatch, match="quantiles"):
        read(model)


def test_what_is_refused_says_why():
    X, y = data()
    model = forests.RandomForestQuantileRegressor(5, random_state=0).fit(X, y)
    robust = kh.wrap(model, X, density=kh.Factorized())
    for wrong in (1.5, "median", [[0.5]], [0.1, np.nan]):
        with pytest.raises(InvalidInput, match="quantiles must be a number from 0 to 1"):
            robust.predict(X, quantiles=wrong)
    with pytest.raises(InvalidInput, match="returned alone"):
        robust.predict(X, quantiles=[0.5], return_std=True)
    with pytest.raises(InvalidInput, match=r"refit_leaves: the leaves .* are samples of y"):
        robust.refit_leaves(X, y)
    with pytest.raises(InvalidInput, match="samples of y"):
        write(model, read(model))
    with pytest.raises(InvalidInput, match="not corrected"):
        kh.wrap(model, X, y, density=kh.Factorized(), correction=True)


def test_other_regressors_take_sequences_of_quantiles_only():
    from sklearn.tree import DecisionTreeRegressor

    X, y = data()
    robust = kh.wrap(DecisionTreeRegressor(max_depth=2).fit(X, y), X, density=kh.Factorized())
    with pytest.raises(InvalidInput, match="sequence of numbers"):
        robust.predict(X, quantiles=0.5)


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        ("grid", lambda a: a[::-1].copy(), "ascend"),
        ("grid", lambda a: a * np.inf, "finite"),
        ("start", lambda a: a[:-1], "by leaf"),
        ("start", lambda a: a.astype(np.int32), "int64"),
        ("point", lambda a: a + np.int32(10**6), "points of their grid"),
        ("jump", lambda a: a[:-1], "points of their grid"),
    ],
)
def test_damaged_curves_are_refused(part, change, problem):
    X, y = data()
    ensemble = read(forests.RandomForestQuantileRegressor(2, random_state=0).fit(X, y))
    header, arrays = describe_curves(ensemble.curves)
    assert curves_from(header, arrays, ensemble.n_leaves).keys() == {"samples 0"}
    arrays[f"curves.0.{part}"] = change(arrays[f"curves.0.{part}"])
    with pytest.raises(DamagedFile, match=problem), np.errstate(invalid="ignore"):
        curves_from(header, arrays, ensemble.n_leaves)
