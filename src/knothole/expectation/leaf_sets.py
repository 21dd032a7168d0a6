"""Which leaves of each tree what is observed leaves, as the bits of a word.

The bits of a tree's word are its leaves, from left to right. Between two cuts, all values of a
variable leave the same set of leaves; these sets are tabulated, and what a row leaves is the
intersection of those of its observed values: no tree is walked. Where two neighbours in it part,
the row has a hole, and there is no other hole on the ways to them that matters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from knothole.arrays import Words
from knothole.compiled.bits import has
from knothole.compiled.policy import inlined, inner, njit
from knothole.expectation.cuts import Lookup, first_above, lookup
from knothole.expectation.engine import node_arrays
from knothole.expectation.tables import Grid
from knothole.trees.ensemble import Ensemble, some_trees
from knothole.trees.regions import regions

#: The most leaves of a tree.
LEAVES = 64
# The most trees whose sets stand side by side: a value is looked up once for all of them, but as
# many cuts, or more, have a set of each.
TREES = 128
# The most memory for sets.
BYTES = 1 << 27
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class LeafSets(NamedTuple):
    """Some trees that serve one output, each with a word; whatever is ``Any`` is an array.

    Attributes
    ----------
    look : Lookup
        Their cuts.
    sets : uint64 (grid rows + 1, trees)
        The leaves that are left by values below a variable's first cut, from each cut to the next,
        and "not recorded"; or by each code; last, all leaves that any number leads to.
    parting : uint8 (trees, 64, 64)
        Where two leaves part: a node, counted from the root; so ancestors have smaller numbers.
    right : uint64 (trees, 128)
        The leaves on the right of a split, which is a node counted from the root, too.
    root : int64 (trees,)
        Of the whole ensemble's nodes, as ``leaf`` is of its leaves.
    leaf : int64 (trees, 64)
        The leaf of each bit.
    output : int
    """

    look: Lookup
    sets: Any
    parting: Any
    right: Any
    root: Any
    leaf: Any
    output: int


def leaf_sets(ensemble: Ensemble) -> list[LeafSets]:
    """The trees of an ensemble over variables by output; none where some tree has no word.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.trees.read import read
    >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> found = leaf_sets(read(DecisionTreeRegressor(random_state=0).fit(X, [1.0, 2.0, 3.0])))
    >>> [f"{word:03b}" for word in found[0].sets[:2, 0]]  # of x0, below its cut and above
    ['011', '100']
    """
    largest = np.diff(ensemble.leaf_start).max(initial=0)
    if largest > LEAVES or ensemble.value.shape[1] > 1:
        return []
    possible, bit = _possible(ensemble), np.arange(LEAVES, dtype=np.uint64)
    found, size = [], 0
    for output in np.unique(ensemble.tree_output).tolist():
        own = np.flatnonzero(ensemble.tree_output == output)
        for trees in np.array_split(own, -(-len(own) // TREES)):
            part, leaf = some_trees(ensemble, trees)
            grid = Grid.of(part)
            size += 8 * len(trees) * int(grid.offset[-1])
            if size > BYTES:
                return []
            sets = LeafSets(
                lookup(part, grid),
                np.empty((int(grid.offset[-1]) + 1, len(trees)), dtype=np.uint64),
                np.zeros((len(trees), LEAVES, LEAVES), dtype=np.uint8),
                np.zeros((len(trees), 2 * LEAVES), dtype=np.uint64),
                ensemble.roots[trees].astype(np.int64),
                # Where a tree has no leaf, its first: no value that is not its own.
                np.repeat(part.leaf_start[:-1, None], LEAVES, axis=1).astype(np.int64),
                output,
            )
            sets.sets[:] = ALL >> (LEAVES - np.diff(part.leaf_start)).astype(np.uint64)
            count, first = np.empty((2, len(part.feature)), dtype=np.int64)
            fill(node_arrays(part), grid.position, count, first, sets)
            sets = sets._replace(leaf=leaf[sets.leaf])
            sets.sets[-1] &= (possible[sets.leaf] << bit).sum(axis=1)
            found.append(sets)
    return found


def _possible(ensemble: Ensemble) -> Words:
    """1 for each leaf that some number leads to, 0 where cuts contradict each other."""
    all_regions = regions(ensemble)
    absent = all_regions.missing & ensemble.columns.nullable[all_regions.column]
    empty = (all_regions.set_start < 0) & (all_regions.low >= all_regions.high) & ~absent
    possible = np.ones(ensemble.n_leaves, dtype=np.uint64)
    possible[np.repeat(np.arange(ensemble.n_leaves), np.diff(all_regions.start))[empty]] = 0
    return possible


@inlined
def bits(first, stop):  # type: ignore[no-untyped-def]
    """The bits from ``first`` to ``stop``, at least one."""
    return (ALL >> np.uint64(64 - stop + first)) << np.uint64(first)


@njit
def fill(nodes, position, count, first, trees):  # type: ignore[no-untyped-def]
    """Fill the arrays of trees; ``count`` and ``first`` (nodes,) are a node's leaves.

    The sets hold all leaves before.
    """
    roots, feature, left = nodes.roots, nodes.feature, nodes.left
    for n in range(len(feature) - 1, -1, -1):  # children come after their parents
        count[n] = count[left[n]] + count[left[n] + 1] if feature[n] >= 0 else 1
    for tree in range(len(roots)):
        root = roots[tree]
        stop = roots[tree + 1] if tree + 1 < len(roots) else len(feature)
        first[root] = 0
        for n in range(root, stop):
            if feature[n] < 0:
                trees.leaf[tree, first[n]] = left[n]
                continue
            middle, end = first[n] + count[left[n]], first[n] + count[n]
            first[left[n]], first[left[n] + 1] = first[n], middle
            for a in range(first[n], middle):
                for b in range(middle, end):
                    trees.parting[tree, a, b] = n - root
            trees.right[tree, n - root] = bits(middle, end)
            exclude(n, bits(first[n], middle), bits(middle, end), tree, nodes, position, trees)


@inlined
def exclude(node, below, above, tree, nodes, position, trees):  # type: ignore[no-untyped-def]
    """Take the leaves on the other side of a split off the sets of its variable's values."""
    v = nodes.feature[node]
    start, stop = trees.look.offset[v], trees.look.offset[v + 1]
    for row in range(start, stop):
        if trees.look.n_levels[v] > 0:
            goes_left = has(nodes.sets, nodes.set_start[node], row - start)
        elif row == stop - 1:
            goes_left = nodes.missing_left[node]
        else:
            goes_left = row - start < position[node]
        trees.sets[row, tree] &= ~(above if goes_left else below)


@inner
def read_sets(x, trees, out):  # type: ignore[no-untyped-def]
    """The leaves of each tree that what is observed in a row leaves."""
    cuts, start, cells, rulers, halvings, offset, n_levels, used = trees.look
    out[:] = ALL
    meet(trees.sets[len(trees.sets) - 1], out)
    for v in range(len(used)):
        if not used[v] or np.isnan(x[v]):
            continue
        if n_levels[v] > 0:
            row = offset[v] + int(x[v])
        elif x[v] == np.inf:
            row = offset[v + 1] - 1
        else:
            above = first_above(x[v], v, cuts, start, cells, rulers, halvings)
            row = offset[v] + above - np.int64(start[v])
        meet(trees.sets[row], out)


@inlined
def meet(sets, out):  # type: ignore[no-untyped-def]
    """Leave in sets what is in others, too."""
    for tree in range(len(out)):
        out[tree] &= sets[tree]


@njit
def read_rows(points, trees, out):  # type: ignore[no-untyped-def]
    """The leaves that what is observed leaves, ``out`` (rows, trees)."""
    for row in range(len(points)):
        read_sets(points[row], trees, out[row])
