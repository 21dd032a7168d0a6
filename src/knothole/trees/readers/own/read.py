"""Trees of one's own as an ensemble: a decision of k branches becomes k - 1 splits."""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.arrays import Floats, Mask
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.layout import pack_sides
from knothole.trees.links import Link
from knothole.trees.readers.own.form import (
    LIBRARY,
    Decision,
    Forest,
    Leaf,
    decisions,
    forest_of,
)
from knothole.trees.readers.registry import Reading, Replay


def read(model: Any) -> Reading:
    """Read a document; it answers for itself, decision by decision."""
    forest = forest_of(model)
    told = all(one.missing is not None for root in forest.roots for one in decisions(root))
    return Reading(understand(forest), lambda X: replay(forest, X), takes_nan=told)


def replay(forest: Forest, X: Floats) -> Replay:
    """Margins and leaves of rows, as the document says."""
    margin = np.tile(forest.base, (len(X), 1))
    leaves = np.zeros((len(X), len(forest.roots)), dtype=np.int64)
    for i, row in enumerate(X):
        for t, (weight, first) in enumerate(zip(forest.weights, forest.outputs, strict=True)):
            leaf = forest.leaf(t, row)
            margin[i, first : first + len(leaf.value)] += weight * leaf.value
            leaves[i, t] = leaf.number
    return Replay(margin, leaves)


def understand(forest: Forest) -> Ensemble:
    """The ensemble of a document."""
    made = _Nodes(forest)
    roots = [made.node(root) for root in forest.roots]
    return Ensemble.build(
        made.nodes(roots),
        columns=forest.columns,
        base=forest.base,
        library=LIBRARY,
        precision="float64",
        link=Link(forest.link),
        classes=forest.classes,
    )


class _Nodes:
    """Binary nodes, one after the other."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.rows: list[tuple[int, float, int, int, bool, int]] = []  # of numbers, by node
        self.leaves: dict[int, Leaf] = {}
        self.sets: list[Mask] = []  # whether each level, and one never seen, goes left

    def node(self, node: Decision | Leaf) -> int:
        """Add a node and all below it; returns its place."""
        place = len(self.rows)
        if isinstance(node, Leaf):
            self.rows.append((-1, np.nan, -1, -1, False, -1))
            self.leaves[place] = node
            return place
        return self._chain(node, 0)

    def _chain(self, node: Decision, first: int) -> int:
        """The branches from one on: the first goes left, the others are further right."""
        if first == len(node.branches) - 1:
            return self.node(node.branches[first])
        place = len(self.rows)
        self.rows.append((-1, np.nan, -1, -1, False, -1))
        cut, own = np.nan, -1
        if node.codes:
            own, n_levels = len(self.sets), len(self.forest.columns[node.column].levels)
            named = np.isin(np.arange(n_levels), list(node.codes[first]))
            self.sets.append(np.append(named, node.unseen == first))
        else:
            cut = node.cuts[first]
        left = self.node(node.branches[first])
        right = self._chain(node, first + 1)
        missing_left = (0 if node.missing is None else node.missing) == first
        self.rows[place] = (node.column, cut, left, right, missing_left, own)
        return place

    def nodes(self, roots: list[int]) -> Nodes:
        """As an ensemble is built from them."""
        forest = self.forest
        feature, cut, left, right, missing_left, own = map(np.array, zip(*self.rows, strict=True))
        width = len(next(iter(self.leaves.values())).value)
        value, native = np.zeros((len(feature), width)), np.zeros(len(feature), dtype=np.int32)
        for place, leaf in self.leaves.items():
            value[place], native[place] = leaf.value, leaf.number
        start, sets = pack_sides(self.sets)
        return Nodes(
            roots=np.array(roots),
            feature=feature,
            cut=cut,
            left=left,
            right=right,
            missing_left=missing_left,
            value=value,
            native_leaf=native,
            set_start=np.append(start, -1)[own],
            sets=sets,
            tree_output=forest.outputs,
            tree_weight=forest.weights,
        )
