"""From a reader's nodes, in any order, to the ensemble's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from knothole.arrays import Integers, Ints, Mask
from knothole.compiled.bits import set_words
from knothole.compiled.policy import njit
from knothole.trees.strict import Strict

if TYPE_CHECKING:
    from knothole.trees.ensemble import Nodes

# What `order_nodes` reports when a tree is not a tree.
FINE, OUT_OF_RANGE, VISITED_TWICE = 0, 1, 2


def lay_out(nodes: Nodes, n_levels: Ints, n_outputs: int, strict: Strict) -> dict[str, Any]:
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
    strict.require(same, "node arrays of different lengths")
    roots, feature = _as_int32(nodes.roots, strict), _as_int32(nodes.feature, strict)
    problem = "a node splits on a column that the model does not have"
    strict.within(feature + 1, len(n_levels) + 1, problem)  # -1 at leaves
    left = _as_int32(np.where(feature < 0, -1, nodes.left), strict)
    right = _as_int32(np.where(feature < 0, -1, nodes.right), strict)
    laid = Laid(
        order=np.empty(n, dtype=np.int32),
        left=np.empty(n, dtype=np.int32),
        roots=np.empty(len(roots), dtype=np.int32),
        leaf_start=np.zeros(len(roots) + 1, dtype=np.int64),
        seen=np.zeros(n, dtype=np.bool_),
    )
    outcome, count = order_nodes(roots, feature, left, right, laid)
    strict.require(outcome != OUT_OF_RANGE, "a node's child is not a node of the model")
    strict.require(outcome != VISITED_TWICE, "a node has two parents; this is not a tree")

    order = laid.order[:count]
    feature = feature[order]
    leaf = feature < 0
    set_start = _as_int32(np.where(leaf, -1, np.asarray(start)[order]), strict)
    sets = np.array([] if nodes.sets is None else nodes.sets, dtype=np.uint64)
    categorical = set_start >= 0
    levels = n_levels[feature[categorical]]
    strict.require((levels > 0).all(), "a set of categories on a column that has none")
    end = set_start[categorical].astype(np.int64) + set_words(levels)
    strict.require((end <= len(sets)).all(), "a categorical split's set lies outside the model")
    cut = np.where(leaf | categorical, np.nan, np.asarray(nodes.cut, dtype=np.float64)[order])
    numeric = ~leaf & ~categorical
    strict.require(not np.isnan(cut[numeric]).any(), "a numeric split without a threshold")
    leaf_value = value[order[leaf]]
    strict.require(np.isfinite(leaf_value).all(), "a leaf value is not finite")
    per_tree = _per_tree(nodes, n_outputs - value.shape[1], strict)
    with np.errstate(over="ignore"):
        most = np.abs(leaf_value).max(initial=0.0) * np.abs(per_tree["tree_weight"]).sum()
    strict.require(np.isfinite(most), "its leaves add up to no finite number")
    return {
        "roots": laid.roots,
        "feature": feature,
        "cut": cut,
        "left": laid.left[:count],
        "missing_left": np.asarray(nodes.missing_left, dtype=np.bool_)[order],
        "set_start": set_start,
        "sets": sets,
        "leaf_start": laid.leaf_start,
        "value": np.ascontiguousarray(leaf_value),
        "native_leaf": _as_int32(np.asarray(nodes.native_leaf)[order[leaf]], strict),
        **per_tree,
    }


def _per_tree(nodes: Nodes, last_output: int, strict: Strict) -> dict[str, Any]:
    """The output that each tree serves (first), and its weight."""
    n_trees = len(nodes.roots)
    output = np.zeros(n_trees) if nodes.tree_output is None else np.asarray(nodes.tree_output)
    weight = np.ones(n_trees) if nodes.tree_weight is None else np.asarray(nodes.tree_weight)
    problem = f"{n_trees} trees, but not as many outputs or weights"
    strict.require(len(output) == len(weight) == n_trees, problem)
    strict.within(output, last_output + 1, "a tree serves an output that the model does not have")
    strict.require(last_output >= 0, "leaves have more values than the model has outputs")
    strict.require(np.isfinite(weight).all(), "a tree's weight is not finite")
    return {"tree_output": output.astype(np.int32), "tree_weight": weight.astype(np.float64)}


def _as_int32(numbers: Any, strict: Strict) -> Integers:
    """As 32-bit integers; a number that has no room in them would become another."""
    numbers = np.asarray(numbers)
    room = np.iinfo(np.int32)
    fits = not numbers.size or (room.min <= numbers.min() and numbers.max() <= room.max)
    strict.require(fits, "a node or column number does not fit into 32 bits")
    return np.ascontiguousarray(numbers, dtype=np.int32)


class Laid(NamedTuple):
    """Where the nodes go: ``order`` holds, at each new position, the old one."""

    order: Integers
    left: Integers
    roots: Integers
    leaf_start: Ints
    seen: Mask


@njit
def order_nodes(
    roots: Integers, feature: Integers, left: Integers, right: Integers, laid: Laid
) -> tuple[int, int]:
    """Breadth-first order of every tree; returns (problem, number of nodes)."""
    order, seen = laid.order, laid.seen
    n = len(feature)
    count = 0
    leaves = 0
    for t in range(len(roots)):
        root = roots[t]
        if root < 0 or root >= n:
            return OUT_OF_RANGE, count
        if seen[root]:
            return VISITED_TWICE, count
        seen[root] = True
        laid.roots[t] = count
        order[count] = root
        head = count
        count += 1
        while head < count:
            node = order[head]
            if feature[node] < 0:
                laid.left[head] = leaves
                leaves += 1
            else:
                laid.left[head] = count
                for child in (left[node], right[node]):
                    if child < 0 or child >= n:
                        return OUT_OF_RANGE, count
                    if seen[child]:
                        return VISITED_TWICE, count
                    seen[child] = True
                    order[count] = child
                    count += 1
            head += 1
        laid.leaf_start[t + 1] = leaves
    return FINE, count
