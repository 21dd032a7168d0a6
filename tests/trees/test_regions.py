"""Regions and arrivals against a slow twin that walks down from the root."""

import math

import numpy as np
from generate import ensembles, random_ensemble, random_rows
from hypothesis import given, settings

from knothole.columns.columns import Column, Columns, Kind
from knothole.trees.ensemble import Ensemble, Nodes, left_codes
from knothole.trees.regions import arrivals, regions

FREE = (-math.inf, math.inf, None, True)


def slow_walk(ensemble):
    """Regions of leaves and arrivals at splits as dicts: column -> (low, high, codes, missing).

    ``codes`` is a set of categories, the number of levels standing for the unseen, or None where
    no categorical split was met.
    """
    leaves, arriving = {}, {}

    def visit(node, region):
        column = int(ensemble.feature[node])
        if column < 0:
            leaves[int(ensemble.left[node])] = region
            return
        low, high, codes, missing = region.get(column, FREE)
        left = int(ensemble.left[node])
        nan_left = bool(ensemble.missing_left[node])
        if ensemble.set_start[node] >= 0:
            n_codes = len(ensemble.columns[column].levels) + 1
            codes = set(range(n_codes)) if codes is None else codes
            goes_left = set(np.flatnonzero(left_codes(ensemble, node)).tolist())
            sides = [(low, high, codes & goes_left), (low, high, codes - goes_left)]
        else:
            threshold = float(ensemble.threshold[node])
            sides = [(low, min(high, threshold), codes), (max(low, threshold), high, codes)]
        arriving[node] = (low, high, codes, missing)
        visit(left, region | {column: (*sides[0], missing and nan_left)})
        visit(left + 1, region | {column: (*sides[1], missing and not nan_left)})

    for root in ensemble.roots.tolist():
        visit(root, {})
    return leaves, arriving


def codes_in(sets, start, n_levels):
    if start < 0:
        return None
    words = sets[start : start + n_levels // 64 + 1].tolist()
    return {c for c in range(64 * len(words)) if words[c // 64] >> (c % 64) & 1}


def as_dicts(ensemble, found):
    """A ``Regions`` in the form of the slow twin."""
    return {
        leaf: {
            int(found.column[e]): (
                found.low[e],
                found.high[e],
                codes_in(found.sets, found.set_start[e], ensemble.n_levels[found.column[e]]),
                bool(found.missing[e]),
            )
            for e in range(found.start[leaf], found.start[leaf + 1])
        }
        for leaf in range(ensemble.n_leaves)
    }


def inside(ensemble, region, row):
    """Whether a row lies in a region, by the definition."""
    for column, (low, high, codes, missing) in region.items():
        x = row[column]
        n_levels = int(ensemble.n_levels[column])
        if math.isnan(x):
            good = missing
        elif codes is not None:
            good = (int(x) if 0 <= x < n_levels else n_levels) in codes
        else:
            good = low <= x < high
        if not good:
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(ensembles())
def test_regions_and_arrivals_are_those_of_the_walk_from_the_root(ensemble):
    leaves, arriving = slow_walk(ensemble)
    found = regions(ensemble)
    assert as_dicts(ensemble, found) == leaves
    for leaf in range(ensemble.n_leaves):
        columns = found.column[found.start[leaf] : found.start[leaf + 1]]
        assert (np.diff(columns) > 0).all()
    arrived = arrivals(ensemble)
    for node, (low, high, codes, missing) in arriving.items():
        n_levels = ensemble.n_levels[ensemble.feature[node]]
        assert (arrived.low[node], arrived.high[node]) == (low, high)
        assert codes_in(arrived.sets, arrived.set_start[node], n_levels) == codes
        assert arrived.missing[node] == missing


@settings(max_examples=25, deadline=None)
@given(ensembles(max_depth=4))
def test_every_row_lies_in_the_region_of_its_leaf_and_in_no_other_of_that_tree(ensemble):
    X = random_rows(ensemble, 40)
    low, high = ensemble.sentinel.T
    seen = np.where((low <= X) & (high >= X), np.nan, X)
    found = as_dicts(ensemble, regions(ensemble))
    leaves = ensemble.leaves(X, threads=1)
    for i, row in enumerate(seen):
        reached = {leaf for leaf, region in found.items() if inside(ensemble, region, row)}
        assert reached == set(leaves[i].tolist())


def only_nan_ensemble():
    """``x < 1``, and left of it ``x < 2``, NaN to the right there: only NaN reaches leaf 2."""
    nodes = Nodes(
        roots=np.array([0], dtype=np.int32),
        feature=np.array([0, 0, -1, -1, 1, -1, -1], dtype=np.int32),
        threshold=np.array([1.0, 2.0, 0, 0, 0, 0, 0]),
        left=np.array([1, 2, -1, -1, 5, -1, -1], dtype=np.int32),
        right=np.array([4, 3, -1, -1, 6, -1, -1], dtype=np.int32),
        missing_left=np.array([True, False, False, False, False, False, False]),
        value=np.arange(7.0),
        native_leaf=np.arange(7, dtype=np.int32),
        set_start=np.array([-1, -1, -1, -1, 0, -1, -1], dtype=np.int32),
        sets=np.array([0b0101], dtype=np.uint64),
    )
    columns = Columns((Column("age"), Column("city", Kind.CATEGORICAL, ("Graz", "Linz", "Wien"))))
    return Ensemble.build(nodes, columns=columns, base=0.0, library="test", precision="float64")


def test_a_leaf_that_only_nan_reaches_has_no_values():
    ensemble = only_nan_ensemble()
    by_value = {float(v): leaf for leaf, v in enumerate(ensemble.value[:, 0])}
    found = as_dicts(ensemble, regions(ensemble))
    assert found[by_value[3.0]] == {0: (2.0, 1.0, None, True)}
    assert found[by_value[2.0]] == {0: (-math.inf, 1.0, None, False)}
    assert found[by_value[6.0]] == {0: (1.0, math.inf, None, False), 1: (*FREE[:2], {1, 3}, True)}
    assert ensemble.leaves(np.array([[np.nan, 0.0]]))[0, 0] == by_value[3.0]


def test_an_ensemble_without_trees_has_no_regions():
    found = regions(random_ensemble(n_trees=0))
    assert found.start.tolist() == [0]


def test_a_single_leaf_is_reached_from_everywhere():
    found = regions(random_ensemble(n_trees=2, depth=0))
    assert found.start.tolist() == [0, 0, 0]


def test_a_deep_and_lopsided_tree_needs_no_recursion():
    ensemble = random_ensemble(depth=300, lopsided=True, n_trees=1, levels=(0, 3))
    leaves, _ = slow_walk(ensemble)
    assert as_dicts(ensemble, regions(ensemble)) == leaves
