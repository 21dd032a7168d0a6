"""From a reader's nodes, in any order, to the ensemble's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.compiled.policy import njit
from knothole.errors import DamagedFile

if TYPE_CHECKING:
    from knothole.trees.ensemble import Nodes

# What `order_nodes` reports when a tree is not a tree.
FINE, OUT_OF_RANGE, VISITED_TWICE = 0, 1, 2


def lay_out(
    nodes: Nodes, value: NDArray[np.float64], n_levels: NDArray[np.int64], library: str
) -> dict[str, Any]:
    """Arrays of an :class:`~knothole.trees.ensemble.Ensemble`, by name, from ``nodes``.

    Breadth first within a tree, siblings side by side, leaves numbered in the order met. Nodes
    that no root leads to (deleted ones, in some libraries' files) are dropped.
    """
    n = len(nodes.feature)
    per_node: list[Any] = [
        nodes.cut,
        nodes.left,
        nodes.right,
        nodes.missing_left,
        value,
        nodes.native_leaf,
    ]
    if nodes.set_start is not None:
        per_node.append(nodes.set_start)
    if any(len(a) != n for a in per_node):
        raise DamagedFile(f"{library}: node arrays of different lengths.")
    roots = _as_int32(nodes.roots, library)
    feature = _as_int32(nodes.feature, library)
    left = _as_int32(np.where(feature < 0, -1, nodes.left), library)
    right = _as_int32(np.where(feature < 0, -1, nodes.right), library)
    if n and (feature.max() >= len(n_levels) or feature.min() < -1):
        raise DamagedFile(f"{library}: a node splits on a column that the model does not have.")

    order = np.empty(n, dtype=np.int32)
    new_left = np.empty(n, dtype=np.int32)
    new_roots = np.empty(len(roots), dtype=np.int32)
    leaf_start = np.zeros(len(roots) + 1, dtype=np.int64)
    seen = np.zeros(n, dtype=np.bool_)
    problem, count = order_nodes(
        roots, feature, left, right, order, new_left, new_roots, leaf_start, seen
    )
    if problem == OUT_OF_RANGE:
        raise DamagedFile(f"{library}: a node's child is not a node of the model.")
    if problem == VISITED_TWICE:
        raise DamagedFile(f"{library}: a node has two parents; this is not a tree.")

    order = order[:count]
    feature = feature[order]
    leaf = feature < 0
    set_start = np.full(count, -1, dtype=np.int32)
    sets = np.zeros(0, dtype=np.uint64)
    if nodes.set_start is not None and nodes.sets is not None:
        set_start = _as_int32(np.where(leaf, -1, np.asarray(nodes.set_start)[order]), library)
        sets = np.array(nodes.sets, dtype=np.uint64)
    categorical = set_start >= 0
    last_word = set_start[categorical] + n_levels[feature[categorical]] // 64 + 1
    if (last_word > len(sets)).any():
        raise DamagedFile(f"{library}: a categorical split's set lies outside the model.")
    cut = np.where(leaf | categorical, np.nan, np.asarray(nodes.cut, dtype=np.float64)[order])
    if np.isnan(cut[~leaf & ~categorical]).any():
        raise DamagedFile(f"{library}: a numeric split without a threshold.")
    leaf_value = value[order[leaf]]
    if not np.isfinite(leaf_value).all():
        raise DamagedFile(f"{library}: a leaf value is not finite.")
    return {
        "roots": new_roots,
        "feature": feature,
        "cut": cut,
        "left": new_left[:count],
        "missing_left": np.asarray(nodes.missing_left, dtype=np.bool_)[order],
        "set_start": set_start,
        "sets": sets,
        "leaf_start": leaf_start,
        "value": np.ascontiguousarray(leaf_value),
        "native_leaf": np.asarray(nodes.native_leaf)[order[leaf]].astype(np.int32),
    }


def _as_int32(numbers: Any, library: str) -> NDArray[np.int32]:
    """As 32-bit integers; a number that has no room in them would become another."""
    numbers = np.asarray(numbers)
    room = np.iinfo(np.int32)
    if numbers.size and not (room.min <= numbers.min() and numbers.max() <= room.max):
        raise DamagedFile(f"{library}: a node or column number does not fit into 32 bits.")
    return np.ascontiguousarray(numbers, dtype=np.int32)


@njit
def order_nodes(
    roots: NDArray[np.int32],
    feature: NDArray[np.int32],
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    order: NDArray[np.int32],
    new_left: NDArray[np.int32],
    new_roots: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> tuple[int, int]:
    """Breadth-first order of every tree; returns (problem, number of nodes)."""
    n = len(feature)
    count = 0
    leaves = 0
    for t in range(len(roots)):
        if roots[t] < 0 or roots[t] >= n:
            return OUT_OF_RANGE, count
        if seen[roots[t]]:
            return VISITED_TWICE, count
        seen[roots[t]] = True
        new_roots[t] = count
        order[count] = roots[t]
        head = count
        count += 1
        while head < count:
            node = order[head]
            if feature[node] < 0:
                new_left[head] = leaves
                leaves += 1
            else:
                new_left[head] = count
                for child in (left[node], right[node]):
                    if child < 0 or child >= n:
                        return OUT_OF_RANGE, count
                    if seen[child]:
                        return VISITED_TWICE, count
                    seen[child] = True
                    order[count] = child
                    count += 1
            head += 1
        leaf_start[t + 1] = leaves
    return FINE, count
