"""The compiled traversal against a slow, obvious twin."""

import math

import numpy as np
import pytest
from generate import columns_with, ensembles, random_ensemble, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from knothole.errors import InvalidInput
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.traverse import CHUNK, tree_depths

# Splits on a path beyond which rows walk one by one (core/trees.cpp).
LEVELS = 12


def slow_leaf(ensemble, tree, row):
    """The rule: left iff x < threshold, or x in the set, or x is NaN and NaN goes left."""
    node = int(ensemble.roots[tree])
    while ensemble.feature[node] >= 0:
        column = int(ensemble.feature[node])
        x = float(row[column])
        low, high = ensemble.sentinel[column]
        if low <= x <= high:
            x = math.nan
        n_levels = len(ensemble.columns[column].levels)
        start = int(ensemble.set_start[node])
        if math.isnan(x):
            left = bool(ensemble.missing_left[node])
        elif start >= 0:
            code = int(x) if 0 <= x < n_levels else n_levels
            left = int(ensemble.sets[start + code // 64]) >> (code % 64) & 1 == 1
        else:
            left = x < float(ensemble.threshold[node])
        node = int(ensemble.left[node]) + (0 if left else 1)
    return int(ensemble.left[node])


def slow_leaves(ensemble, X):
    leaves = [[slow_leaf(ensemble, t, row) for t in range(ensemble.n_trees)] for row in X]
    return np.array(leaves, dtype=np.int32).reshape(len(X), ensemble.n_trees)


def slow_margin(ensemble, X):
    margin = np.tile(ensemble.base, (len(X), 1))
    for i, leaves in enumerate(slow_leaves(ensemble, X)):
        for t, leaf in enumerate(leaves):
            first = ensemble.tree_output[t]
            for j, value in enumerate(ensemble.value[leaf]):
                margin[i, first + j] += value * ensemble.tree_weight[t]
    return margin


@settings(max_examples=60, deadline=None)
@given(ensemble=ensembles(), seed=st.integers(0, 2**32 - 1))
def test_like_the_slow_twin(ensemble, seed):
    X = random_rows(ensemble, 40, seed)
    assert np.array_equal(ensemble.leaves(X), slow_leaves(ensemble, X))
    np.testing.assert_allclose(ensemble.margin(X), slow_margin(ensemble, X), rtol=0, atol=1e-13)


@settings(max_examples=20, deadline=None)
@given(ensemble=ensembles(), seed=st.integers(0, 2**32 - 1))
def test_complete_rows_take_the_path_without_nan(ensemble, seed):
    X = random_rows(ensemble, 60, seed)
    X = X[~np.isnan(X).any(axis=1)]
    assert np.array_equal(ensemble.leaves(X), slow_leaves(ensemble, X))


@pytest.mark.parametrize("depth", [LEVELS - 1, LEVELS, LEVELS + 1, 300])
@pytest.mark.parametrize("levels", [(0, 0), (0, 3)])
def test_deep_trees(depth, levels):
    ensemble = random_ensemble(depth=depth, levels=levels, lopsided=True, n_trees=4, seed=depth)
    X = random_rows(ensemble, 60)
    assert np.array_equal(ensemble.leaves(X), slow_leaves(ensemble, X))


def test_depths():
    ensemble = random_ensemble(depth=9, n_trees=20, seed=1)

    def depth(node):
        if ensemble.feature[node] < 0:
            return 0
        left = int(ensemble.left[node])
        return 1 + max(depth(left), depth(left + 1))

    expected = [depth(int(root)) for root in ensemble.roots]
    assert tree_depths(ensemble.roots, ensemble.feature, ensemble.left).tolist() == expected


@pytest.mark.parametrize("levels", [(0, 0, 0), (0, 5, 70)])
def test_same_bits_for_any_number_of_threads(levels):
    ensemble = random_ensemble(levels=levels, n_trees=7, width=3, n_outputs=3)
    X = np.tile(random_rows(ensemble, 500), (2 * CHUNK // 500 + 2, 1))
    alone = ensemble.margin(X, threads=1), ensemble.leaves(X, threads=1)
    for threads in (2, 5):
        assert np.array_equal(alone[0], ensemble.margin(X, threads=threads))
        assert np.array_equal(alone[1], ensemble.leaves(X, threads=threads))


def test_rows_alone_and_together_give_the_same_bits():
    """A NaN in one row changes the path of its block, not the answer of the others."""
    ensemble = random_ensemble(n_trees=9, depth=6)
    X = random_rows(ensemble, 300)
    together = ensemble.margin(X)
    assert all(np.array_equal(ensemble.margin(X[i : i + 1])[0], together[i]) for i in range(300))


def test_memory_order_of_the_matrix_does_not_matter():
    ensemble = random_ensemble()
    X = random_rows(ensemble, 100)
    assert np.array_equal(ensemble.margin(np.asfortranarray(X)), ensemble.margin(X))
    assert np.array_equal(ensemble.margin(np.repeat(X, 2, axis=0)[::2]), ensemble.margin(X))


def test_no_value_steps_off_its_leaf():
    """In the kernel a leaf points to itself until the last level of its tree is reached."""
    # Left of 0 another split, right of 0 a leaf, met before the last level.
    ensemble = Ensemble.build(
        Nodes(
            roots=np.array([0]),
            feature=np.array([0, 0, -1, -1, -1]),
            threshold=np.array([0.0, -1.0, np.nan, np.nan, np.nan]),
            left=np.array([1, 3, 0, 0, 0]),
            right=np.array([2, 4, 0, 0, 0]),
            missing_left=np.ones(5, dtype=bool),
            value=np.arange(5.0),
            native_leaf=np.arange(5),
        ),
        columns=columns_with((0,)),
        base=0.0,
        library="generated",
        precision="float64",
    )
    X = np.array([[np.inf], [np.finfo(np.float64).max], [0.5], [-0.5], [-np.inf], [np.nan]])
    assert np.array_equal(ensemble.leaves(X), slow_leaves(ensemble, X))
    assert np.array_equal(ensemble.leaves(X[:3]), slow_leaves(ensemble, X[:3]))


def test_no_rows_no_trees():
    assert random_ensemble().margin(np.empty((0, 3))).shape == (0, 1)
    empty = random_ensemble(n_trees=0)
    assert empty.leaves(np.zeros((4, 3))).shape == (4, 0)
    assert np.array_equal(empty.margin(np.zeros((4, 3))), np.tile(empty.base, (4, 1)))


@pytest.mark.parametrize("shape", [(3,), (2, 2), (2, 4), (1, 3, 1)])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(InvalidInput, match=r"shape \(rows, 3\)"):
        random_ensemble().leaves(np.zeros(shape))
