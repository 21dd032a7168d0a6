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
from knothole.compiled.policy import inner, njit
from knothole.compiled.threads import Memory
from knothole.reach.completions.kernels import TREES, Forest
from knothole.reach.completions.masks import first_above
from knothole.reach.engine import ENTRIES, Entries, plain
from knothole.reach.tables import Grid
from knothole.reach.walks.product_kernels import follow
from knothole.tables.evidence import Evidence
from knothole.trees.alike import Merged

# Components with less than this share of a row are left out: no reach changes by more for each,
# which is far below what trees of single precision can tell.
LEAST_SHARE = 1e-10
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


class Stack(NamedTuple):
    """Working memory of a walk; not to be shared between threads.

    ``below`` has P(X < cut) for every row of the grid and the two words more that masks have
    (:mod:`knothole.reach.completions.masks`). ``node``, ``low`` and ``high`` (2, leaves + 1 each)
    are where a row has come to, and the interval of F in which it is there.
    """

    below: Any
    node: Any
    low: Any
    high: Any
    leaf: Any
    reach: Any


class OneNumber:
    """The reach of rows that lack a single number."""

    def __init__(self, merged: Merged, forest: Forest, density: Describes) -> None:
        self.merged, self.forest, self.density = merged, forest, density
        self.ensemble = ensemble = merged.ensemble
        grid = Grid.of(ensemble)
        self.score = np.full(int(grid.offset[-1]), np.inf)
        for v, (first, cuts) in enumerate(zip(grid.offset.tolist(), grid.cuts, strict=False)):
            if len(cuts):
                self.score[first + 1 : first + 1 + len(cuts)] = density.cut_scores(v, cuts)
        self.numeric = np.flatnonzero(ensemble.n_levels == 0)
        self.output = ensemble.tree_output[ensemble.leaf_tree]
        self.memory = Memory()

    def add_margin(self, evidence: Evidence, value: Floats, out: Floats) -> None:
        """Add the expected values of leaves, ``value`` (leaves, width), to ``out``."""
        add_margins(*self._rows(evidence), self.forest, self._stack(), value, self.output, out)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of rows, part by part."""
        rows, rest = self._rows(evidence)
        room, row = max(ENTRIES, self.ensemble.n_leaves), 0
        while row < len(evidence.points):
            out = Entries(np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room))
            count, row = emit(rows, rest, self.forest, self._stack(), row, out)
            yield out.first(count)

    def _rows(self, evidence: Evidence) -> tuple[tuple[Any, ...], bool]:
        """What kernels read of rows, and whether they have nothing but numbers."""
        points = np.ascontiguousarray(self.merged.points(evidence.points))
        hole = self.numeric[np.isnan(points[:, self.numeric]).argmax(axis=1)]
        normals = self.density.describe_number(evidence)
        return (points, hole, normals, self.score, normal_table()), plain(self.ensemble, points)

    def _stack(self) -> Stack:
        return self.memory.once(self._new_stack)

    def _new_stack(self) -> Stack:
        n = self.ensemble.n_leaves
        below = np.zeros(len(self.score) + 2)
        below[-1] = 1.0
        return Stack(
            below,
            node=np.empty((2, n + 1), dtype=np.uint32),
            low=np.empty((2, n + 1)),
            high=np.empty((2, n + 1)),
            leaf=np.empty(n, dtype=np.int32),
            reach=np.empty(n),
        )


@cache
def normal_table() -> Floats:
    """P(Z < z) and its slope a step, at multiples of a step from -END on, (steps + 1, 2)."""
    z = np.arange(int(2 * END * STEPS) + 2) / STEPS - END
    return np.stack([ndtr(z), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / STEPS], axis=1)


@inner
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


@inner
def fill_below(rows, row, rest, forest, below):  # type: ignore[no-untyped-def]
    """F at all cuts of a row's hole; an observed number is on one side of every cut."""
    points, hole, normals, score, table = rows
    cuts, start, cells, rulers, halvings, offset, _, used = forest.look
    v = hole[row]
    cumulate(normals, row, score[offset[v] : offset[v + 1]], table, below[offset[v] :])
    if not rest:
        return
    for u in range(len(used)):
        if used[u] and u != v:
            x = points[row, u]
            first = offset[u] + 1 - np.int64(start[u])
            above = first + first_above(x, u, cuts, start, cells, rulers, halvings)
            below[offset[u] : above] = 0.0
            below[above : offset[u + 1]] = 1.0


@inner
def walk_levels(forest, stack):  # type: ignore[no-untyped-def]
    """Leaves that a row reaches and the reach of each, a level of many trees at a time.

    Without branches, as :func:`knothole.reach.completions.kernels.walk_levels`, with intervals of
    F in the place of words. Returns how many leaves there are.
    """
    below, node, low, high, leaf, reach = stack
    roots, left, steps = forest.nodes.roots, forest.nodes.left, forest.steps
    count = 0
    for first in range(0, len(roots), TREES):
        n = np.uint64(min(TREES, len(roots) - first))
        for t in range(n):
            node[0, t], low[0, t], high[0, t] = roots[first + t], 0.0, 1.0
        side = 0
        for _ in range(forest.levels):
            here, here_low, here_high = node[side], low[side], high[side]
            side = 1 - side
            next_node, next_low, next_high = node[side], low[side], high[side]
            length, n = n, np.uint64(0)
            for e in range(length):
                step = steps[here[e]]
                a, b = here_low[e], here_high[e]
                cut = min(max(below[step.mask_row], a), b)
                next_node[n], next_low[n], next_high[n] = step.left, a, cut
                n += np.uint64(cut > a)
                next_node[n] = np.uint32(step.left + np.uint32(1))
                next_low[n], next_high[n] = cut, b
                n += np.uint64(cut < b)
        for e in range(n):
            leaf[count] = left[node[side, e]]
            reach[count] = high[side, e] - low[side, e]
            count += 1
    return count


@inner
def walk_trees(x, forest, stack):  # type: ignore[no-untyped-def]
    """:func:`walk_levels` for any trees, one after the other."""
    below, nodes, lows, highs, leaf, reach = stack
    node, low, high = nodes[0], lows[0], highs[0]
    roots, feature, left = forest.nodes.roots, forest.nodes.feature, forest.nodes.left
    count = 0
    for tree in range(len(roots)):
        node[0], low[0], high[0] = roots[tree], 0.0, 1.0
        top = 0
        while top >= 0:
            a, b = low[top], high[top]
            here = follow(x, node[top], forest.nodes, False)
            while feature[here] >= 0:
                cut = below[forest.steps[here].mask_row]
                if a < cut < b:
                    node[top], low[top], high[top] = left[here] + 1, cut, b
                    top += 1
                    b = cut
                    here = left[here]
                else:
                    here = left[here] + (cut <= a)
                here = follow(x, here, forest.nodes, False)
            leaf[count], reach[count] = left[here], b - a
            count += 1
            top -= 1
    return count


@inner
def walk_row(rows, row, rest, forest, stack):  # type: ignore[no-untyped-def]
    """Leaves that a row reaches and the reach of each, into the stack; returns how many."""
    by_level = rest and forest.levels >= 0
    fill_below(rows, row, by_level, forest, stack.below)
    if by_level:
        return walk_levels(forest, stack)
    return walk_trees(rows[0][row], forest, stack)


@njit
def add_margins(rows, rest, forest, stack, value, output, out):  # type: ignore[no-untyped-def]
    """Add the leaf values that rows reach, times their reach, to ``out`` (rows, outputs)."""
    for row in range(len(rows[0])):
        for i in range(walk_row(rows, row, rest, forest, stack)):
            leaf = stack.leaf[i]
            for j in range(value.shape[1]):
                out[row, output[leaf] + j] += stack.reach[i] * value[leaf, j]


@njit
def emit(rows, rest, forest, stack, row, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, reach) from ``row`` on until there may be no room for another row's leaves.

    Returns the number of entries and the next row.
    """
    count = 0
    while row < len(rows[0]) and count + len(stack.leaf) <= len(out.leaf):
        n = walk_row(rows, row, rest, forest, stack)
        for i in range(n):
            out.row[count + i], out.leaf[count + i] = row, stack.leaf[i]
            out.reach[count + i] = stack.reach[i]
        count += n
        row += 1
    return count, row
