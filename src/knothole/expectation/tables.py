"""What trees, and trees and univariate distributions together, say before any row is seen.

Trees as kernels take them (:func:`node_arrays`). Every threshold by its place among the thresholds
of its variable (:class:`Grid`), with the masses that lie below it: a region of a numeric variable
is an interval between two thresholds, so its mass in state k is the difference of two rows of a
table of cumulative masses; a region of a categorical variable is a set of codes, and its mass a sum
of rows of a table of probabilities. Both kinds of rows stand in one array, ``mass``. Thresholds to
be searched without branches (:class:`Lookup`).

And which leaves of each tree what is observed leaves, as the bits of a word (:class:`LeafSets`).
The bits of a tree's word are its leaves, from left to right. Between two thresholds, all values of
a variable leave the same set of leaves; these sets are tabulated, and what a row leaves is the
intersection of those of its observed values: no tree is walked. Where two neighbours in it part,
the row has a missing value, and no other one on the ways to them matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import leaf_sets as kernels
from knothole.arrays import Floats, Ints, Words
from knothole.bits import unpack_at
from knothole.densities.univariate.base import Univariate
from knothole.trees.ensemble import Ensemble, some_trees
from knothole.trees.in_variables import Merged
from knothole.trees.regions import arrivals, regions
from knothole.trees.traverse import tree_depths

CELLS = 256
#: The most leaves of a tree.
LEAVES = 64
# The most trees whose sets stand side by side: a value is looked up once for all of them, but as
# many thresholds, or more, have a set of each.
TREES = 128
# The most memory for sets.
BYTES = 1 << 27
# Of so many thresholds one has sets of the leaves on its sides.
EVERY = 4
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


# ---- trees


class NodeArrays(NamedTuple):
    """The trees as kernels take them, in the ensemble's own names.

    Whatever is ``Any`` is an array, or a pointer to one once a kernel has made it so.
    """

    roots: Any
    feature: Any
    threshold: Any
    left: Any
    missing_left: Any
    set_start: Any
    sets: Any


def node_arrays(ensemble: Ensemble) -> NodeArrays:
    """The trees as kernels take them."""
    return NodeArrays(
        ensemble.roots,
        ensemble.feature,
        ensemble.threshold,
        ensemble.left,
        ensemble.missing_left,
        ensemble.set_start,
        ensemble.sets,
    )


def plain(ensemble: Ensemble, points: Floats) -> bool:
    """Whether every split is numeric and no value is "not recorded": a shorter test at splits."""
    return len(ensemble.sets) == 0 and not bool(np.isposinf(points).any())


def stack_size(ensemble: Ensemble) -> int:
    """Frames that a walk of the deepest tree can need."""
    depths = tree_depths(ensemble.roots, ensemble.feature, ensemble.left)
    return int(depths.max(initial=0)) + 2


# ---- thresholds and masses


@dataclass(frozen=True, eq=False)
class Grid:
    """Every threshold of an ensemble by its position among the distinct thresholds of its variable.

    Attributes
    ----------
    thresholds : tuple of float64 arrays
        Sorted distinct thresholds of each variable; empty for a categorical one.
    offset : int64 (variables + 1,)
        First row of each variable in a table with ``len(thresholds[v]) + 2`` rows for a numeric
        variable (below everything, below each threshold, everything) and one row per code for a
        categorical one.
    position : int32 (nodes,)
        Row of the node's threshold within its variable, from 1; 0 at leaves and categorical splits.
    """

    thresholds: tuple[Floats, ...]
    offset: NDArray[np.int64]
    position: NDArray[np.int32]

    @classmethod
    def of(cls, ensemble: Ensemble) -> Grid:
        """The grid of an ensemble over variables."""
        numeric = (ensemble.feature >= 0) & (ensemble.set_start < 0)
        position = np.zeros(len(ensemble.feature), dtype=np.int32)
        thresholds: list[Floats] = []
        rows: list[int] = []
        for v, n_levels in enumerate(ensemble.n_levels.tolist()):
            nodes = np.flatnonzero(numeric & (ensemble.feature == v))
            distinct, where = np.unique(ensemble.threshold[nodes], return_inverse=True)
            position[nodes] = where + 1
            thresholds.append(distinct)
            rows.append(n_levels if n_levels else len(distinct) + 2)
        offset = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        return cls(tuple(thresholds), offset, position)

    def masses(self, distributions: Sequence[Univariate | None], merged: Merged) -> Floats:
        """Cumulative masses and probabilities of univariate distributions, (rows, states).

        0 for a variable without a distribution, whose values are always known.
        """
        n_levels = merged.ensemble.n_levels
        out = np.zeros((int(self.offset[-1]), n_states(distributions)))
        for v, thresholds in enumerate(self.thresholds):
            rows, distribution = (
                slice(int(self.offset[v]), int(self.offset[v + 1])),
                distributions[v],
            )
            if distribution is None:
                continue
            if n_levels[v]:
                mass, classes = np.exp(distribution.form.table), merged.classes.get(v)
                if classes is not None:
                    mass = np.stack([np.bincount(classes[:-1], each) for each in mass.T], axis=1)
                out[rows] = mass
                continue
            high = np.append(thresholds, np.inf)
            low = np.full(len(high), -np.inf)
            below = distribution.mass(low, high, np.zeros(len(high), dtype=np.bool_))
            out[rows][1:] = np.maximum.accumulate(below, axis=0)
        return out


def n_states(distributions: Sequence[Univariate | None]) -> int:
    """States of the density that univariate distributions belong to."""
    return next(
        (distribution.n_states for distribution in distributions if distribution is not None), 1
    )


def not_recorded_mass(
    distributions: Sequence[Univariate | None], n_levels: NDArray[np.int32]
) -> Floats:
    """Mass of the state "not recorded" of each numeric variable, (variables, states)."""
    out = np.zeros((len(n_levels), n_states(distributions)))
    nowhere, flag = np.array([0.0]), np.array([True])
    for v, distribution in enumerate(distributions[: len(n_levels)]):
        if distribution is not None and not n_levels[v]:
            out[v] = distribution.mass(nowhere, nowhere, flag)[0]
    return out


def left_probabilities(
    ensemble: Ensemble, grid: Grid, mass: Floats, absent: Floats, unrecorded: Ints
) -> tuple[Floats, Floats]:
    """Probability q of going left at a node, for every state, where its variable is missing.

    It is mass(arriving and left) / mass(arriving). A state that gives the arriving region no mass
    carries no weight there either; q is 0 then. Beside it: the part of what arrives that is not
    recorded; ``unrecorded`` (variables,) is the code of that, for categories.
    """
    arriving = arrivals(ensemble)
    out, none = np.zeros((2, len(ensemble.feature), mass.shape[1]))
    for v, n_levels in enumerate(ensemble.n_levels.tolist()):
        nodes = np.flatnonzero(ensemble.feature == v)
        rows = mass[grid.offset[v] : grid.offset[v + 1]]
        if n_levels:
            region = unpack_at(arriving.sets, arriving.set_start[nodes], n_levels)
            goes_left = unpack_at(ensemble.sets, ensemble.set_start[nodes], n_levels)
            total, part = region @ rows, (region & goes_left) @ rows
            code = int(unrecorded[v])
            missing, nothing = region[:, code, None] & (code >= 0), rows[code]
        else:
            low = np.searchsorted(grid.thresholds[v], arriving.low[nodes]) + 1
            low[arriving.low[nodes] == -np.inf] = 0
            high = np.searchsorted(grid.thresholds[v], arriving.high[nodes]) + 1
            high = np.maximum(high, low)
            middle = np.clip(grid.position[nodes], low, high)
            missing, nothing = arriving.missing[nodes, None], absent[v]
            total = rows[high] - rows[low] + missing * nothing
            part = rows[middle] - rows[low]
            part += (missing & ensemble.missing_left[nodes, None]) * nothing
        np.divide(part, total, out=part, where=total > 0)
        out[nodes] = np.where(total > 0, part, 0.0)
        none[nodes] = np.divide(missing * nothing, total, out=np.zeros_like(total), where=total > 0)
    return out, none


class Lookup(NamedTuple):
    """The thresholds of an ensemble, to be searched without branches.

    A value is looked up in one of :data:`CELLS` cells of equal width between its variable's outer
    thresholds; the thresholds of the cell are searched by halving, the same number of times in
    every cell.

    Attributes
    ----------
    thresholds : float64
        Sorted distinct thresholds of one variable after the other, each followed by as many
        infinite ones as a search may look beyond.
    start : uint32 (variables,)
        First threshold of each variable.
    cells : uint32 (variables, CELLS)
        First threshold that may lie in each cell.
    rulers : float64 (variables, 2)
        Where a variable's cells begin, and how many there are per unit.
    halvings : int64 (variables,)
    offset : int64 (variables + 1,)
        First row of each variable in ``masks``.
    n_levels : int32 (variables,)
    used : bool (variables,)
        Variables that some tree splits on; the others are passed over.
    """

    thresholds: Floats
    start: NDArray[np.uint32]
    cells: NDArray[np.uint32]
    rulers: Floats
    halvings: NDArray[np.int64]
    offset: NDArray[np.int64]
    n_levels: NDArray[np.int32]
    used: NDArray[np.bool_]


def lookup(ensemble: Ensemble, grid: Grid) -> Lookup:
    """Tabulate the thresholds of an ensemble over variables."""
    return Lookup(*threshold_cells(grid.thresholds), grid.offset, ensemble.n_levels, ensemble.used)


def threshold_cells(
    thresholds: Sequence[Floats],
) -> tuple[Floats, NDArray[np.uint32], NDArray[np.uint32], Floats, NDArray[np.int64]]:
    """The first five fields of :class:`Lookup`, for sorted distinct thresholds of each variable."""
    padded: list[Floats] = [np.empty(0)]
    start = np.zeros(len(thresholds), dtype=np.uint32)
    halvings = np.zeros(len(thresholds), dtype=np.int64)
    cells = np.zeros((len(thresholds), CELLS), dtype=np.uint32)
    rulers = np.zeros((len(thresholds), 2))
    total = 0
    for v, own in enumerate(thresholds):
        finite = own[np.isfinite(own)]
        with np.errstate(over="ignore"):
            width = finite[-1] - finite[0] if len(finite) else 0.0
        if np.isfinite(width) and width > np.finfo(np.float64).tiny * CELLS:
            rulers[v] = finite[0], CELLS / width
        # Otherwise one cell for all.
        with np.errstate(invalid="ignore"):
            place = (own - rulers[v, 0]) * rulers[v, 1]
        cell = np.clip(np.nan_to_num(place), 0, CELLS - 1).astype(np.int64)
        count = np.bincount(cell, minlength=CELLS)
        halvings[v] = int(count.max()).bit_length()
        start[v] = total
        cells[v] = total + np.cumsum(count) - count
        padded += [own, np.full(1 << halvings[v], np.inf)]
        total += len(own) + (1 << halvings[v])
    return np.concatenate(padded), start, cells, rulers, halvings


# ---- sets of leaves


class LeafSets(NamedTuple):
    """Some trees that serve one output, each with a word; whatever is ``Any`` is an array.

    Attributes
    ----------
    look : Lookup
        Their thresholds.
    sets : uint64 (grid rows + 1, trees)
        The leaves that are left by values below a variable's first threshold, from each threshold
        to the next, and "not recorded"; or by each code; last, all leaves that any number leads to.
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
    >>> [f"{word:03b}" for word in found[0].sets[:2, 0]]  # of x0, below its threshold and above
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
            kernels.fill(node_arrays(part), FilledSets.of(sets, grid.position))
            sets = sets._replace(leaf=leaf[sets.leaf])
            sets.sets[-1] &= (possible[sets.leaf] << bit).sum(axis=1)
            found.append(sets)
    return found


def _possible(ensemble: Ensemble) -> Words:
    """1 for each leaf that some number leads to, 0 where thresholds contradict each other."""
    all_regions = regions(ensemble)
    absent = all_regions.missing & ensemble.columns.nullable[all_regions.column]
    empty = (all_regions.set_start < 0) & (all_regions.low >= all_regions.high) & ~absent
    possible = np.ones(ensemble.n_leaves, dtype=np.uint64)
    possible[np.repeat(np.arange(ensemble.n_leaves), np.diff(all_regions.start))[empty]] = 0
    return possible


class FilledSets(NamedTuple):
    """The arrays of :class:`LeafSets` that a kernel fills; the sets hold all leaves before."""

    offset: Any
    n_levels: Any
    position: Any  # see `Grid`
    sets: Any
    parting: Any
    right: Any
    leaf: Any

    @classmethod
    def of(cls, trees: LeafSets, position: NDArray[np.int32]) -> FilledSets:
        """Those of some trees."""
        look = trees.look
        return cls(
            look.offset, look.n_levels, position, trees.sets, trees.parting, trees.right, trees.leaf
        )


class RangeSets(NamedTuple):
    """The leaves that ranges of a number leave of some trees, whose splits are all numeric.

    Attributes
    ----------
    first : int64 (variables,)
        First row of each variable in the two that follow.
    from_on, up_to : uint64 (rows, trees)
        The leaves that values from a threshold on, or up to one, leave: of the first and the last
        of so many thresholds (:data:`EVERY`), so that tables are small.
    """

    first: Any
    from_on: Any
    up_to: Any

    @classmethod
    def of(cls, trees: LeafSets) -> RangeSets:
        """Of the trees' sets of leaves."""
        first, parts = [0], []
        for start, stop in pairwise(trees.look.offset.tolist()):
            sets = trees.sets[start : stop - 1]
            after = np.bitwise_or.accumulate(sets[::-1], axis=0)[::-1]
            before = np.bitwise_or.accumulate(sets, axis=0)
            last = np.minimum(np.arange(0, len(sets), EVERY) + EVERY, len(sets)) - 1
            parts.append((after[::EVERY], before[last]))
            first.append(first[-1] + len(last))
        return cls(np.array(first), *map(np.concatenate, zip(*parts, strict=True)))
