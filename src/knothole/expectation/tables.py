"""Tables of an ensemble and of univariate distributions, computed before any row is seen.

The trees as kernels read them (:func:`node_arrays`). Every threshold by its position among the
thresholds of its variable (:class:`Grid`), with the mass below it. A region of a numeric variable
is an interval between two thresholds, so its mass in state k is the difference of two rows of a
table of cumulative masses. A region of a categorical variable is a set of codes, and its mass a sum
of rows of a table of probabilities. Both kinds of rows are in one array, ``mass``. Thresholds in a
form for branch-free search (:class:`Lookup`).

And the leaves of each tree that observed values are compatible with, as bits of a word
(:class:`LeafSets`). The bits are the leaves of a tree from left to right. All values between two
neighbouring thresholds are compatible with the same leaves; these sets are tabulated, and a row's
set is their intersection over its observed values, without walking the tree. Where two neighbouring
leaves of the set part, the split is on a missing value; no other splits matter.
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
# The most trees in one table of sets: a value is looked up once for all of them, but there is
# one set for each of their thresholds.
TREES = 128
# The most memory for the sets, in bytes.
BYTES = 1 << 27
# One in so many thresholds has sets for ranges of values (RangeSets).
EVERY = 4
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


# ---- trees


class NodeArrays(NamedTuple):
    """The trees as kernels read them, with the ensemble's own names.

    Fields of type ``Any`` are arrays.
    """

    roots: Any
    feature: Any
    threshold: Any
    left: Any
    missing_left: Any
    set_start: Any
    sets: Any


def node_arrays(ensemble: Ensemble) -> NodeArrays:
    """The trees as kernels read them."""
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
    """Whether all splits are numeric and no value is "not recorded", so that tests are shorter."""
    return len(ensemble.sets) == 0 and not bool(np.isposinf(points).any())


def stack_size(ensemble: Ensemble) -> int:
    """The most stack frames that a walk can need, set by the deepest tree."""
    depths = tree_depths(ensemble.roots, ensemble.feature, ensemble.left)
    return int(depths.max(initial=0)) + 2


# ---- thresholds and masses


@dataclass(frozen=True, eq=False)
class Grid:
    """Positions of an ensemble's thresholds among the distinct thresholds of each variable.

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

        0 for a variable without a distribution, which is always observed.
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
    """Number of states of the univariate distributions."""
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

    It is mass(arriving and left) / mass(arriving), and 0 in states where the arriving region has
    no mass, whose weight is 0 there too. Also returns the fraction of the arriving mass that is not
    recorded; ``unrecorded`` (variables,) has the code of that in categorical variables.
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
    """The thresholds of an ensemble, in a form for branch-free search.

    A variable's range is divided into :data:`CELLS` cells of equal width. The thresholds of a
    value's cell are searched by bisection, with the same number of steps in every cell.


    Attributes
    ----------
    thresholds : float64
        Sorted distinct thresholds of all variables, each variable's followed by as many infinite
        ones as a search may read beyond the end.
    start : uint32 (variables,)
        First threshold of each variable.
    cells : uint32 (variables, CELLS)
        First threshold that can lie in each cell.
    rulers : float64 (variables, 2)
        Where a variable's cells begin, and the number of cells per unit.
    halvings : int64 (variables,)
    offset : int64 (variables + 1,)
        First row of each variable in ``masks``.
    n_levels : int32 (variables,)
    used : bool (variables,)
        Variables that some tree splits on; others are skipped.
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
    """The lookup table of an ensemble over variables."""
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
        # Otherwise one cell for all thresholds.
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
    """Sets of leaves of trees that serve one output, as one word per tree.

    Attributes
    ----------
    look : Lookup
        Lookup of their thresholds.
    sets : uint64 (grid rows + 1, trees)
        The leaves compatible with values below a variable's first threshold, between consecutive
        thresholds, and "not recorded"; or with each code. Last row: all leaves that any number can
        reach.
    parting : uint8 (trees, 64, 64)
        The node where two leaves part, counted from the root; ancestors have smaller numbers.
    right : uint64 (trees, 128)
        The leaves on the right side of a split, which is a node counted from the root.
    root : int64 (trees,)
        The root among the ensemble's nodes.
    leaf : int64 (trees, 64)
        The ensemble's leaf of each bit.
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
    """Sets of leaves by output; an empty list if a tree has too many leaves for a word.

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
                # Unused bits point to the tree's first leaf, so no other tree's value is read.
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
    """1 for each leaf that some value reaches, 0 where the thresholds on its path contradict."""
    all_regions = regions(ensemble)
    absent = all_regions.missing & ensemble.columns.nullable[all_regions.column]
    empty = (all_regions.set_start < 0) & (all_regions.low >= all_regions.high) & ~absent
    possible = np.ones(ensemble.n_leaves, dtype=np.uint64)
    possible[np.repeat(np.arange(ensemble.n_leaves), np.diff(all_regions.start))[empty]] = 0
    return possible


class FilledSets(NamedTuple):
    """The arrays of :class:`LeafSets` that a kernel fills; initially the sets have all leaves."""

    offset: Any
    n_levels: Any
    position: Any  # see `Grid`
    sets: Any
    parting: Any
    right: Any
    leaf: Any

    @classmethod
    def of(cls, trees: LeafSets, position: NDArray[np.int32]) -> FilledSets:
        """The arrays of some trees."""
        look = trees.look
        return cls(
            look.offset, look.n_levels, position, trees.sets, trees.parting, trees.right, trees.leaf
        )


class RangeSets(NamedTuple):
    """The leaves compatible with ranges of a number, for trees whose splits are all numeric.

    Attributes
    ----------
    first : int64 (variables,)
        First row of each variable in the next two arrays.
    from_on, up_to : uint64 (rows, trees)
        The leaves compatible with some value from a threshold on, or up to one. To keep the
        tables small, only one in :data:`EVERY` thresholds has a row.
    """

    first: Any
    from_on: Any
    up_to: Any

    @classmethod
    def of(cls, trees: LeafSets) -> RangeSets:
        """Computed from the trees' sets of leaves."""
        first, parts = [0], []
        for start, stop in pairwise(trees.look.offset.tolist()):
            sets = trees.sets[start : stop - 1]
            after = np.bitwise_or.accumulate(sets[::-1], axis=0)[::-1]
            before = np.bitwise_or.accumulate(sets, axis=0)
            last = np.minimum(np.arange(0, len(sets), EVERY) + EVERY, len(sets)) - 1
            parts.append((after[::EVERY], before[last]))
            first.append(first[-1] + len(last))
        return cls(np.array(first), *map(np.concatenate, zip(*parts, strict=True)))
