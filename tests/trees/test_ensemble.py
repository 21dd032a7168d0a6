"""What an ensemble accepts, refuses and promises."""

import dataclasses

import numpy as np
import pytest
from generate import columns_with, ensembles, random_ensemble, random_rows
from hypothesis import given, settings
from scipy.special import expit, softmax

from knothole.bits import set_words
from knothole.errors import DamagedFile, InvalidInput
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.links import Link


def stump(**changes):
    """Two trees: a split of column 0 at 1.5 between 10 and 20, and the constant 30."""
    nodes = {
        "roots": np.array([0, 3]),
        "feature": np.array([0, -1, -1, -1]),
        "threshold": np.array([1.5, np.nan, np.nan, np.nan]),
        "left": np.array([1, 0, 0, 0]),
        "right": np.array([2, 0, 0, 0]),
        "missing_left": np.array([True, False, False, False]),
        "value": np.array([[np.nan], [10.0], [20.0], [30.0]]),
        "native_leaf": np.array([0, 1, 2, 0]),
    }
    return Nodes(**(nodes | changes))


def build(nodes, levels=(0, 0), tree_output=None, tree_weight=None, **changes):
    nodes = dataclasses.replace(nodes, tree_output=tree_output, tree_weight=tree_weight)
    options = {"base": [0.0], "library": "generated", "precision": "float64"}
    return Ensemble.build(nodes, columns=columns_with(levels), **(options | changes))


def test_stump():
    ensemble = build(stump(), base=[5.0], tree_weight=[1.0, 0.5])
    X = np.array([[1.0, 0.0], [1.5, 0.0], [np.nan, 0.0]])
    assert ensemble.margin(X).tolist() == [[30.0], [40.0], [30.0]]
    assert ensemble.leaves(X).tolist() == [[0, 2], [1, 2], [0, 2]]
    assert ensemble.native_leaf[ensemble.leaves(X)].tolist() == [[1, 0], [2, 0], [1, 0]]
    assert (ensemble.n_trees, ensemble.n_leaves, ensemble.n_outputs) == (2, 3, 1)
    assert ensemble.leaf_start.tolist() == [0, 2, 3] and ensemble.leaf_tree.tolist() == [0, 0, 1]


def test_values_may_have_one_dimension():
    assert build(stump(value=np.array([0.0, 10, 20, 30]))).value.tolist() == [[10], [20], [30]]


@settings(max_examples=40, deadline=None)
@given(ensemble=ensembles())
def test_layout(ensemble):
    """Parents before children, siblings side by side, trees and leaves one after the other."""
    inner = np.flatnonzero(ensemble.feature >= 0)
    leaf = np.flatnonzero(ensemble.feature < 0)
    assert (ensemble.left[inner] > inner).all()
    assert ensemble.left[leaf].tolist() == list(range(ensemble.n_leaves))
    children = np.concatenate([ensemble.left[inner], ensemble.left[inner] + 1, ensemble.roots])
    assert sorted(children.tolist()) == list(range(len(ensemble.feature)))
    tree = np.searchsorted(ensemble.roots, np.arange(len(ensemble.feature)), side="right") - 1
    assert np.array_equal(tree[leaf], ensemble.leaf_tree)
    assert np.isnan(ensemble.threshold[leaf]).all()
    assert not np.isnan(ensemble.threshold[inner][ensemble.set_start[inner] < 0]).any()


def test_children_of_leaves_are_ignored():
    junk = np.array([1, 2**32, -(2**40), 99])
    assert build(stump(left=junk)).n_leaves == 3


def test_nodes_that_no_root_leads_to_are_dropped():
    ensemble = build(stump(roots=np.array([3])))
    assert ensemble.value.tolist() == [[30.0]] and len(ensemble.feature) == 1


DAMAGED = {
    "cycle": ({"left": np.array([0, 0, 0, 0])}, "two parents"),
    "shared child": ({"right": np.array([1, 0, 0, 0])}, "two parents"),
    "root inside another tree": ({"roots": np.array([0, 2])}, "two parents"),
    "same root twice": ({"roots": np.array([3, 3])}, "two parents"),
    "negative child": ({"left": np.array([-1, 0, 0, 0])}, "child"),
    "child outside": ({"right": np.array([4, 0, 0, 0])}, "child"),
    "child that wraps around in 32 bits": ({"left": np.array([2**32 + 1, 0, 0, 0])}, "32 bits"),
    "root outside": ({"roots": np.array([0, 4])}, "child|root"),
    "negative root": ({"roots": np.array([0, -1])}, "child|root"),
    "column outside": ({"feature": np.array([2, -1, -1, -1])}, "column"),
    "column below -1": ({"feature": np.array([0, -2, -1, -1])}, "column"),
    "column that wraps around": ({"feature": np.array([2**32, -1, -1, -1])}, "32 bits"),
    "no threshold": ({"threshold": np.full(4, np.nan)}, "threshold"),
    "leaf NaN": ({"value": np.array([[0.0], [np.nan], [0], [0]])}, "leaf value"),
    "leaf infinite": ({"value": np.array([[0.0], [0], [0], [np.inf]])}, "leaf value"),
    "short values": ({"value": np.zeros((3, 1))}, "lengths"),
    "short thresholds": ({"threshold": np.zeros(3)}, "lengths"),
    "short missing side": ({"missing_left": np.zeros(3, dtype=bool)}, "lengths"),
    "short leaf numbers": ({"native_leaf": np.zeros(3, dtype=int)}, "lengths"),
    "short set starts": (
        {"set_start": np.zeros(3, dtype=int), "sets": np.zeros(4, dtype=np.uint64)},
        "lengths",
    ),
    "set that wraps around": (
        {"set_start": np.array([2**32, -1, -1, -1]), "sets": np.zeros(1, dtype=np.uint64)},
        "32 bits",
    ),
    "set outside": (
        {"set_start": np.array([1, -1, -1, -1]), "sets": np.zeros(1, dtype=np.uint64)},
        "set",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_not_a_forest_is_refused(case):
    changes, message = DAMAGED[case]
    with pytest.raises(DamagedFile, match=message):
        build(stump(**changes))


def test_longer_cycles_are_refused():
    """Node 1 leads back to node 0."""
    nodes = stump(
        feature=np.array([0, 1, -1, -1]),
        threshold=np.zeros(4),
        left=np.array([1, 0, 0, 0]),
        right=np.array([2, 3, 0, 0]),
        roots=np.array([0]),
    )
    with pytest.raises(DamagedFile, match="two parents"):
        build(nodes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": [np.nan]}, "base"),
        ({"base": [np.inf]}, "base"),
        ({"tree_output": [0, 1]}, "output"),
        ({"tree_output": [-1, 0]}, "output"),
        ({"tree_output": [0]}, "outputs or weights"),
        ({"tree_weight": [1.0, np.nan]}, "weight"),
        ({"tree_weight": [1.0]}, "outputs or weights"),
    ],
)
def test_outputs_weights_and_base_must_fit(changes, message):
    with pytest.raises(DamagedFile, match=message):
        build(stump(), **changes)


def test_vector_leaves_must_fit_the_outputs():
    value = np.zeros((4, 2))
    assert build(stump(value=value), base=[0.0, 0.0]).n_outputs == 2
    with pytest.raises(DamagedFile, match="output"):
        build(stump(value=value), base=[0.0])


@pytest.mark.parametrize(("n_levels", "words"), [(1, 1), (63, 1), (64, 2), (127, 2), (128, 3)])
def test_a_set_has_room_for_unseen_categories(n_levels, words):
    assert set_words(n_levels) == words
    bits = np.zeros(words * 64, dtype=np.uint8)
    bits[n_levels] = 1  # only what was never seen goes left
    nodes = stump(
        set_start=np.array([0, -1, -1, -1]),
        sets=np.packbits(bits, bitorder="little").view(np.uint64),
    )
    ensemble = build(nodes, levels=(n_levels, 0))
    codes = np.array([0.0, n_levels - 1, n_levels, n_levels + 5, -1.0])
    leaves = ensemble.leaves(np.column_stack([codes, codes]))[:, 0]
    assert leaves.tolist() == [1, 1, 0, 0, 0]


def test_arrays_are_frozen():
    ensemble = random_ensemble()
    arrays = [item for item in vars(ensemble).values() if isinstance(item, np.ndarray)]
    assert len(arrays) >= 12
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array.reshape(-1)[:1] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        ensemble.base = np.zeros(1)


def test_building_leaves_the_readers_arrays_alone():
    nodes = stump(value=np.array([[0.0], [10], [20], [30]]))
    sentinel = np.full((2, 2), np.nan)
    weight = np.ones(2)
    base = np.zeros(1)
    ensemble = build(nodes, sentinel=sentinel, tree_weight=weight, base=base)
    for array in (*vars(nodes).values(), sentinel, weight, base):
        assert array is None or array.flags.writeable
    nodes.value[:] = weight[:] = base[:] = 7.0
    assert ensemble.margin(np.zeros((1, 2))).tolist() == [[40.0]]


def test_with_values():
    ensemble = random_ensemble(width=2, n_outputs=2)
    X = random_rows(ensemble, 50)
    before = ensemble.margin(X)
    value = np.full(ensemble.value.shape, 1.0)
    changed = ensemble.with_values(value)
    value[:] = np.nan
    weight = ensemble.tree_weight.sum()
    np.testing.assert_allclose(changed.margin(X), np.tile(ensemble.base + weight, (50, 1)))
    assert np.array_equal(ensemble.margin(X), before)
    assert np.array_equal(changed.leaves(X), ensemble.leaves(X))


def test_with_values_refuses_what_cannot_be_leaf_values():
    ensemble = random_ensemble()
    with pytest.raises(InvalidInput, match="shape"):
        ensemble.with_values(ensemble.value[:-1])
    with pytest.raises(InvalidInput, match="finite"):
        ensemble.with_values(np.full(ensemble.value.shape, np.nan))


def test_sentinel_does_not_change_the_users_rows():
    ensemble = random_ensemble(sentinel=True)
    X = np.zeros((3, 3))
    assert np.array_equal(
        ensemble.margin(X), ensemble.margin(np.where(np.arange(3) == 0, np.nan, X))
    )
    assert not np.isnan(X).any()


def test_links():
    margin = np.array([[-1.0, 0.5, 2.0], [800.0, -800.0, 0.0]])
    assert np.array_equal(Link("identity")(margin), margin)
    assert np.array_equal(Link("sigmoid")(margin), expit(margin))
    assert np.array_equal(Link("sigmoid", scale=2.0)(margin), expit(2 * margin))
    assert np.array_equal(Link("softmax")(margin), softmax(margin, axis=1))
    assert np.array_equal(Link("exp")(margin[:1]), np.exp(margin[:1]))
    assert Link("identity").linear and not Link("sigmoid").linear
    with pytest.raises(InvalidInput, match="link must be '"):
        Link("probit")


def test_predict_goes_through_the_link():
    ensemble = random_ensemble(width=3, n_outputs=3)
    X = random_rows(ensemble, 20)
    soft = dataclasses.replace(ensemble, link=Link("softmax"))
    assert np.array_equal(soft.predict(X), softmax(ensemble.margin(X), axis=1))
