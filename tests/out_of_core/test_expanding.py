"""Draws of tables in parts are those of the same rows in memory."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xgboost.dask

import knothole as kh
from knothole.errors import InvalidInput

PARTITIONS = (1, 2, 7, 50)
N = 200


def rows():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "a": rng.normal(size=N),
            "n": rng.integers(0, 9, size=N).astype(np.int64),
            "c": pd.Categorical(rng.choice(["x", "y", "z"], N)),
        },
        index=np.arange(N) + 1000,
    )
    y = X["a"] + 2 * (X["c"] == "x") + 0.1 * rng.normal(size=N)
    for name in ("a", "c"):
        X.loc[rng.random(N) < 0.4, name] = None
    return X, y.rename("price")


@pytest.fixture(scope="module", params=["Mixture", "GaussianMixture", "LatentTree"])
def density(request):
    X, y = rows()
    return getattr(kh, request.param)(2, strength=1.0, random_state=0).fit(X, target=y)


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_completions_have_the_same_bits_whatever_the_partitions(density, partitions):
    X, y = rows()
    weight = pd.Series(np.linspace(1, 2, N), X.index)
    lazy = dd.from_pandas(X.assign(y=y, w=weight), npartitions=partitions)
    found = kh.expand(density, lazy[list(X)], lazy["y"], 3, sample_weight=lazy["w"], seed=5)
    with dask.config.set(scheduler="sync"):
        table, target, share, row = dask.compute(found.X, found.y, found.weight, found.row)
    alone = kh.expand(density, X, y, 3, sample_weight=weight, seed=5)
    pd.testing.assert_frame_equal(table.reset_index(drop=True), alone.X)
    np.testing.assert_array_equal(table.index, X.index[alone.row])
    np.testing.assert_array_equal(target, alone.y)
    np.testing.assert_array_equal(share, alone.weight)
    pd.testing.assert_frame_equal(found.X._meta, table.iloc[:0])
    assert found.y.name == "y" and not table.isna().any(axis=None) and row.dtype == np.intp
    assert len(table) == N + 2 * int(X.isna().any(axis=1).sum())


def test_arrays_and_parts_without_rows():
    X, y = rows()
    numbers = X[["a", "n"]].to_numpy()
    joint = kh.Mixture(2, strength=1.0, random_state=0).fit(numbers, target=y)
    alone = kh.expand(joint, numbers, y.to_numpy(), 2)
    with dask.config.set(scheduler="sync"):
        blocks = da.from_array(numbers, chunks=(30, 1))
        found = kh.expand(joint, blocks, da.from_array(y.to_numpy(), chunks=30), 2)
        for name in ("X", "y", "weight"):
            np.testing.assert_array_equal(getattr(found, name).compute(), getattr(alone, name))
        lazy = dd.from_pandas(X, npartitions=3)
        some = kh.expand(kh.Factorized(random_state=0).fit(X), lazy[lazy["n"] > 99])
        assert some.y is None and len(some.X.compute()) == len(some.weight.compute()) == 0


@pytest.mark.filterwarnings("ignore")  # of the library's own cluster
def test_trees_of_a_cluster_grow_on_completions(cluster):
    X, y = rows()
    X = X[["a", "n"]]
    lazy = dd.from_pandas(X.assign(y=y), npartitions=4)
    joint = kh.Mixture(3, strength=1.0, random_state=0).fit(X, target=y)
    full = kh.expand(joint, lazy[["a", "n"]], lazy["y"])
    alone = kh.expand(joint, X, y)
    options = {"n_estimators": 10, "max_depth": 3}
    models = (
        xgboost.dask.DaskXGBRegressor(**options).fit(full.X, full.y, sample_weight=full.weight),
        xgboost.XGBRegressor(**options).fit(alone.X, alone.y, sample_weight=alone.weight),
    )
    density = kh.Mixture(3, random_state=0)
    # Bins of a cluster's trees are others.
    both = [kh.wrap(model, X, density=density, nan_policy="lost").predict(X) for model in models]
    assert np.corrcoef(*both)[0, 1] > 0.98


def test_mistakes_are_told_before_anything_is_computed(density, tmp_path):
    X, y = rows()
    lazy = dd.from_pandas(X, npartitions=3)
    with pytest.raises(InvalidInput, match=r"y must be a Dask Series or Array"):
        kh.expand(density, lazy, y)
    with pytest.raises(kh.errors.ColumnMismatch):
        kh.expand(density, lazy[["a", "n"]])
    with pytest.raises(InvalidInput, match=r"missing_mask must be None for a table in parts"):
        kh.expand(density, lazy, missing_mask=X.isna())
    with pytest.raises(InvalidInput, match=r"Read it with Dask"):
        kh.expand(density, tmp_path)
