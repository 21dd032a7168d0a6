"""Compiled traversal: leaves and margins of rows, NaN by the library's own rule.

A block of rows walks one tree at a time, all rows a level at a time: the tree's nodes stay in
cache, and the rows' steps do not wait for each other. To make a step free of branches, a leaf
points to itself: its cut is NaN, so that no value goes right there, and NaN goes left. Trees too
deep or too lopsided for that walk row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from knothole.arrays import Floats, Integers
from knothole.compiled.bits import has
from knothole.compiled.policy import inner, njit
from knothole.compiled.threads import over_chunks

if TYPE_CHECKING:
    from knothole.trees.ensemble import Ensemble

BLOCK = 256
# Blocks of rows handed to one thread together.
CHUNK = 16 * BLOCK
# Deeper trees walk row by row: most of their rows reach a leaf long before the last level.
LEVELS = 12


class Walker:
    """An ensemble in the form the kernels want."""

    def __init__(self, ensemble: Ensemble) -> None:
        leaf = ensemble.feature < 0
        here = np.arange(len(leaf), dtype=np.int32)
        self.n_trees = ensemble.n_trees
        self.base = ensemble.base
        self.nodes = (
            ensemble.roots,
            np.where(leaf, np.int32(0), ensemble.feature),
            ensemble.cut,
            np.where(leaf, here, ensemble.left),
            ~(leaf | ensemble.missing_left),
            ensemble.set_start,
            ensemble.sets,
            ensemble.n_levels,
            tree_depths(ensemble.roots, ensemble.feature, ensemble.left),
        )
        self.leaf_number = np.where(leaf, ensemble.left, np.int32(-1))
        weight = ensemble.tree_weight[ensemble.leaf_tree]
        self.weighted_value = ensemble.value * weight[:, None]
        self.tree_output = ensemble.tree_output

    def leaves(self, X: Floats, threads: int | None) -> Integers:
        """Leaf numbers (rows, trees)."""
        out = np.empty((len(X), self.n_trees), dtype=np.int32)
        self._walk(walk_leaves, (), X, out, threads)
        return out

    def margin(self, X: Floats, threads: int | None) -> Floats:
        """Margins (rows, outputs)."""
        out = np.tile(self.base, (len(X), 1))
        self._walk(walk_margin, (self.weighted_value, self.tree_output), X, out, threads)
        return out

    def _walk(
        self, kernel: Any, values: tuple[Any, ...], X: Floats, out: Any, threads: int | None
    ) -> None:
        def work(start: int, stop: int) -> None:
            rows = X[start:stop]
            has_nan = bool(np.isnan(rows).any())
            node = np.empty(BLOCK, dtype=np.int32)
            kernel(rows, self.nodes, has_nan, self.leaf_number, node, *values, out[start:stop])

        over_chunks(work, len(X), CHUNK, threads)


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


@inner
def goes_right(x, n, cut, missing_right, set_start, sets, n_levels, column):  # type: ignore[no-untyped-def]
    """Whether value ``x`` goes right at node ``n``: numeric or categorical, NaN included."""
    if np.isnan(x):
        return missing_right[n]
    start = set_start[n]
    if start < 0:
        return x >= cut[n]
    code = n_levels[column]
    if x >= 0 and x < code:
        code = int(x)
    return not has(sets, start, code)


@inner
def walk_tree(rows, t, nodes, has_nan, node):  # type: ignore[no-untyped-def]
    """Final node of each of ``rows`` (at most a block) in tree ``t``, into ``node``."""
    roots, feature, cut, left, missing_right, set_start, sets, n_levels, depths = nodes
    n_rows = len(rows)
    if depths[t] > LEVELS or len(sets) > 0:
        for i in range(n_rows):
            n = roots[t]
            while left[n] != n:
                column = feature[n]
                n = left[n] + goes_right(
                    rows[i, column], n, cut, missing_right, set_start, sets, n_levels, column
                )
            node[i] = n
        return
    for i in range(n_rows):
        node[i] = roots[t]
    if has_nan:
        for _ in range(depths[t]):
            for i in range(n_rows):
                n = node[i]
                x = rows[i, feature[n]]
                node[i] = left[n] + ((x >= cut[n]) | (np.isnan(x) & missing_right[n]))
    else:
        for _ in range(depths[t]):
            for i in range(n_rows):
                n = node[i]
                node[i] = left[n] + (rows[i, feature[n]] >= cut[n])


@njit
def walk_leaves(X, nodes, has_nan, leaf_number, node, out):  # type: ignore[no-untyped-def]
    """Leaf numbers of rows into ``out`` (rows, trees)."""
    for start in range(0, len(X), BLOCK):
        rows = X[start : start + BLOCK]
        for t in range(out.shape[1]):
            walk_tree(rows, t, nodes, has_nan, node)
            for i in range(len(rows)):
                out[start + i, t] = leaf_number[node[i]]


@njit
def walk_margin(X, nodes, has_nan, leaf_number, node, weighted_value, tree_output, out):  # type: ignore[no-untyped-def]
    """Add every tree's weighted values to ``out`` (rows, outputs)."""
    width = weighted_value.shape[1]
    for start in range(0, len(X), BLOCK):
        rows = X[start : start + BLOCK]
        for t in range(len(tree_output)):
            walk_tree(rows, t, nodes, has_nan, node)
            first = tree_output[t]
            for i in range(len(rows)):
                leaf = leaf_number[node[i]]
                for j in range(width):
                    out[start + i, first + j] += weighted_value[leaf, j]
