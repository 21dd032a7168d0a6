"""The structure of latent trees against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy

from knothole.densities.latent_tree.chow_liu import (
    BINS,
    chow_liu,
    discretise,
    mutual_information,
    rooted,
    spanning_edges,
)

MISSING = np.nan


def plug_in(a, b, weight):
    """Mutual information of two columns of codes, from entropies, on the rows that have both."""
    both = (a >= 0) & (b >= 0)
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a[both], b[both]), weight[both])
    joint /= joint.sum()
    return entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint.ravel())


def noisy_chain(rows, length, seed, keep=0.85):
    """Each column repeats the one before it, with errors."""
    rng = np.random.default_rng(seed)
    X = np.empty((rows, length))
    X[:, 0] = rng.integers(2, size=rows)
    for v in range(1, length):
        X[:, v] = np.where(rng.random(rows) < keep, X[:, v - 1], 1 - X[:, v - 1])
    return X


def edges_of(tree):
    return {frozenset((v, int(p))) for v, p in enumerate(tree.parent) if p >= 0}


def test_mutual_information_is_the_plug_in_estimate_less_its_bias():
    rng = np.random.default_rng(0)
    codes = rng.integers(-1, 3, (4, 200)).astype(np.int32)
    codes[1] = np.where(rng.random(200) < 0.5, codes[0], codes[1])
    weight = np.full(200, 2.0)
    found = mutual_information(codes, weight)
    for u, v in itertools.combinations(range(4), 2):
        n = ((codes[u] >= 0) & (codes[v] >= 0)).sum()
        bias = (3 - 1) * (3 - 1) / (2 * n)
        np.testing.assert_allclose(found[u, v], plug_in(codes[u], codes[v], weight) - bias)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 0)


def test_weights_count():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, (2, 300)).astype(np.int32)
    weight = rng.integers(0, 4, 300).astype(float)
    found = mutual_information(codes, weight)[0, 1]
    effective = weight.sum() ** 2 / (weight**2).sum()
    np.testing.assert_allclose(found, plug_in(*codes, weight) - 4 / (2 * effective))


def test_pairs_with_few_rows_are_not_favoured():
    """Of independent columns the estimate is about 0, however few rows observe both."""
    rng = np.random.default_rng(2)
    few, many = [], []
    for _ in range(300):
        codes = rng.integers(0, 4, (3, 400)).astype(np.int32)
        codes[2, 40:] = -1
        found = mutual_information(codes, np.ones(400))
        many.append(found[0, 1])
        few.append(found[0, 2])
    for estimates in (few, many):
        error = np.std(estimates) / np.sqrt(len(estimates))
        assert abs(np.mean(estimates)) < 4 * error + 0.01  # where the bias itself is 0.11


def test_columns_never_seen_together():
    codes = np.array([[0, 1, -1, -1], [-1, -1, 0, 1]], dtype=np.int32)
    np.testing.assert_array_equal(mutual_information(codes, np.ones(4)), 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_spanning_tree_is_the_best_of_all(seed):
    """All 125 trees over five variables, from their Prüfer sequences."""
    rng = np.random.default_rng(seed)
    information = np.triu(rng.normal(size=(5, 5)), 1)
    information += information.T

    def total(edges):
        return sum(information[a, b] for a, b in edges)

    best = max(total(from_pruefer(s)) for s in itertools.product(range(5), repeat=3))
    np.testing.assert_allclose(total(spanning_edges(information)), best)


def from_pruefer(sequence):
    degree = [1 + sequence.count(v) for v in range(len(sequence) + 2)]
    edges = []
    for v in sequence:
        end = degree.index(1)
        edges.append((end, v))
        degree[end] -= 1
        degree[v] -= 1
    return [*edges, tuple(v for v, d in enumerate(degree) if d == 1)]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6))
def test_root_is_the_centre_and_parents_come_first(n, seed):
    rng = np.random.default_rng(seed)
    edges = np.array([(v, rng.integers(v)) for v in range(1, n)], dtype=np.int64).reshape(-1, 2)
    tree = rooted(edges, n)
    assert edges_of(tree) == {frozenset(edge) for edge in edges.tolist()}
    assert sorted(tree.order) == list(range(n))
    place = np.argsort(tree.order)
    above = place[tree.parent[tree.order[1:]]]
    assert (above < np.arange(1, n)).all()
    assert (np.diff(above) >= 0).all()  # children of one parent follow each other
    distance = np.full((n, n), np.inf)
    np.fill_diagonal(distance, 0)
    distance[tuple(edges.T)] = distance[tuple(edges.T[::-1])] = 1
    for k in range(n):
        distance = np.minimum(distance, distance[:, [k]] + distance[[k]])
    assert distance[tree.order[0]].max() == distance.max(axis=1).min()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_a_chain_is_found(missing):
    X = noisy_chain(3000, 8, seed=0)
    X[np.random.default_rng(1).random(X.shape) < missing] = MISSING
    tree = chow_liu(X, np.ones(len(X)))
    assert edges_of(tree) == {frozenset((v, v + 1)) for v in range(7)}
    assert tree.order[0] in (3, 4)


def test_a_chain_of_mixed_types_is_found():
    """Binary, continuous, categories whose codes say nothing, continuous."""
    rng = np.random.default_rng(3)
    first = rng.integers(2, size=4000)
    second = 3.0 * first + rng.normal(size=4000)
    names = rng.permutation(7)
    step = np.clip(np.floor(second + 2 + rng.normal(size=4000)), 0, 6).astype(int)
    third = names[step]
    fourth = 2 * step + rng.normal(size=4000)
    X = np.column_stack([fourth, third, first, second]).astype(float)
    tree = chow_liu(X, np.ones(4000), categorical=[False, True, False, False])
    assert edges_of(tree) == {frozenset((2, 3)), frozenset((3, 1)), frozenset((1, 0))}


def test_discretise():
    few = np.array([5.0, MISSING, 7.0, 5.0])
    assert discretise(few[:, None]).tolist() == [[0, -1, 1, 0]]
    many = np.append(np.arange(799.0), np.inf)  # "not recorded" is the last bin's
    codes = discretise(many[:, None])[0]
    assert np.bincount(codes).tolist() == [99] + [100] * (BINS - 2) + [101]
    assert (np.diff(codes) >= 0).all()
    levels = np.repeat(np.arange(20.0), np.arange(20, 0, -1))
    codes = discretise(levels[:, None], [True])[0]
    assert codes[levels < BINS - 1].tolist() == levels[levels < BINS - 1].tolist()
    assert (codes[levels >= BINS - 1] == BINS - 1).all()


def test_a_single_variable():
    tree = chow_liu(np.ones((5, 1)), np.ones(5))
    assert tree.parent.tolist() == [-1]
    assert tree.order.tolist() == [0]
