"""Leaves and margins of rows, computed by the compiled core; NaN by the library's own rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from knothole._core import trees as kernels
from knothole.arrays import Floats, Integers
from knothole.threads import over_chunks

if TYPE_CHECKING:
    from knothole.trees.ensemble import Ensemble

# Rows per task of a thread.
CHUNK = 4096


class WalkNodes(NamedTuple):
    """The nodes of an ensemble as the kernels read them."""

    roots: Any  # (trees,)
    feature: Any  # (nodes,) 0 at leaves
    threshold: Any  # NaN at leaves
    left: Any  # the right child follows; a leaf points to itself
    missing_right: Any
    set_start: Any  # first word of the set that goes left; negative at numeric splits
    sets: Any
    n_levels: Any  # (columns,)
    depth: Any  # (trees,)
    leaf_number: Any  # (nodes,)


class Walker:
    """An ensemble in the form that the kernels read."""

    def __init__(self, ensemble: Ensemble) -> None:
        leaf = ensemble.feature < 0
        here = np.arange(len(leaf), dtype=np.int32)
        self.n_trees = ensemble.n_trees
        self.base = ensemble.base
        self.nodes = WalkNodes(
            roots=ensemble.roots,
            feature=np.where(leaf, np.int32(0), ensemble.feature),
            threshold=ensemble.threshold,
            left=np.where(leaf, here, ensemble.left),
            missing_right=~(leaf | ensemble.missing_left),
            set_start=ensemble.set_start,
            sets=ensemble.sets,
            n_levels=ensemble.n_levels,
            depth=tree_depths(ensemble.roots, ensemble.feature, ensemble.left),
            leaf_number=np.where(leaf, ensemble.left, np.int32(-1)),
        )
        weight = ensemble.tree_weight[ensemble.leaf_tree]
        self.weighted_value = ensemble.value * weight[:, None]
        self.tree_output = ensemble.tree_output

    def leaves(self, X: Floats, threads: int | None) -> Integers:
        """Leaf numbers (rows, trees)."""
        X, out = np.ascontiguousarray(X), np.empty((len(X), self.n_trees), dtype=np.int32)

        def work(start: int, stop: int) -> None:
            rows = X[start:stop]
            kernels.leaves(rows, self.nodes, bool(np.isnan(rows).any()), out[start:stop])

        over_chunks(work, len(X), CHUNK, threads)
        return out

    def margin(self, X: Floats, threads: int | None) -> Floats:
        """Margins (rows, outputs)."""
        X, out = np.ascontiguousarray(X), np.tile(self.base, (len(X), 1))
        values = self.weighted_value, self.tree_output

        def work(start: int, stop: int) -> None:
            rows = X[start:stop]
            has_nan = bool(np.isnan(rows).any())
            kernels.add_margin(rows, self.nodes, has_nan, *values, out[start:stop])

        over_chunks(work, len(X), CHUNK, threads)
        return out

    def margin_range(self, X: Floats, threads: int | None) -> tuple[Floats, Floats]:
        """Bounds (rows, outputs) on each row's margin, whatever its missing values are.

        The lowest and highest leaves are added up tree by tree; no single row need reach them all.
        The bounds are equal where every leaf that can be reached has the same value. A value that
        is not finite goes both ways, "not recorded" too.
        """
        X = np.ascontiguousarray(X)
        low, high = (np.tile(self.base, (len(X), 1)) for _ in range(2))
        values = self.weighted_value, self.tree_output

        def work(start: int, stop: int) -> None:
            ends = low[start:stop], high[start:stop]
            kernels.add_range(X[start:stop], self.nodes, *values, *ends)

        over_chunks(work, len(X), CHUNK, threads)
        return low, high


def tree_depths(roots: Integers, feature: Integers, left: Integers) -> Integers:
    """Number of splits on the longest path of each tree."""
    depths = np.zeros(len(roots), dtype=np.int32)
    node, tree = roots, np.arange(len(roots))
    while len(node):  # all trees, a level at a time
        inner = feature[node] >= 0
        tree = np.tile(tree[inner], 2)
        depths[tree] += 1
        node = np.concatenate([left[node[inner]], left[node[inner]] + 1])
    return depths
