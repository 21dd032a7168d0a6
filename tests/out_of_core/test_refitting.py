"""Leaves refitted on tables in parts are those of the same rows in memory."""

import os
import signal
import threading
import time

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeClassifier

import knothole as kh
from knothole.errors import InvalidInput
from knothole.out_of_core import partitions
from knothole.out_of_core.partitions import Partitions

PARTITIONS = (1, 2, 7, 50)
# What needs no choice by a sample: then the slow twin is the same refitting in memory.
PLAIN = {"condition_on_target": False, "objective": "expected"}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A sample of 150 rows, so that a table of 400 is a large one."""
    monkeypatch.setattr(partitions, "ROWS", 150)


def rows(n=400):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("abc"))
    X["c"] += X["a"]
    y = X["a"] + X["b"] ** 2
    X = X.mask(rng.random(X.shape) < 0.3)
    return X, y


def wrapped(model, y=None):
    X, target = rows()
    model.fit(X, target if y is None else y)
    return kh.wrap(model, X, density=kh.Mixture(3, random_state=0), nan_policy="lost")


@pytest.fixture(scope="module")
def models():
    """An averaged forest, a classification tree, and a boosted model, with options for each."""
    _, y = rows()
    forest = wrapped(RandomForestRegressor(4, max_depth=3, random_state=0))
    tree = wrapped(DecisionTreeClassifier(max_depth=3, random_state=0), y > 1)
    boosted = wrapped(xgboost.XGBRegressor(n_estimators=4, max_depth=2, n_jobs=1))
    exact = {"learning_rate": 0.3}
    return {
        "tree": (forest, y, PLAIN | {"ridge": 0.0}),
        "probabilities": (tree, y > 1, PLAIN | {"ridge": 0.0}),
        "forest": (boosted, y, PLAIN | exact | {"method": "forest"}),
        "boosting": (boosted, y, PLAIN | exact | {"method": "boosting"}),
    }


@pytest.mark.parametrize(
    ("method", "partitions"),
    [
        *(("tree", n) for n in PARTITIONS),
        *((m, 7) for m in ("probabilities", "forest", "boosting")),
    ],
)
def test_leaves_are_those_of_all_rows_in_memory(models, method, partitions):
    robust, y, options = models[method]
    X, _ = rows()
    lazy = dd.from_pandas(X.assign(y=y), npartitions=partitions)
    with dask.config.set(scheduler="sync"):
        found = robust.refit_leaves(lazy[list("abc")], lazy["y"], **options)
    expected = robust.refit_leaves(X, y, **options)
    np.testing.assert_allclose(
        found.ensemble_.value, expected.ensemble_.value, rtol=1e-8, atol=1e-10
    )
    assert found.refit_.before == pytest.approx(expected.refit_.before, rel=1e-8)
    assert found.refit_.after == pytest.approx(expected.refit_.after, rel=1e-8)
    assert not np.allclose(found.ensemble_.value, robust.ensemble_.value)


@pytest.mark.parametrize("partitions", [2, 7])
def test_what_a_sample_chooses_does_not_depend_on_the_partitions(models, partitions):
    """With all defaults: the density knows y, and leaves move on towards what is deployed."""
    robust, y, _ = models["tree"]
    X, _ = rows()
    lazy = dd.from_pandas(X.assign(y=y), npartitions=partitions)
    with dask.config.set(scheduler="sync"):
        found = robust.refit_leaves(lazy[list("abc")], lazy["y"])
    alone = robust.refit_leaves(Partitions.of(lambda: iter([(X, y.to_numpy(), None)])), None)
    np.testing.assert_allclose(found.ensemble_.value, alone.ensemble_.value, rtol=1e-8)
    assert found.refit_.objective == "deployed" and found.refit_.conditioned != "none"


def slowly(frame):
    time.sleep(0.05)
    return frame


def test_a_worker_that_is_killed_while_refitting_changes_nothing(cluster, models):
    robust, y, options = models["tree"]
    X, _ = rows()
    lazy = dd.from_pandas(X.assign(y=y), npartitions=20)
    slow = lazy.map_partitions(slowly, meta=lazy._meta)
    victim = next(iter(cluster.run(os.getpid).values()))
    killer = threading.Timer(0.8, os.kill, (victim, signal.SIGKILL))
    killer.start()
    found = robust.refit_leaves(slow[list("abc")], slow["y"], **options)
    killer.join()
    cluster.wait_for_workers(2, timeout=60)
    assert victim not in cluster.run(os.getpid).values()
    expected = robust.refit_leaves(X, y, **options)
    np.testing.assert_allclose(found.ensemble_.value, expected.ensemble_.value, rtol=1e-8)


def test_a_bad_value_names_partition_and_column(models):
    robust, y, options = models["tree"]
    X, _ = rows()
    X.loc[395, "b"] = np.inf
    bad = dd.from_pandas(X.assign(y=y), npartitions=5)
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(InvalidInput, match=r"partition 4: column 'b' must hold finite numbers"),
    ):
        robust.refit_leaves(bad[list("abc")], bad["y"], **options)


def test_what_is_not_summed_is_refused_with_a_way_out(models):
    robust, y, _ = models["boosting"]
    X, _ = rows()
    drawn = kh.wrap(robust.to_native(), X, density=kh.GaussianMixture(1), nan_policy="lost")
    parts = Partitions.of(lambda: iter([(X, y.to_numpy(), None)]))
    with pytest.raises(InvalidInput, match=r"tables in parts are refitted by sums"):
        drawn.refit_leaves(parts, None, **PLAIN)
    with pytest.raises(InvalidInput, match=r"sample_weight must be None for partitions"):
        robust.refit_leaves(parts, None, sample_weight=np.ones(len(X)))
    with pytest.raises(InvalidInput, match=r"y must be None for partitions"):
        robust.refit_leaves(parts, y)
