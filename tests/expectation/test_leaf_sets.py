"""Sets of leaves against walks that take both sides of splits on missing values, and mixtures."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeRegressor
from tests.expectation.cases import as_table, random_case
from tests.trees.generate import random_ensemble

from knothole._core import leaf_sets as kernels
from knothole.bits import unpack_at
from knothole.columns.columns import NOT_RECORDED
from knothole.densities.base import Within
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Mixture
from knothole.errors import ImpossibleRow
from knothole.expectation import tables as module
from knothole.expectation.expectation import Expectation
from knothole.expectation.gaussian import BY_NUMBER
from knothole.expectation.tables import LEAVES, leaf_sets
from knothole.leaves.sums import LeafSums, Summands
from knothole.trees.read import read


def left_over(ensemble, node, x, numbers):
    """Leaves below a node that a row may reach, from left to right.

    ``numbers`` has what numeric missing values may still be: an interval, and whether "not
    recorded".
    """
    v = ensemble.feature[node]
    left = ensemble.left[node]
    if v < 0:
        return [left]
    if not np.isnan(x[v]):
        return left_over(ensemble, left + goes_right(ensemble, node, x[v]), x, numbers)
    found = []
    for right in (False, True):
        rest = dict(numbers)
        if ensemble.set_start[node] < 0:
            low, high, absent = numbers.get(v, (-np.inf, np.inf, ensemble.columns.nullable[v]))
            threshold = ensemble.threshold[node]
            low, high = (max(low, threshold), high) if right else (low, min(high, threshold))
            rest[v] = low, high, absent and right != ensemble.missing_left[node]
            if low >= high and not rest[v][2]:
                continue
        found += left_over(ensemble, left + right, x, rest)
    return found


def goes_right(ensemble, node, x):
    if ensemble.set_start[node] >= 0:
        start = ensemble.set_start[node : node + 1]
        return not unpack_at(ensemble.sets, start, int(x) + 1)[0, -1]
    return not ensemble.missing_left[node] if x == NOT_RECORDED else x >= ensemble.threshold[node]


def case(seed, density="Mixture", **options):
    made = random_case(seed, density, n_rows=40, **options)
    expectation = Expectation.of(made.ensemble, made.density)
    table = as_table(made.density.columns_, made.rows)
    return expectation, expectation.density.evidence(table, made.missing_mask)


@pytest.mark.parametrize("seed", range(4))
def test_sets_are_what_walks_find(seed, monkeypatch):
    """Numbers, categories, "not recorded"; trees of two outputs, in several groups."""
    monkeypatch.setattr(module, "TREES", 3)
    expectation, evidence = case(seed, n_trees=8, depth=4, n_outputs=2)
    ensemble = expectation.ensemble
    seen = set()
    for trees in leaf_sets(ensemble):
        out = np.empty((len(evidence.points), len(trees.root)), dtype=np.uint64)
        kernels.read_rows(evidence.points, trees, 0, out)
        for x, words in zip(evidence.points, out.tolist(), strict=True):
            for tree, (word, root) in enumerate(zip(words, trees.root, strict=True)):
                bits = [bit for bit in range(LEAVES) if word >> bit & 1]
                expected = left_over(ensemble, root, x, {})
                assert trees.leaf[tree, bits].tolist() == expected
                number = int(np.searchsorted(ensemble.roots, root))
                assert ensemble.tree_output[number] == trees.output
                seen.add(number)
    assert seen == set(range(ensemble.n_trees))


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("seed", range(6))
def test_margins_are_those_of_walks(seed, density, monkeypatch):
    """Also in several groups of trees."""
    monkeypatch.setattr(module, "TREES", 3)
    options = {"n_trees": 5, "depth": 5, "n_outputs": 1 + seed % 2, "rate": 0.6}
    expectation, evidence = case(seed, density, **options)
    engine = expectation.engine
    assert engine.leaf_sets and (~evidence.partly_observed()).any()
    quick, _ = expectation.margin(evidence)
    by_sets = expectation.leaf_probabilities(evidence).toarray()
    assert engine._words(evidence).word.size
    engine.leaf_sets = []
    assert not engine._words(evidence).word.size
    walked, _ = expectation.margin(evidence)
    by_nodes = expectation.leaf_probabilities(evidence).toarray()
    np.testing.assert_allclose(quick, walked, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(by_sets, by_nodes, rtol=1e-12, atol=1e-13)
    given = engine._given
    engine._given = lambda evidence, regions: given(evidence, True)  # the slow twin
    with_regions, _ = expectation.margin(evidence)
    np.testing.assert_allclose(quick, with_regions, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("density", ["Mixture", "LatentTree"])
@pytest.mark.parametrize("seed", range(3))
def test_sums_over_rows_are_those_of_the_matrix(seed, density):
    """Prop. 2, with rows that are known in part."""
    options = {"n_trees": 5, "depth": 5, "n_outputs": 1 + seed % 2, "rate": 0.6}
    expectation, evidence = case(seed, density, **options)
    engine, rng = expectation.engine, np.random.default_rng(seed)
    y, row_weight = rng.normal(size=(40, options["n_outputs"])), rng.random(40)
    assert 0 < evidence.partly_observed().sum() < 40
    sums = LeafSums.gathered(engine, Summands(evidence, y, row_weight))
    weighted = expectation.leaf_probabilities(evidence).toarray() * row_weight[:, None]
    output = engine.ensemble.tree_output[engine.ensemble.leaf_tree]
    np.testing.assert_allclose(sums.weight, weighted.sum(axis=0), rtol=1e-12, atol=1e-13)
    expected = (weighted.T @ y)[np.arange(len(output)), output]
    np.testing.assert_allclose(sums.target[:, 0], expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("how", ["Mixture", "LatentTree", "monte-carlo"])
@pytest.mark.parametrize("known_in_part", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_leaf_probabilities_of_trees_are_that_of_walks(seed, known_in_part, how, monkeypatch):
    """Of several chunks of rows, and groups of trees that serve two outputs."""
    monkeypatch.setattr(module, "TREES", 3)
    options = {"n_trees": 8, "depth": 5, "n_outputs": 2, "rate": 0.6}
    expectation, evidence = case(seed, "Mixture" if how == "monte-carlo" else how, **options)
    if how == "monte-carlo":
        expectation = Expectation.of(expectation.original, expectation.density, how)
    if not known_in_part:
        evidence = replace(evidence[~evidence.partly_observed()], allowed=None)
    expectation.engine.chunk = 11
    whole, starts = expectation.leaf_probabilities(evidence), expectation.ensemble.leaf_start
    found = dict(expectation.leaf_probabilities_by_tree(evidence))
    assert set(found) == set(range(8))
    for tree, probabilities in found.items():
        walked = whole[:, starts[tree] : starts[tree + 1]].toarray()
        np.testing.assert_allclose(probabilities.toarray(), walked, rtol=1e-12, atol=1e-15)


def test_impossible_rows_under_a_latent_tree_are_answered_as_by_walks():
    X = np.random.default_rng(0).normal(size=(200, 4))
    ensemble = random_ensemble(seed=2, levels=(0,) * 4, n_trees=6, depth=4)
    density = LatentTree(6, random_state=0).fit(X, columns=ensemble.columns.describe(X))
    rows = np.array([[1e200, np.nan, np.nan, 0.0], [np.nan, np.nan, -1e200, 1e200]])
    expectation = Expectation.of(ensemble, density)
    evidence, engine = expectation.evidence(rows), expectation.engine
    with pytest.warns(ImpossibleRow):
        quick, _ = engine.margin(evidence)
    engine.leaf_sets = []
    with pytest.warns(ImpossibleRow):
        walked, _ = engine.margin(evidence)
    np.testing.assert_allclose(quick, walked, rtol=1e-12)


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
    incomplete = np.where(np.random.default_rng(1).random(X.shape) < 0.5, np.nan, X)
    evidence = expectation.evidence(incomplete)
    value = ensemble.value * ensemble.tree_weight[ensemble.leaf_tree][:, None]
    expected = expectation.leaf_probabilities(evidence) @ value + ensemble.base
    np.testing.assert_allclose(expectation.margin(evidence)[0], expected, rtol=1e-10)


def test_a_tree_of_64_leaves_has_every_bit():
    """And one of a single leaf has one."""
    rng = np.random.default_rng(0)
    X = rng.random((5000, 2))
    tree = read(DecisionTreeRegressor(max_leaf_nodes=64).fit(X, rng.normal(size=5000)))
    leaf = read(DecisionTreeRegressor(max_leaf_nodes=2).fit(X, np.zeros(5000)))
    assert [hex(int(leaf_sets(each)[0].sets[-1, 0])) for each in (tree, leaf)] == [
        "0xffffffffffffffff",
        "0x1",
    ]


def test_a_single_missing_number_is_answered_as_by_walks():
    """Also where a threshold lies outside of what arrives at its split."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) + rng.integers(0, 3, (300, 1))
    ensemble = random_ensemble(seed=5, levels=(0,) * 3, n_trees=20, depth=5)
    density = GaussianMixture(3, random_state=0).fit(X, columns=ensemble.columns.describe(X))
    expectation = Expectation.of(ensemble, density)
    incomplete = rng.normal(size=(60, 3))
    incomplete[np.arange(60), rng.integers(0, 3, 60)] = np.nan
    engine, evidence = expectation.engine, expectation.evidence(incomplete)
    single = engine.exactly[BY_NUMBER]
    assert single.leaf_sets
    quick, error = engine.margin(evidence)
    assert not error.any()
    single.leaf_sets = []
    walked, _ = engine.margin(evidence)
    np.testing.assert_allclose(quick, walked, rtol=0, atol=1e-10)


def test_leaves_that_a_tree_has_not_are_its_own_first(monkeypatch):
    """So that what is asked of all 64, such as how far values lie apart, is about the tree."""
    monkeypatch.setattr(module, "TREES", 2)
    ensemble = case(3)[0].ensemble
    for trees in leaf_sets(ensemble):
        owner = ensemble.leaf_tree[trees.leaf]
        assert (owner == owner[:, :1]).all()
        assert len(np.unique(owner[:, 0])) == len(owner)


def regions_of_leaves(ensemble, node, low, high):
    """Leaf number and the interval of each variable, for every leaf below a node."""
    v, left = ensemble.feature[node], ensemble.left[node]
    if v < 0:
        yield left, low, high
        return
    below, above = high.copy(), low.copy()
    below[v], above[v] = (
        min(high[v], ensemble.threshold[node]),
        max(low[v], ensemble.threshold[node]),
    )
    yield from regions_of_leaves(ensemble, left, low, below)
    yield from regions_of_leaves(ensemble, left + 1, above, high)


@pytest.mark.parametrize("density", [Mixture(4, random_state=0), LatentTree(4, random_state=0)])
def test_two_splits_in_a_row_on_one_variable_after_another(density):
    """What the first variable says of the second is still known at the second's second split."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=2000)
    X = np.column_stack([first, first + 0.3 * rng.normal(size=2000)])
    y = 100.0 * (X[:, 0] > 0) + np.digitize(X[:, 1], [-1.0, -0.3, 0.4, 1.2])
    ensemble = read(DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, y))
    assert ensemble.feature[ensemble.roots[0]] == 0
    assert (ensemble.feature == 1).sum() > 2
    density = density.fit(X)
    expectation = Expectation.of(ensemble, density)
    nothing = density.evidence([[np.nan, np.nan]])
    everywhere = np.full(2, np.inf)
    expected = np.zeros(ensemble.n_leaves)
    for leaf, low, high in regions_of_leaves(ensemble, ensemble.roots[0], -everywhere, everywhere):
        within = [Within(v, low[v], high[v]) for v in range(2)]
        expected[leaf] = np.exp(density.log_evidence(nothing, within)[0])
    found = expectation.leaf_probabilities(nothing).toarray()[0]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    margin, _ = expectation.margin(nothing)
    np.testing.assert_allclose(margin[0], ensemble.base + expected @ ensemble.value, rtol=1e-12)
