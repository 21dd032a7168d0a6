"""Sets of leaves against walks that take both sides at holes, and what mixtures make of them."""

import numpy as np
import pytest
from tests.reach.cases import as_table, random_case
from tests.trees.generate import random_ensemble

from knothole.compiled.bits import has
from knothole.densities.mixture.density import Mixture
from knothole.reach import leaf_sets as module
from knothole.reach.expectation import Expectation
from knothole.reach.leaf_sets import LEAVES, leaf_sets, read_sets
from knothole.tables.columns import NOT_RECORDED


def left_over(ensemble, node, x):
    """Leaves below a node that the observed values of a row lead to, from left to right."""
    v = ensemble.feature[node]
    left = ensemble.left[node]
    if v < 0:
        return [left]
    if np.isnan(x[v]):
        sides = (left, left + 1)
    elif ensemble.set_start[node] >= 0:
        sides = (left + (not has.py_func(ensemble.sets, ensemble.set_start[node], int(x[v]))),)
    elif x[v] == NOT_RECORDED:
        sides = (left + (not ensemble.missing_left[node]),)
    else:
        sides = (left + (x[v] >= ensemble.cut[node]),)
    return [leaf for side in sides for leaf in left_over(ensemble, side, x)]


def case(seed, **options):
    made = random_case(seed, "Mixture", n_rows=40, **options)
    expectation = Expectation.of(made.ensemble, made.density)
    table = as_table(made.density.columns_, made.rows)
    return expectation, expectation.evidence(table, made.holes)


@pytest.mark.parametrize("seed", range(4))
def test_sets_are_what_walks_find(seed, monkeypatch):
    """Numbers, categories, "not recorded"; trees of two outputs, in several groups."""
    monkeypatch.setattr(module, "TREES", 3)
    expectation, evidence = case(seed, n_trees=8, depth=4, n_outputs=2)
    ensemble = expectation.ensemble
    seen = set()
    for trees in leaf_sets(ensemble):
        out = np.empty(len(trees.root), dtype=np.uint64)
        for x in evidence.points:
            read_sets(x, trees, out)
            for tree, (word, root) in enumerate(zip(out.tolist(), trees.root, strict=True)):
                bits = [bit for bit in range(LEAVES) if word >> bit & 1]
                expected = left_over(ensemble, root, x)
                assert trees.leaf[tree, bits].tolist() == expected
                number = int(np.searchsorted(ensemble.roots, root))
                assert ensemble.tree_output[number] == trees.output
                seen.add(number)
    assert seen == set(range(ensemble.n_trees))


@pytest.mark.parametrize("seed", range(6))
def test_margins_are_those_of_walks(seed):
    expectation, evidence = case(seed, n_trees=5, depth=5, n_outputs=1 + seed % 2, rate=0.6)
    engine = expectation.engine
    assert engine.leaf_sets
    quick, _ = engine.margin(evidence)
    engine.leaf_sets = []
    walked, _ = engine.margin(evidence)
    np.testing.assert_allclose(quick, walked, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("why", ["leaves", "width", "memory"])
def test_other_trees_are_walked(why, monkeypatch):
    if why == "memory":
        monkeypatch.setattr(module, "BYTES", 10)
    X = np.random.default_rng(0).normal(size=(200, 3))
    depth, width = (8, 1) if why == "leaves" else (3, 2 if why == "width" else 1)
    ensemble = random_ensemble(
        seed=1, levels=(0,) * 3, n_trees=4, depth=depth, width=width, n_outputs=width
    )
    assert leaf_sets(ensemble) == []
    columns = ensemble.columns.describe(X)
    expectation = Expectation.of(ensemble, Mixture(2, random_state=0).fit(X, columns=columns))
    holes = np.where(np.random.default_rng(1).random(X.shape) < 0.5, np.nan, X)
    evidence = expectation.evidence(holes)
    value = ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None]
    expected = expectation.reach(evidence) @ value + ensemble.base
    np.testing.assert_allclose(expectation.margin(evidence)[0], expected, rtol=1e-10)


def test_a_tree_of_64_leaves_has_every_bit():
    """And one of a single leaf has one."""
    ensemble = random_ensemble(seed=2, levels=(0,) * 3, n_trees=30, depth=6)
    largest = np.diff(ensemble.leaf_start)
    assert largest.max() > 40
    for trees in leaf_sets(ensemble):
        every = trees.sets[-1]
        assert sorted(np.bitwise_count(every).tolist()) == sorted(largest.tolist())
