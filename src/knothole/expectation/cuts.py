"""Cuts of an ensemble, to be searched without branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.policy import inlined
from knothole.expectation.tables import Grid
from knothole.trees.ensemble import Ensemble

CELLS = 256


class Lookup(NamedTuple):
    """The cuts of an ensemble, to be searched without branches.

    A value is looked up in one of :data:`CELLS` cells of equal width between its variable's outer
    cuts; the cuts of the cell are searched by halving, the same number of times in every cell.

    Attributes
    ----------
    cuts : float64
        Sorted distinct cuts of one variable after the other, each followed by as many infinite
        ones as a search may look beyond.
    start : uint32 (variables,)
        First cut of each variable.
    cells : uint32 (variables, CELLS)
        First cut that may lie in each cell.
    rulers : float64 (variables, 2)
        Where a variable's cells begin, and how many there are per unit.
    halvings : int64 (variables,)
    offset : int64 (variables + 1,)
        First row of each variable in ``masks``.
    n_levels : int32 (variables,)
    used : bool (variables,)
        Variables that some tree splits on; the others are passed over.
    """

    cuts: Floats
    start: NDArray[np.uint32]
    cells: NDArray[np.uint32]
    rulers: Floats
    halvings: NDArray[np.int64]
    offset: NDArray[np.int64]
    n_levels: NDArray[np.int32]
    used: NDArray[np.bool_]


def lookup(ensemble: Ensemble, grid: Grid) -> Lookup:
    """Tabulate the cuts of an ensemble over variables."""
    used = np.zeros(len(ensemble.columns), dtype=np.bool_)
    used[ensemble.feature[ensemble.feature >= 0]] = True
    return Lookup(*cut_cells(grid.cuts), grid.offset, ensemble.n_levels, used)


def cut_cells(
    cuts: Sequence[Floats],
) -> tuple[Floats, NDArray[np.uint32], NDArray[np.uint32], Floats, NDArray[np.int64]]:
    """The first five fields of :class:`Lookup`, for sorted distinct cuts of each variable."""
    padded: list[Floats] = [np.empty(0)]
    start = np.zeros(len(cuts), dtype=np.uint32)
    halvings = np.zeros(len(cuts), dtype=np.int64)
    cells = np.zeros((len(cuts), CELLS), dtype=np.uint32)
    rulers = np.zeros((len(cuts), 2))
    total = 0
    for v, own in enumerate(cuts):
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


@inlined
def cell_of(x, lowest, scale):  # type: ignore[no-untyped-def]
    """The cell of a value, that of the nearest end beyond them; some cell, whatever ``x`` is."""
    place = (x - lowest) * scale
    place = place if place > 0.0 else 0.0  # NaN too: infinity has no place without a scale
    return np.uint32(min(place, CELLS - 1.0))


@inlined
def settled(x, below, start, cuts):  # type: ignore[no-untyped-def]
    """The first cut above ``x``, exactly: rounding may have led a search to the cell beside."""
    while below > start and cuts[below - 1] > x:
        below -= 1
    while cuts[below] <= x:
        below += 1
    return below


@inlined
def halved(x, at, power, cuts):  # type: ignore[no-untyped-def]
    """One step of a search for the first cut above ``x``: ``at``, or 2**power cuts further on."""
    half = np.uint32(1 << power)
    further = np.uint32(at + half)
    return further if cuts[np.uint32(further - np.uint32(1))] <= x else at


@inlined
def first_above(x, v, cuts, start, cells, rulers, halvings):  # type: ignore[no-untyped-def]
    """The first cut of variable ``v`` above a finite ``x``."""
    at = cells[v, cell_of(x, rulers[v, 0], rulers[v, 1])]
    for power in range(halvings[v] - 1, -1, -1):
        at = halved(x, at, power, cuts)
    return settled(x, np.int64(at), np.int64(start[v]), cuts)
