"""Step functions that leaves have beside their values: samples of y, survival curves.

A leaf of a quantile forest stores training targets, a leaf of a survival forest a survival curve.
Both are step functions, stored by their jumps: the number of samples at each y, the change of the
curve at each time. A forest's answer for a row is the sum of the jumps of the leaves that the row
reaches. With missing values, every leaf counts with its probability; expected jumps are then
linear in the leaf probabilities (Prop. 1), and as exact as those are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Integers
from knothole.checks import check_type, require

if TYPE_CHECKING:
    from scipy import sparse

#: Names of curves; names of samples end with the number of the output.
SAMPLES, SURVIVAL, HAZARD = "samples", "survival", "cumulative hazard"


@dataclass(frozen=True, eq=False)
class Curves:
    """One step function for each leaf.

    Attributes
    ----------
    grid : float64 (points,)
        Where the functions jump, ascending: values of y, or times.
    jumps : sparse float64 (leaves, points)
        What each leaf adds at each point, already divided by the number of trees where trees are
        averaged.
    start : float
        The value before the first point.
    """

    grid: Floats
    jumps: sparse.csr_matrix
    start: float = 0.0

    def of_leaves(self, leaves: Any) -> Curves:
        """The curves of these leaves, in this order."""
        from scipy import sparse

        return Curves(self.grid, sparse.csr_matrix(self.jumps[leaves]), self.start)

    def at(self, jumps: sparse.csr_matrix, places: NDArray[np.intp]) -> Floats:
        """Values just after these points of the grid, (rows, places), given each row's jumps."""
        if not jumps.shape[0] * len(places):
            return np.empty((jumps.shape[0], len(places)))
        values = np.cumsum(jumps.toarray(), axis=1)[:, np.maximum(places, 0)]
        return np.asarray(self.start + np.where(places < 0, 0.0, values))


def reached(leaves: Integers, n_leaves: int) -> sparse.csr_matrix:
    """Leaf probabilities (rows, leaves) of complete rows, from their leaves (rows, trees)."""
    from scipy import sparse

    rows, trees = leaves.shape
    start = np.arange(rows + 1) * trees
    return sparse.csr_matrix((np.ones(rows * trees), leaves.ravel(), start), (rows, n_leaves))


def weighted_mean(weights: sparse.csr_matrix, grid: Floats) -> Floats:
    """Means of weighted samples, (rows, 1)."""
    centre = grid.mean()  # a large common value would cost digits
    return np.asarray(centre + (weights @ (grid - centre)) / weights.sum(axis=1).A1)[:, None]


def weighted_quantiles(weights: sparse.csr_matrix, grid: Floats, levels: Floats) -> Floats:
    """Quantiles of weighted samples by linear interpolation, (rows, levels).

    Levels are the same for all rows, or (rows, levels).

    Integrates the step function that has each value over a length equal to its weight, over the
    window from q (W - 1) to q (W - 1) + 1, where W is the sum of the weights. With whole-number
    weights this is ``numpy.quantile`` of the repeated samples; between them it is continuous
    (Akinshin 2023, "Weighted quantile estimators", type 7).

    Examples
    --------
    >>> from scipy import sparse
    >>> weights = sparse.csr_matrix([[1.0, 2.0, 1.0], [0.5, 0.5, 1.0]])
    >>> weighted_quantiles(weights, np.array([0.0, 1.0, 3.0]), np.array([0.25, 1.0])).tolist()
    [[0.75, 3.0], [1.25, 3.0]]
    """
    levels = np.broadcast_to(levels, (weights.shape[0], np.shape(levels)[-1]))
    out = np.empty(levels.shape)
    for row, (first, last) in enumerate(zip(weights.indptr[:-1], weights.indptr[1:], strict=True)):
        order = np.argsort(weights.indices[first:last])
        values, weight = grid[weights.indices[first:last][order]], weights.data[first:last][order]
        end = np.cumsum(weight)
        low = levels[row] * max(end[-1] - 1.0, 0.0)
        width = min(end[-1], 1.0)
        # How much of the window each sample covers.
        stop = np.clip(end - low[:, None], 0.0, width)
        stop[:, -1] = width
        share = np.diff(stop, axis=1, prepend=0.0)
        base = values[np.argmax(share > 0, axis=1)]
        out[row] = base + ((values - base[:, None]) * share).sum(axis=1) / width
    return out


def sample_quantiles(
    curves: Mapping[str, Curves], probabilities: sparse.csr_matrix, levels: Floats
) -> Floats:
    """Quantiles (rows, outputs, levels) of leaf samples weighted by these leaf probabilities.

    Without levels, the means (rows, outputs, 1).
    """
    from scipy import sparse

    answers = []
    for name, samples in curves.items():
        if name.startswith(SAMPLES):
            weights = sparse.csr_matrix(probabilities @ samples.jumps)
            if len(levels):
                answers.append(weighted_quantiles(weights, samples.grid, levels))
            else:
                answers.append(weighted_mean(weights, samples.grid))
    return np.stack(answers, axis=1)


# ---- files ---------------------------------------------------------------------------------------

# The arrays of each curve, with their data types.
ARRAYS = {"grid": np.float64, "start": np.int64, "point": np.int32, "jump": np.float64}


def describe_curves(curves: Mapping[str, Curves]) -> tuple[list[Any], dict[str, NDArray[Any]]]:
    """A list for JSON, and arrays; the inverse of :func:`curves_from`."""
    header, arrays = [], {}
    for i, (name, each) in enumerate(curves.items()):
        header.append([name, each.start])
        jumps = each.jumps
        parts: list[NDArray[Any]] = [each.grid, jumps.indptr, jumps.indices, jumps.data]
        for (part, dtype), array in zip(ARRAYS.items(), parts, strict=True):
            arrays[f"curves.{i}.{part}"] = array.astype(dtype)
    return header, arrays


def curves_from(header: Any, arrays: Mapping[str, NDArray[Any]], leaves: int) -> dict[str, Curves]:
    """Curves from a file, for this number of leaves; anything inconsistent is refused."""
    from scipy import sparse

    check_type("curves", header, list)
    curves = {}
    for i, (name, start) in enumerate(header):
        check_type("curves", name, str)
        check_type("curves", start, float, int)
        parts = [arrays[f"curves.{i}.{part}"] for part in ARRAYS]
        for array, (part, dtype) in zip(parts, ARRAYS.items(), strict=True):
            fits = array.ndim == 1 and array.dtype == dtype
            require(fits, f"curves.{part} must be {np.dtype(dtype)} in one dimension")
        grid, first, point, jump = parts
        finite = np.isfinite(grid).all() and np.isfinite(jump).all() and np.isfinite(start)
        require(finite, "curves must be finite")
        require(len(grid) and (np.diff(grid) > 0).all(), "the grid of curves must ascend")
        bounds = len(first) == leaves + 1 and first[0] == 0 and first[-1] == len(point)
        require(bounds and (np.diff(first) >= 0).all(), "curves must be by leaf")
        inside = len(point) == len(jump) and ((point >= 0) & (point < len(grid))).all()
        require(inside, "jumps of curves must be at points of their grid")
        jumps = sparse.csr_matrix((jump, point, first), shape=(leaves, len(grid)))
        curves[name] = Curves(grid, jumps, float(start))
    return curves
