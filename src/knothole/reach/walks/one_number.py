"""Reach where a single number is missing, whose distribution given the row is a mixture of normals.

Every region of one number is an interval between two cuts. With F the row's own cumulative
distribution at all cuts, a walk carries the interval that it has come to, and a leaf's reach is the
difference of F at its ends: exact, whatever the density of the other variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr

from knothole.arrays import Floats
from knothole.compiled.policy import njit
from knothole.compiled.threads import Memory
from knothole.reach.engine import ENTRIES, Entries, node_arrays, plain, stack_size
from knothole.reach.tables import Grid
from knothole.reach.walks.product_kernels import follow
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble

# Components with less than this share of a row are left out: no reach changes by more for each.
LEAST_SHARE = 1e-12
# The normal distribution is tabulated so far, in so many steps a unit, and interpolated by cubics
# that have its slope, too: the error is below 1e-12.
END, STEPS = 8.5, 256.0


class Normals(NamedTuple):
    """A mixture of normals for each row: shares, means and standard deviations, (rows, k) each."""

    share: Floats
    mean: Floats
    deviation: Floats


class Describes(Protocol):
    """A density that can describe the only number that rows lack."""

    def cut_scores(self, variable: int, cuts: Floats) -> Floats:
        """The z with P(X < cut) = P(Z < z), for each cut of a variable."""
        ...

    def describe_number(self, evidence: Evidence) -> Normals:
        """The distributions of the z of the rows' only missing numbers."""
        ...


class Cuts(NamedTuple):
    """The scores of all cuts of all variables, and where those of a variable and a node are."""

    score: Any
    offset: Any
    position: Any


class Stack(NamedTuple):
    """Working memory of :func:`emit`: F at all cuts, and the sides that are still to be visited."""

    below: Any
    node: Any
    low: Any
    high: Any


class OneNumber:
    """The reach of rows that lack a single number."""

    def __init__(self, ensemble: Ensemble, density: Describes) -> None:
        self.ensemble, self.density = ensemble, density
        self.nodes, grid = node_arrays(ensemble), Grid.of(ensemble)
        score = np.full(int(grid.offset[-1]), np.inf)
        for v, (first, cuts) in enumerate(zip(grid.offset.tolist(), grid.cuts, strict=False)):
            if len(cuts):
                score[first + 1 : first + 1 + len(cuts)] = density.cut_scores(v, cuts)
        self.cuts = Cuts(score, grid.offset, grid.position)
        self.depth = stack_size(ensemble)
        self.memory = Memory()

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of rows, part by part."""
        points = np.ascontiguousarray(evidence.points)
        numeric = np.flatnonzero(self.ensemble.n_levels == 0)
        hole = numeric[np.isnan(points[:, numeric]).argmax(axis=1)]
        rows = points, hole, self.density.describe_number(evidence), normal_table()
        trees = self.nodes, plain(self.ensemble, points)
        room, row = max(ENTRIES, self.ensemble.n_leaves), 0
        while row < len(points):
            out = Entries(np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room))
            stack = self.memory.once(self._stack)
            count, row = emit(rows, self.cuts, trees, stack, row, out)
            yield out.first(count)

    def _stack(self) -> Stack:
        node, low, high = np.empty((3, self.depth), dtype=np.int64)
        return Stack(np.empty(int(np.diff(self.cuts.offset).max(initial=2))), node, low, high)


@cache
def normal_table() -> Floats:
    """P(Z < z) and its slope a step, at multiples of a step from -END on, (steps + 1, 2)."""
    z = np.arange(int(2 * END * STEPS) + 2) / STEPS - END
    return np.stack([ndtr(z), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / STEPS], axis=1)


@njit
def cumulate(normals, row, score, table, below):  # type: ignore[no-untyped-def]
    """F at all cuts of a row's hole, from 0 below everything to 1."""
    n = len(score)
    below[:n] = 0.0
    for k in range(normals.share.shape[1]):
        share = normals.share[row, k]
        if share < LEAST_SHARE:
            continue
        scale = STEPS / normals.deviation[row, k]
        shift = END * STEPS - normals.mean[row, k] * scale
        for i in range(1, n - 1):
            place = min(max(score[i] * scale + shift, 0.0), 2 * END * STEPS)
            cell = int(place)
            t = place - cell
            rise = table[cell + 1, 0] - table[cell, 0]
            first, last = table[cell, 1] - rise, table[cell + 1, 1] - rise
            curve = (1.0 - t) * first - t * last
            below[i] += share * (table[cell, 0] + t * (rise + (1.0 - t) * curve))
    below[n - 1] = 1.0
    for i in range(1, n):
        below[i] = min(max(below[i], below[i - 1]), 1.0)


@njit
def emit(rows, cuts, trees, stack, row, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, reach) from ``row`` on until there may be no room for another row's leaves.

    Returns the number of entries and the next row.
    """
    points, hole, normals, table = rows
    score, offset, position = cuts
    nodes, rest = trees
    roots, left = nodes.roots, nodes.left
    below, node, low, high = stack
    count, n_leaves = 0, (len(left) + len(roots)) // 2
    while row < len(points) and count + n_leaves <= len(out.leaf):
        v = hole[row]
        n = offset[v + 1] - offset[v]
        cumulate(normals, row, score[offset[v] : offset[v + 1]], table, below)
        for tree in range(len(roots)):
            node[0], low[0], high[0] = roots[tree], 0, n - 1
            top = 0
            while top >= 0:
                first, last = low[top], high[top]
                here = follow(points[row], node[top], nodes, rest)
                while nodes.feature[here] >= 0:
                    place = position[here]
                    if first < place < last and below[first] < below[place] < below[last]:
                        node[top], low[top], high[top] = left[here] + 1, place, last
                        top += 1
                        last = place
                        here = left[here]
                    elif place >= last or below[place] >= below[last]:
                        here = left[here]
                    else:
                        here = left[here] + 1
                    here = follow(points[row], here, nodes, rest)
                out.row[count], out.leaf[count] = row, left[here]
                out.reach[count] = below[last] - below[first]
                count += 1
                top -= 1
        row += 1
    return count, row
