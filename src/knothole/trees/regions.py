"""Regions: which values lead to a leaf, and which arrive at a split.

For a column, the values that lead somewhere are an interval ``[low, high)`` or a set of
categories, and besides, the library's own NaN may lead there. A region is the product of these
over the columns on the path; a column that no split on the path asks about is free.

Sets are kept as bits (:mod:`knothole.compiled.bits`). Every edge below a categorical split owns one
set, which all leaves below share.

Values that the library takes for NaN (``Ensemble.sentinel``) are NaN here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.compiled.bits import complement, members, set_words, starts
from knothole.compiled.policy import njit
from knothole.errors import InvalidInput
from knothole.tables.columns import Columns
from knothole.trees.ensemble import Ensemble


@dataclass(frozen=True, eq=False)
class Values:
    """What can be in a column on the way to somewhere, one entry for each such place.

    Attributes
    ----------
    low, high : float64 (entries,)
        Values in ``[low, high)``; none where ``low >= high``, all where there is a set.
    set_start : int32 (entries,)
        First word in ``sets`` of the categories; -1 for an interval.
    sets : uint64 (words,)
        Bits of the sets.
    missing : bool (entries,)
        Whether the library's own NaN in this column is among them.
    """

    low: Floats
    high: Floats
    set_start: Integers
    sets: Words
    missing: Mask


@dataclass(frozen=True, eq=False)
class Arrivals(Values):
    """For every inner node, what arrives there in the node's own split column; (nodes,).

    The probability of going left at a node, given arrival, is
    mass(arrival and left) / mass(arrival). At leaves the entries say nothing.
    """


@dataclass(frozen=True, eq=False)
class Regions(Values):
    """For every leaf, the values that lead to it, column by column.

    Attributes
    ----------
    columns : Columns
        What the trees split on.
    start : int64 (leaves + 1,)
        Entries ``start[l]`` to ``start[l + 1]`` are the region of leaf ``l``, one for every
        column on its path, in ascending order of columns.
    column : int32 (entries,)
        The column.
    """

    columns: Columns
    start: Ints
    column: Integers

    def empty(self) -> Mask:
        """Leaves that no value leads to, only a NaN if anything; (leaves,).

        They appear where a library learned a side for NaN, and have reach 0 when NaN is a hole.
        """
        nothing = self.low >= self.high
        has_set = self.set_start >= 0
        for column in np.unique(self.column[has_set]).tolist():
            entries = np.flatnonzero(has_set & (self.column == column))
            n_words = set_words(len(self.columns[column].levels))
            words = self.set_start[entries, None] + np.arange(n_words)
            nothing[entries] |= ~self.sets[words].any(axis=1)
        counts = np.concatenate([[0], np.cumsum(nothing)])
        return np.asarray(counts[self.start[1:]] > counts[self.start[:-1]])

    def describe(self, leaf: int) -> dict[str, str]:
        """A leaf's region in words, by column name; columns that are free are left out.

        Examples
        --------
        >>> from sklearn.tree import DecisionTreeRegressor
        >>> from knothole.trees.read import read
        >>> model = DecisionTreeRegressor(max_depth=2).fit([[0, 5], [1, 5], [1, 9]], [0, 4, 5])
        >>> regions(read(model)).describe(0)
        {'x0': 'x < 0.5'}
        """
        if not 0 <= leaf < len(self.start) - 1:
            raise InvalidInput(
                f"leaf must be a leaf's number, from 0 to {len(self.start) - 2}; got {leaf}."
            )
        return {
            self.columns[int(self.column[entry])].name: self._phrase(entry)
            for entry in range(int(self.start[leaf]), int(self.start[leaf + 1]))
        }

    def _phrase(self, entry: int) -> str:
        low, high = float(self.low[entry]), float(self.high[entry])
        if self.set_start[entry] >= 0:
            levels = self.columns[int(self.column[entry])].levels
            *known, unseen = members(self.sets[int(self.set_start[entry]) :], len(levels))
            options = [repr(level) for level, leads in zip(levels, known, strict=True) if leads]
            options += ["unseen"] if unseen else []
            phrase = f"one of {', '.join(options)}" if options else "no value"
        elif low >= high:
            phrase = "no value"
        else:
            below = f" < {high:.6g}" if high < np.inf else ""
            phrase = f"x{below}" if low == -np.inf else f"{low:.6g} <= x{below}"
        return f"{phrase} or NaN" if self.missing[entry] else phrase


def arrivals(ensemble: Ensemble) -> Arrivals:
    """What arrives at every split; time linear in the paths' total length."""
    return _arrivals(_tree(ensemble))


def _arrivals(tree: _Tree) -> Arrivals:
    n = len(tree.feature)
    low, high, missing = np.full(n, -np.inf), np.full(n, np.inf), np.ones(n, dtype=np.bool_)
    fill_arrivals(tree, low, high, missing)
    return Arrivals(low, high, tree.arriving_set, tree.sets, missing)


def regions(ensemble: Ensemble) -> Regions:
    """The region of every leaf; time linear in the paths' total length.

    In a column, it is what arrives at the last split on it above the leaf and goes the leaf's way.
    """
    tree = _tree(ensemble)
    leaf_node = np.empty(ensemble.n_leaves, dtype=np.int32)
    is_leaf = ensemble.feature < 0
    leaf_node[ensemble.left[is_leaf]] = np.flatnonzero(is_leaf)
    slot = np.full(len(ensemble.columns), -1, dtype=np.int64)
    start = np.zeros(ensemble.n_leaves + 1, dtype=np.int64)
    count_columns(tree, leaf_node, slot, start)
    below = np.empty(int(start[-1]), dtype=np.int32)
    slot[:] = -1
    find_last_splits(tree, leaf_node, slot, start, below)
    split = tree.parent[below]
    arrived = _arrivals(tree)
    is_left = below == tree.left[split]
    low, high, cut = arrived.low[split], arrived.high[split], tree.cut[split]
    set_start = tree.edge_set[below]
    numeric = set_start < 0
    return Regions(
        columns=ensemble.columns,
        start=start,
        column=tree.feature[split],
        low=np.where(numeric & ~is_left, np.maximum(low, cut), low),
        high=np.where(numeric & is_left, np.minimum(high, cut), high),
        set_start=set_start,
        sets=tree.sets,
        missing=arrived.missing[split] & (is_left == tree.missing_left[split]),
    )


class _Tree(NamedTuple):
    """An ensemble as the kernels climb it; every node has its parent, every edge its set."""

    parent: Integers
    feature: Integers
    cut: Floats
    left: Integers
    missing_left: Mask
    edge_set: Integers
    arriving_set: Integers
    sets: Words


def _tree(ensemble: Ensemble) -> _Tree:
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
    tree = _Tree(
        ensemble.parent, ensemble.feature, ensemble.cut, ensemble.left, ensemble.missing_left,
        edge_set, arriving_set, sets,
    )  # fmt: skip
    full_start = starts(full_words).astype(np.int32)
    fill_sets(tree, splits, ensemble.set_start, ensemble.sets, full_start, words)
    return tree


@njit
def fill_sets(tree, splits, set_start, left_sets, full_start, n_words):  # type: ignore[no-untyped-def]
    """What arrives at each categorical split (parents come first), and what goes to each side."""
    for n in splits:
        column = tree.feature[n]
        arriving = full_start[column]
        node = n
        while tree.parent[node] >= 0:
            if tree.feature[tree.parent[node]] == column and tree.edge_set[node] >= 0:
                arriving = tree.edge_set[node]
                break
            node = tree.parent[node]
        tree.arriving_set[n] = arriving
        to_left, to_right = tree.edge_set[tree.left[n]], tree.edge_set[tree.left[n] + 1]
        for w in range(n_words[column]):
            here, goes_left = tree.sets[arriving + w], left_sets[set_start[n] + w]
            tree.sets[to_left + w] = here & goes_left
            tree.sets[to_right + w] = here & ~goes_left


@njit
def fill_arrivals(tree, low, high, missing):  # type: ignore[no-untyped-def]
    """Climb from every inner node and gather what ancestors ask about its column."""
    for n in range(len(low)):
        column = tree.feature[n]
        if column < 0:
            continue
        node = n
        while tree.parent[node] >= 0:
            split = tree.parent[node]
            if tree.feature[split] == column:
                is_left = node == tree.left[split]
                missing[n] &= is_left == tree.missing_left[split]
                if tree.edge_set[node] >= 0:
                    pass  # the sets were filled before
                elif is_left:
                    high[n] = min(high[n], tree.cut[split])
                else:
                    low[n] = max(low[n], tree.cut[split])
            node = split


@njit
def count_columns(tree, leaf_node, slot, start):  # type: ignore[no-untyped-def]
    """Number of different columns on each leaf's path, accumulated into ``start``."""
    for leaf in range(len(leaf_node)):
        start[leaf + 1] = start[leaf]
        node = tree.parent[leaf_node[leaf]]
        while node >= 0:
            if slot[tree.feature[node]] != leaf:
                slot[tree.feature[node]] = leaf
                start[leaf + 1] += 1
            node = tree.parent[node]


@njit
def find_last_splits(tree, leaf_node, slot, start, below):  # type: ignore[no-untyped-def]
    """For every leaf and column on its path, ascending, the node below the last split on it."""
    for leaf in range(len(leaf_node)):
        stop = start[leaf]
        node = leaf_node[leaf]
        while tree.parent[node] >= 0:
            column = tree.feature[tree.parent[node]]
            if slot[column] != leaf:
                slot[column] = leaf
                at = stop
                while at > start[leaf] and tree.feature[tree.parent[below[at - 1]]] > column:
                    below[at] = below[at - 1]
                    at -= 1
                below[at] = node
                stop += 1
            node = tree.parent[node]
