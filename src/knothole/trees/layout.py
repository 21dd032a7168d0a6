"""From a reader's nodes, in any order, to the ensemble's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from knothole.arrays import Integers, Ints, Mask, Words
from knothole.checks import check_within, require
from knothole.compiled.bits import pack, set_words

if TYPE_CHECKING:
    from knothole.trees.ensemble import Nodes


def lay_out(nodes: Nodes, n_levels: Ints, n_outputs: int) -> dict[str, Any]:
    """Arrays of an :class:`~knothole.trees.ensemble.Ensemble`, by name, from ``nodes``.

    Breadth first within a tree, siblings side by side, leaves numbered in the order met. Nodes
    that no root leads to (deleted ones, in some libraries' files) are dropped.
    """
    n = len(nodes.feature)
    value = np.asarray(nodes.value, dtype=np.float64)
    value = value[:, None] if value.ndim == 1 else value
    start = np.full(n, -1) if nodes.set_start is None else nodes.set_start
    splits = (nodes.cut, nodes.left, nodes.right, nodes.missing_left, start)
    same = {len(a) for a in (*splits, value, nodes.native_leaf)} == {n}
    require(same, "node arrays of different lengths")
    roots, feature = _as_int32(nodes.roots), _as_int32(nodes.feature)
    problem = "a node splits on a column that the model does not have"
    check_within(feature + 1, len(n_levels) + 1, problem)  # -1 at leaves
    left = _as_int32(np.where(feature < 0, -1, nodes.left))
    right = _as_int32(np.where(feature < 0, -1, nodes.right))
    order, tree = _ordered(roots, feature, left, right)
    place = np.empty(n, dtype=np.int32)
    place[order] = np.arange(len(order))
    feature = feature[order]
    leaf = feature < 0
    n_leaves = np.bincount(tree[leaf], minlength=len(roots))
    set_start = _as_int32(np.where(leaf, -1, np.asarray(start)[order]))
    sets = np.array([] if nodes.sets is None else nodes.sets, dtype=np.uint64)
    categorical = set_start >= 0
    levels = n_levels[feature[categorical]]
    require((levels > 0).all(), "a set of categories on a column that has none")
    end = set_start[categorical].astype(np.int64) + set_words(levels)
    require((end <= len(sets)).all(), "a categorical split's set lies outside the model")
    cut = np.where(leaf | categorical, np.nan, np.asarray(nodes.cut, dtype=np.float64)[order])
    numeric = ~leaf & ~categorical
    require(not np.isnan(cut[numeric]).any(), "a numeric split without a threshold")
    leaf_value = value[order[leaf]]
    require(np.isfinite(leaf_value).all(), "a leaf value is not finite")
    per_tree = _per_tree(nodes, n_outputs - value.shape[1])
    with np.errstate(over="ignore"):
        most = np.abs(leaf_value).max(initial=0.0) * np.abs(per_tree["tree_weight"]).sum()
    require(np.isfinite(most), "its leaves add up to no finite number")
    return {
        "roots": place[roots],
        "feature": feature,
        "cut": cut,
        "left": np.where(leaf, np.cumsum(leaf, dtype=np.int32) - 1, place[left[order]]),
        "missing_left": np.asarray(nodes.missing_left, dtype=np.bool_)[order],
        "set_start": set_start,
        "sets": sets,
        "leaf_start": np.concatenate([[0], np.cumsum(n_leaves)]),
        "value": np.ascontiguousarray(leaf_value),
        "native_leaf": _as_int32(np.asarray(nodes.native_leaf)[order[leaf]]),
        **per_tree,
    }


def pack_sides(lefts: Sequence[Mask]) -> tuple[Ints, Words]:
    """Sets of left-going codes from sides, each of all levels and last of one never seen.

    The first word of each set, and the words of all (:mod:`knothole.compiled.bits`).
    """
    codes = [np.flatnonzero(left) for left in lefts]
    return pack(
        np.array([len(left) - 1 for left in lefts], dtype=np.int64),
        np.repeat(np.arange(len(lefts)), [len(own) for own in codes]),
        np.concatenate([np.zeros(0, dtype=np.int64), *codes]),
    )


def _per_tree(nodes: Nodes, last_output: int) -> dict[str, Any]:
    """The output that each tree serves (first), and its weight."""
    n_trees = len(nodes.roots)
    output = np.zeros(n_trees) if nodes.tree_output is None else np.asarray(nodes.tree_output)
    weight = np.ones(n_trees) if nodes.tree_weight is None else np.asarray(nodes.tree_weight)
    problem = f"{n_trees} trees, but not as many outputs or weights"
    require(len(output) == len(weight) == n_trees, problem)
    check_within(output, last_output + 1, "a tree serves an output that the model does not have")
    require(last_output >= 0, "leaves have more values than the model has outputs")
    require(np.isfinite(weight).all(), "a tree's weight is not finite")
    return {"tree_output": output.astype(np.int32), "tree_weight": weight.astype(np.float64)}


def _as_int32(numbers: Any) -> Integers:
    """As 32-bit integers; a number that has no room in them would become another."""
    numbers = np.asarray(numbers)
    room = np.iinfo(np.int32)
    fits = not numbers.size or (room.min <= numbers.min() and numbers.max() <= room.max)
    require(fits, "a node or column number does not fit into 32 bits")
    return np.ascontiguousarray(numbers, dtype=np.int32)


def _ordered(
    roots: Integers, feature: Integers, left: Integers, right: Integers
) -> tuple[Integers, Ints]:
    """Nodes, breadth first within every tree, and their trees."""
    seen = np.zeros(len(feature), dtype=np.bool_)
    node, tree = roots, np.arange(len(roots))
    nodes, trees = [node[:0]], [tree[:0]]
    while len(node):  # all trees, a level at a time
        check_within(node, len(feature), "a node's child is not a node of the model")
        again = seen[node].any() or len(np.unique(node)) < len(node)
        require(not again, "a node has two parents; this is not a tree")
        seen[node] = True
        nodes.append(node)
        trees.append(tree)
        inner = feature[node] >= 0
        node = np.stack([left[node[inner]], right[node[inner]]], axis=1).ravel()
        tree = np.repeat(tree[inner], 2)
    tree = np.concatenate(trees)
    by_tree = np.argsort(tree, kind="stable")
    return np.concatenate(nodes)[by_tree], tree[by_tree]
