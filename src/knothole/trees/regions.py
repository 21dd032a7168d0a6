"""Regions: the values that lead to a leaf, and those that arrive at a split.

In one column, the values that lead somewhere are an interval ``[low, high)`` or a set of
categories; the library's own NaN may lead there too. A region is the product of these over the
columns on the path. Columns that the path does not split on are unrestricted.

Sets are stored as bits (:mod:`knothole.bits`). Every edge below a categorical split has one set,
which all leaves below share.

Values that the library takes for NaN (``Ensemble.sentinel``) are NaN here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knothole._core import regions as kernels
from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.bits import complement, set_words, starts
from knothole.errors import InvalidInput
from knothole.trees.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class ValueRanges:
    """Sets of values of one column each: an interval or categories, and perhaps NaN.

    Attributes
    ----------
    low, high : float64 (entries,)
        The interval ``[low, high)``; empty where ``low >= high``, unbounded where there is a set.
    set_start : int32 (entries,)
        First word in ``sets`` of the categories; -1 for an interval.
    sets : uint64 (words,)
        Bits of the sets.
    missing : bool (entries,)
        Whether the library's own NaN is included.
    """

    low: Floats
    high: Floats
    set_start: Integers
    sets: Words
    missing: Mask


@dataclass(frozen=True, eq=False)
class Regions(ValueRanges):
    """The region of every leaf, one entry for each column on its path.

    Attributes
    ----------
    start : int64 (leaves + 1,)
        Entries ``start[l]`` to ``start[l + 1]`` are the region of leaf ``l``, columns ascending.
    column : int32 (entries,)
        Column of each entry.
    """

    start: Ints
    column: Integers


def arrivals(ensemble: Ensemble) -> ValueRanges:
    """The values of its split column that arrive at each inner node, (nodes,).

    The probability of going left, given arrival, is mass(arriving and left) / mass(arriving).
    Entries of leaves are meaningless.
    """
    return _arrivals(_tree(ensemble))


def _arrivals(tree: _TreeOfRegions) -> ValueRanges:
    n = len(tree.feature)
    low, high, missing = np.full(n, -np.inf), np.full(n, np.inf), np.ones(n, dtype=np.bool_)
    inner = np.flatnonzero(tree.feature >= 0)
    below: Integers = inner.astype(np.int32)
    while len(inner):  # climb from all nodes at once
        split = tree.parent[below]
        inner, below, split = inner[split >= 0], below[split >= 0], split[split >= 0]
        asks = tree.feature[split] == tree.feature[inner]
        node, child, at = inner[asks], below[asks], split[asks]
        is_left = child == tree.left[at]
        missing[node] &= is_left == tree.missing_left[at]
        numeric = tree.edge_set[child] < 0  # the sets have been filled already
        for side, bound, nearer in ((is_left, high, np.minimum), (~is_left, low, np.maximum)):
            here = numeric & side
            bound[node[here]] = nearer(bound[node[here]], tree.threshold[at[here]])
        below = split
    return ValueRanges(low, high, tree.arriving_set, tree.sets, missing)


def regions(ensemble: Ensemble) -> Regions:
    """The region of every leaf.

    For each column: what arrives at the last split on it above the leaf and goes towards the leaf.
    """
    tree = _tree(ensemble)
    leaf, below = _last_splits(ensemble)
    split = tree.parent[below]
    arrived = _arrivals(tree)
    is_left = below == tree.left[split]
    low, high, threshold = arrived.low[split], arrived.high[split], tree.threshold[split]
    set_start = tree.edge_set[below]
    numeric = set_start < 0
    return Regions(
        start=np.searchsorted(leaf, np.arange(ensemble.n_leaves + 1)),
        column=tree.feature[split],
        low=np.where(numeric & ~is_left, np.maximum(low, threshold), low),
        high=np.where(numeric & is_left, np.minimum(high, threshold), high),
        set_start=set_start,
        sets=tree.sets,
        missing=arrived.missing[split] & (is_left == tree.missing_left[split]),
    )


def _last_splits(ensemble: Ensemble) -> tuple[Ints, Integers]:
    """Pairs of a leaf and the child, towards it, of the last split on a column of its path.

    Sorted by leaf, then by column.
    """
    node: Integers = np.flatnonzero(ensemble.feature < 0).astype(np.int32)
    leaf = ensemble.left[node].astype(np.int64)
    leaves, nodes = [leaf[:0]], [node[:0]]
    while len(node):  # all leaves climb at once
        inner = ensemble.parent[node] >= 0
        leaf, node = leaf[inner], node[inner]
        leaves.append(leaf)
        nodes.append(node)
        node = ensemble.parent[node]
    leaf, node = np.concatenate(leaves), np.concatenate(nodes)
    column = ensemble.feature[ensemble.parent[node]]
    _, last = np.unique(leaf * len(ensemble.columns) + column, return_index=True)
    return leaf[last], node[last]


class _TreeOfRegions(NamedTuple):
    """The arrays that the kernels climb: every node has its parent, every edge its set."""

    parent: Integers
    feature: Integers
    threshold: Floats
    left: Integers
    missing_left: Mask
    edge_set: Integers
    arriving_set: Integers
    sets: Words


def _tree(ensemble: Ensemble) -> _TreeOfRegions:
    # Words: the set of all categories for every categorical column, then two sets for every
    # categorical split, left and right.
    splits = np.flatnonzero(ensemble.set_start >= 0)
    words = set_words(ensemble.n_levels.astype(np.int64))
    full_words = np.where(ensemble.n_levels > 0, words, 0)
    n_full = int(full_words.sum())
    split_words = words[ensemble.feature[splits]]
    split_start = n_full + 2 * starts(split_words)
    n_words = n_full + 2 * int(split_words.sum())
    if n_words > np.iinfo(np.int32).max:
        raise InvalidInput(
            f"{ensemble.library}: the sets of {len(splits)} categorical splits need "
            f"{n_words} words, more than can be addressed. Use fewer categories or trees."
        )
    sets = np.zeros(n_words, dtype=np.uint64)
    sets[:n_full] = complement(ensemble.n_levels[ensemble.n_levels > 0], sets[:n_full])
    edge_set = np.full(len(ensemble.feature), -1, dtype=np.int32)
    edge_set[ensemble.left[splits]] = split_start
    edge_set[ensemble.left[splits] + 1] = split_start + split_words
    arriving_set = np.full(len(ensemble.feature), -1, dtype=np.int32)
    tree = _TreeOfRegions(
        ensemble.parent, ensemble.feature, ensemble.threshold, ensemble.left, ensemble.missing_left,
        edge_set, arriving_set, sets,
    )  # fmt: skip
    full_start = starts(full_words).astype(np.int32)
    kernels.split_sets(tree, splits, ensemble.set_start, ensemble.sets, full_start, words)
    return tree
