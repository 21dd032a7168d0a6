"""Means of predictions where a single number is missing: no draws, and no error.

Between two cuts of the trees all values of the number have the same margin. What is left of a tree
is a step function of it: from one leaf of its set to the next, the margin changes at the cut where
they part. So a row has a margin in each cell between cuts, and the mass of the cell for its weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Words
from knothole.compiled.bits import lowest_bit
from knothole.compiled.policy import njit
from knothole.expectation.monte_carlo.splits import Splits
from knothole.expectation.monte_carlo.statistics import Link

# Components with less than this share of a row are left out.
LEAST_SHARE = 1e-10


def mean_over_cells(
    splits: Splits,
    leaves: tuple[Floats, Floats],
    rows: tuple[Words, Floats],
    masses: tuple[int, Floats],
    link: Link,
) -> Floats:
    """Means of predictions (rows, outputs) of rows that lack the same number.

    Parameters
    ----------
    splits, leaves
        The trees.
    rows : uint64 (rows, trees), float64 (rows, components)
        Their sets of leaves and shares.
    masses : int, float64 (components, cells)
        The first of the variable's masks, and what each component gives to its cells.
    link : callable
    """
    sets, share = rows
    first, mass = masses
    margins = np.empty((len(sets), mass.shape[1], len(leaves[1])))
    weight = np.empty((len(sets), mass.shape[1]))
    fill_cells(sets, share, splits.trees, leaves, first, mass, margins, weight)
    values = np.ascontiguousarray(link(margins))
    out = np.zeros((len(sets), values.shape[2]))
    add_cells(weight, values, out)
    return out


def lone_numbers(
    points: Floats, used: NDArray[np.bool_], numbers: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """The number that is the only one that each row lacks of the used variables, or -1.

    Examples
    --------
    >>> hole, yes = np.nan, np.array([True, True])
    >>> points = np.array([[1.0, hole], [hole, hole], [hole, 2.0], [1.0, 2.0]])
    >>> lone_numbers(points, used=yes, numbers=yes).tolist()
    [1, -1, 0, -1]
    """
    holes = np.isnan(points) & used
    variable = holes.argmax(axis=1)
    return np.where((holes.sum(axis=1) == 1) & numbers[variable], variable, -1)


@njit
def fill_cells(sets, share, trees, leaves, first, mass, margins, weight):  # type: ignore[no-untyped-def]
    """Margins (rows, cells, outputs) and masses (rows, cells) of rows that lack one number."""
    value, base = leaves
    n_rows, n_cells, n_outputs = margins.shape
    for i in range(n_rows):
        for cell in range(n_cells):
            weight[i, cell] = 0.0
            for output in range(n_outputs):
                margins[i, cell, output] = base[output] if cell == 0 else 0.0
        for k in range(len(mass)):
            if share[i, k] >= LEAST_SHARE:
                for cell in range(n_cells):
                    weight[i, cell] += share[i, k] * mass[k, cell]
        for t in range(sets.shape[1]):
            output, word = trees.output[t], sets[i, t]
            last = np.int64(lowest_bit(word))
            margins[i, 0, output] += value[t, last]
            word &= word - np.uint64(1)
            while word != 0:
                bit = np.int64(lowest_bit(word))
                node = np.int64(trees.parting[t, last, bit])
                cell = np.int64(trees.node[t, node, 1]) - first
                margins[i, cell, output] += value[t, bit] - value[t, last]
                last = bit
                word &= word - np.uint64(1)
        for cell in range(1, n_cells):
            for output in range(n_outputs):
                margins[i, cell, output] += margins[i, cell - 1, output]


@njit
def add_cells(weight, values, out):  # type: ignore[no-untyped-def]
    """Means of values (rows, cells, outputs), weighted (rows, cells)."""
    for i in range(len(out)):
        total = 0.0
        for cell in range(weight.shape[1]):
            total += weight[i, cell]
        for cell in range(weight.shape[1]):
            part = weight[i, cell] / total
            for output in range(out.shape[1]):
                out[i, output] += part * values[i, cell, output]
