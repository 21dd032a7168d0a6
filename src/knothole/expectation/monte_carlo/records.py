"""Records that the kernels of the Monte Carlo engine read: trees, leaf values, shared draws.

Draws of a row pass through all trees as bits of words, four words of 64 draws at a time. For every
threshold of a missing number, and every code of a missing category, a row of masks marks the draws
that go left; a split is then one AND. Trees with at most 64 leaves are represented by sets of
leaves (:class:`SmallTrees`); larger trees are walked from their roots.

Under a mixture, missing values are independent of observed ones given the component, and all rows
share the same points. So in each component a draw has the same values for every row, and its side
of each split is tabulated once (:class:`SharedDraws`). The row only decides which draws belong to
which component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import shared_draws as kernels
from knothole.arrays import Floats
from knothole.expectation.tables import (
    LEAVES,
    Grid,
    LeafSets,
    Lookup,
    NodeArrays,
    lookup,
    node_arrays,
)
from knothole.sobol import WORD
from knothole.trees.ensemble import Ensemble

# Words processed together.
LANES = 4
# The most thresholds that one byte can count; variables with more thresholds take more bytes.
PER_BYTE = 255
# Largest error of a margin from rounded leaf values: far below that of draws.
ROUNDED = 1e-5


class Forest(NamedTuple):
    """The trees as draws pass through them; fields of type ``Any`` are arrays.

    Attributes
    ----------
    nodes : NodeArrays
    cut_row : uint32 (nodes,)
        Row of masks with the draws below a node's threshold; one that is always 0 at sets.
    mask_row : uint32 (nodes,)
        Row of masks with the draws that go left. It differs from ``cut_row`` at splits on
        categories, and where values that are not recorded go left: these have rows of their own.
    row_variable, row_threshold : int64, float64 (rows of thresholds,)
        Variable and threshold of the first rows of masks.
    set_nodes : int64
        The nodes with rows of their own, in order.
    look : Lookup
    plain : bool
        Whether splits are numeric and nothing, observed or drawn, is "not recorded".
    tree_output : int64 (trees,)
    """

    nodes: NodeArrays
    cut_row: Any
    mask_row: Any
    row_variable: Any
    row_threshold: Any
    set_nodes: Any
    look: Lookup
    plain: bool
    tree_output: Any

    @classmethod
    def of(cls, ensemble: Ensemble) -> Forest:
        """The trees of an ensemble over variables."""
        grid, feature = Grid.of(ensemble), ensemble.feature
        n_rows, leaf = int(grid.offset[-1]), feature < 0
        numeric = ~leaf & (ensemble.set_start < 0)
        rows = grid.offset[np.where(numeric, feature, 0)] + grid.position
        cut_row = np.where(numeric, rows, n_rows).astype(np.uint32)
        goes_left = ensemble.missing_left & ensemble.columns.nullable[feature]
        set_nodes = np.flatnonzero(~leaf & ((ensemble.set_start >= 0) | goes_left))
        set_nodes = set_nodes[np.argsort(feature[set_nodes], kind="stable")]
        mask_row = cut_row.copy()
        mask_row[set_nodes] = n_rows + 1 + np.arange(len(set_nodes))
        row_threshold = np.zeros(n_rows)
        row_threshold[rows[numeric]] = ensemble.threshold[numeric]
        return cls(
            node_arrays(ensemble),
            cut_row,
            mask_row,
            np.repeat(np.arange(len(grid.thresholds)), np.diff(grid.offset)),
            row_threshold,
            set_nodes,
            lookup(ensemble, grid),
            not len(ensemble.sets) and not bool(ensemble.columns.nullable.any()),
            ensemble.tree_output.astype(np.int64),
        )

    @property
    def n_masks(self) -> int:
        """Number of rows of masks."""
        return int(self.look.offset[-1]) + 1 + len(self.set_nodes)


class SmallTrees(NamedTuple):
    """All trees as sets of leaves, grouped by output.

    Attributes
    ----------
    parting : uint8 (trees, 64, 64)
        As in :class:`~knothole.expectation.tables.LeafSets`, for all trees.
    node : uint64 (trees, 128, 2)
        The leaves on the right side of a split, and the split's row of masks.
    output : int64 (trees,)
    leaf : int64 (trees, 64)
        The leaf of each bit.
    place : int64 (trees,)
        Position of each tree of the ensemble in this order.
    """

    parting: Any
    node: Any
    output: Any
    leaf: Any
    place: Any

    @classmethod
    def of(cls, groups: list[LeafSets], forest: Forest) -> SmallTrees:
        """Made from sets of leaves, of which there must be some."""
        right, roots = (np.concatenate([g[i] for g in groups]) for i in (3, 4))
        nodes = np.minimum(roots[:, None] + np.arange(2 * LEAVES), len(forest.mask_row) - 1)
        rows = forest.mask_row[nodes].astype(np.uint64)
        sizes = [len(group.root) for group in groups]
        return cls(
            np.concatenate([group.parting for group in groups]),
            np.ascontiguousarray(np.stack([right, rows], axis=2)),
            np.repeat([group.output for group in groups], sizes).astype(np.int64),
            np.concatenate([group.leaf for group in groups]),
            np.argsort(roots),
        )


class LeafValues(NamedTuple):
    """Leaf values that margins are sums of.

    Attributes
    ----------
    value : float64
        Weighted leaf values: (trees, 64) by tree and bit for small trees, else (leaves, width).
    rounded : float64 or int32 (trees, 64)
        The same, or rounded to multiples of ``unit``, which sum in half the time.
    unit : float
    base : float64 (outputs,)
    """

    value: Any
    rounded: Any
    unit: float
    base: Any

    @classmethod
    def of(cls, value: Floats, base: Floats, small: SmallTrees | None, rounded: bool) -> LeafValues:
        """Leaf values, rounded if asked for and if the error is far below that of draws."""
        if small is None:
            return cls(value, value, 1.0, base)
        values = np.ascontiguousarray(value[:, 0][small.leaf])
        if not rounded:
            return cls(values, values, 1.0, base)
        spread = np.bincount(small.output, np.ptp(values, axis=1)).max()
        unit = max(float(spread) / (1 << 30), np.finfo(np.float64).tiny)
        if not unit * np.sqrt(len(values)) <= ROUNDED:
            return cls(values, values, 1.0, base)
        steps = np.rint((values - values.min(axis=1, keepdims=True)) / unit)
        return cls(values, steps.astype(np.int32), unit, base)


class Reached(NamedTuple):
    """Leaves that the draws of some rows reach: entries of all rows, tree by tree.

    ``stop`` (rows, trees) is where the entries of each row and tree end.
    """

    leaf: Any
    mask: Any
    stop: Any


# ---- draws that all rows share ------------------------------------------------------------------


class SharedDraws(NamedTuple):
    """Draws in each component, the same for all rows, by fours of words.

    Attributes
    ----------
    cells : uint8 (fours, components, slots, 64 LANES)
        Number of thresholds at or below a draw, modulo what a byte can count.
    masks : uint64 (fours, components, set nodes, LANES)
        Draws that go left at splits with rows of masks of their own.
    uniform : float64 (fours, 64 LANES)
        The sorted uniform numbers that choose the components of draws.
    lowest : uint64 (fours, 64 LANES + 1, LANES)
        The draws with the 0, 1, ... lowest of these numbers.
    status, below : float64, uint64 (fours, nullable variables, ...)
        The same for the numbers that choose which nullable variables are not recorded.
    """

    cells: Any
    masks: Any
    uniform: Any
    lowest: Any
    status: Any
    below: Any


class DrawOdds(NamedTuple):
    """Odds of missing values of nullable variables, and the splits on these variables.

    Attributes
    ----------
    odds : float64 (rows, hypotheses, nullable variables)
        As in :class:`~knothole.columns.evidence.Evidence`, infinite where a variable is not
        recorded. (0, 0, 0) if there are none.
    not_recorded : float64 (nullable variables, components)
        The probability of "not recorded".
    variable : int64 (rows of masks,)
        The nullable variable of a split, or -1.
    goes_left : bool (rows of masks,)
        Whether "not recorded" goes left.
    """

    odds: Any
    not_recorded: Any
    variable: Any
    goes_left: Any


def slots_of(look: Lookup) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the bytes are that count the thresholds below a draw.

    The first byte of each variable (variables + 1,); and for each row of masks of a threshold, its
    position within its byte plus 256 times the number of the byte.
    """
    # A number has one row of masks more than thresholds, on either side.
    n_thresholds = np.where(look.n_levels > 0, 0, np.diff(look.offset) - 2)
    first = np.append(0, np.cumsum(-(-n_thresholds // PER_BYTE)))
    row = np.arange(look.offset[-1])
    variable = np.searchsorted(look.offset, row, side="right") - 1
    more, place = np.divmod(row - look.offset[variable] - 1, PER_BYTE)
    return first, 256 * (first[variable] + more) + place + 1


def draws_in_components(
    uniform: Floats, status: Floats, draws: Floats, forest: Forest
) -> SharedDraws:
    """Shared draws of four words, from draws (components, variables, draws).

    ``uniform`` (draws,) chooses components, ``status`` (nullable variables, draws) what is not
    recorded; without nullable variables it still has one row.
    """
    n, (first, _) = len(draws), slots_of(forest.look)
    cells = np.zeros((n, int(first[-1]), LANES * WORD), dtype=np.uint8)
    masks = np.zeros((n, len(forest.set_nodes), LANES), dtype=np.uint64)
    for word, part in enumerate(np.split(draws, LANES, axis=2)):
        kernels.fill_components(np.ascontiguousarray(part), forest, first, word, cells, masks)
    uniform, lowest = _sorted(uniform)
    told, of_told = (np.stack(each) for each in zip(*map(_sorted, status), strict=True))
    arrays = cells, masks, uniform, lowest, told, of_told
    return SharedDraws(*(each[None] for each in arrays))


def _sorted(uniform: Floats) -> tuple[Floats, NDArray[np.uint64]]:
    """Sorted numbers of the draws of four words, and the draws with the lowest of them."""
    order = np.argsort(uniform, kind="stable")
    lowest = np.zeros((len(order) + 1, LANES), dtype=np.uint64)
    bits = np.uint64(1) << (order % WORD).astype(np.uint64)
    lowest[1 + np.arange(len(order)), order // WORD] = bits
    return uniform[order], np.bitwise_or.accumulate(lowest, axis=0)
