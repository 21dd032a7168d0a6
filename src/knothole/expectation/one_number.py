"""Reach where a single number is missing, whose distribution given the row is a mixture of normals.

Every region of one number is an interval between two cuts. With F the row's own cumulative
distribution at all cuts, a walk carries the interval that it has come to, and a leaf's reach is the
difference of F at its ends: exact, whatever the density of the other variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.bits import lowest_bit
from knothole.compiled.policy import inlined, inner, njit
from knothole.compiled.threads import Memory
from knothole.densities.gaussian.draws import Normals
from knothole.expectation.engine import ENTRIES, Entries
from knothole.expectation.exact.product_kernels import follow
from knothole.expectation.leaf_sets import LEAVES, TREES, LeafSets, leaf_sets, read_sets
from knothole.expectation.monte_carlo.kernels import Forest
from knothole.expectation.tables import Grid
from knothole.trees.in_variables import Merged

# Components with less than this share of a row are left out: no reach changes by more for each,
# which is far below what trees of single precision can tell.
LEAST_SHARE = 1e-10
# The normal distribution is tabulated so far, in so many steps a unit, and interpolated by cubics
# that have its slope, too: the error is below 1e-12.
END, STEPS = 8.5, 256.0


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

    ``below`` has P(X < cut) for every row of the grid. ``node``, ``low`` and ``high`` are a stack
    of sides that are still to be visited, and the interval of F in which the row is there.
    """

    below: Any
    node: Any
    low: Any
    high: Any
    leaf: Any
    reach: Any


class Steps(NamedTuple):
    """Working memory of :func:`add_expected`: where a row's output changes, and by how much."""

    sets: Any
    score: Any
    change: Any


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
        self.node_score = np.append(self.score, 0.0)[forest.cut_row]
        self.numeric = np.flatnonzero(ensemble.n_levels == 0)
        self.output = ensemble.tree_output[ensemble.leaf_tree]
        self.memory = Memory()

    def add_margin(self, evidence: Evidence, value: Floats, out: Floats) -> None:
        """Add the expected values of leaves, ``value`` (leaves, width), to ``out``."""
        if not self.leaf_sets:
            add_margins(self._rows(evidence), self.forest, self._stack(), value, self.output, out)
            return
        points = np.ascontiguousarray(self.merged.points(evidence.points))
        rows = points, self.density.describe_number(evidence), self.node_score, normal_table()
        for trees in self.leaf_sets:
            add_expected(rows, trees, value[:, 0], self.memory.once(self._new_steps), out)

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """Sets of leaves, where trees are small enough."""
        return leaf_sets(self.ensemble)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """The reach matrix of rows, part by part."""
        rows = self._rows(evidence)
        room, row = max(ENTRIES, self.ensemble.n_leaves), 0
        while row < len(evidence.points):
            out = Entries(np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room))
            count, row = emit(rows, self.forest, self._stack(), row, out)
            yield out.first(count)

    def _rows(self, evidence: Evidence) -> tuple[Any, ...]:
        """What walks read of rows."""
        points = np.ascontiguousarray(self.merged.points(evidence.points))
        hole = self.numeric[np.isnan(points[:, self.numeric]).argmax(axis=1)]
        normals = self.density.describe_number(evidence)
        return points, hole, normals, self.score, normal_table()

    def _new_steps(self) -> Steps:
        most = np.empty((2, TREES * LEAVES))
        return Steps(np.empty(TREES, dtype=np.uint64), *most)

    def _stack(self) -> Stack:
        return self.memory.once(self._new_stack)

    def _new_stack(self) -> Stack:
        n = self.ensemble.n_leaves
        return Stack(
            np.zeros(len(self.score)),
            node=np.empty(n + 1, dtype=np.uint32),
            low=np.empty(n + 1),
            high=np.empty(n + 1),
            leaf=np.empty(n, dtype=np.int32),
            reach=np.empty(n),
        )


@cache
def normal_table() -> Floats:
    """P(Z < z) and its slope a step, at multiples of a step from -END on, (steps + 1, 2)."""
    z = np.arange(int(2 * END * STEPS) + 2) / STEPS - END
    return np.stack([ndtr(z), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / STEPS], axis=1)


@inlined
def to_table(normals, row, k):  # type: ignore[no-untyped-def]
    """Scale and shift that lead from z to places in the table, for a component of a row."""
    scale = STEPS / normals.deviation[row, k]
    return scale, END * STEPS - normals.mean[row, k] * scale


@inlined
def below_at(place, table):  # type: ignore[no-untyped-def]
    """P(Z < z) at a place in the table, between its entries too."""
    place = min(max(place, 0.0), 2 * END * STEPS)
    cell = int(place)
    t = place - cell
    rise = table[cell + 1, 0] - table[cell, 0]
    first, last = table[cell, 1] - rise, table[cell + 1, 1] - rise
    return table[cell, 0] + t * (rise + (1.0 - t) * ((1.0 - t) * first - t * last))


@inner
def cumulate(normals, row, score, table, below):  # type: ignore[no-untyped-def]
    """F at all cuts of a row's hole, from 0 below everything to 1."""
    n = len(score)
    below[:n] = 0.0
    for k in range(normals.share.shape[1]):
        share = normals.share[row, k]
        if share < LEAST_SHARE:
            continue
        scale, shift = to_table(normals, row, k)
        for i in range(1, n - 1):
            below[i] += share * below_at(score[i] * scale + shift, table)
    below[n - 1] = 1.0
    for i in range(1, n):
        below[i] = min(max(below[i], below[i - 1]), 1.0)


@inner
def walk_row(rows, row, forest, stack):  # type: ignore[no-untyped-def]
    """Leaves that a row reaches and the reach of each, into the stack; returns how many."""
    points, hole, normals, score, table = rows
    below, node, low, high, leaf, reach = stack
    start, stop = forest.look.offset[hole[row]], forest.look.offset[hole[row] + 1]
    cumulate(normals, row, score[start:stop], table, below[start:])
    x = points[row]
    roots, feature, left = forest.nodes.roots, forest.nodes.feature, forest.nodes.left
    count = 0
    for tree in range(len(roots)):
        node[0], low[0], high[0] = roots[tree], 0.0, 1.0
        top = 0
        while top >= 0:
            a, b = low[top], high[top]
            here = follow(x, node[top], forest.nodes, False)
            while feature[here] >= 0:
                cut = below[forest.cut_row[here]]
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


@njit
def add_margins(rows, forest, stack, value, output, out):  # type: ignore[no-untyped-def]
    """Add the leaf values that rows reach, times their reach, to ``out`` (rows, outputs)."""
    for row in range(len(rows[0])):
        for i in range(walk_row(rows, row, forest, stack)):
            leaf = stack.leaf[i]
            for j in range(value.shape[1]):
                out[row, output[leaf] + j] += stack.reach[i] * value[leaf, j]


@njit
def add_expected(rows, trees, value, steps, out):  # type: ignore[no-untyped-def]
    """Add the expected margin of rows to ``out`` (rows, outputs), by sets of leaves.

    All that is left of a tree is a step function of the hole: from one leaf of its set to the next,
    the output changes at the cut where they part.
    """
    points, normals, node_score, table = rows
    n_trees = len(trees.root)
    for row in range(len(points)):
        read_sets(points[row], trees, steps.sets[:n_trees])
        expected, n = 0.0, 0
        for tree in range(n_trees):
            leaf, parting, word = trees.leaf[tree], trees.parting[tree], steps.sets[tree]
            last = lowest_bit(word)
            word &= word - np.uint64(1)
            while word != 0:
                bit = lowest_bit(word)
                steps.score[n] = node_score[trees.root[tree] + np.int64(parting[last, bit])]
                steps.change[n] = value[leaf[last]] - value[leaf[bit]]
                n += 1
                last = bit
                word &= word - np.uint64(1)
            expected += value[leaf[last]]
        for k in range(normals.share.shape[1]):
            if normals.share[row, k] >= LEAST_SHARE:
                scale, shift = to_table(normals, row, k)
                below = 0.0
                for i in range(n):
                    below += steps.change[i] * below_at(steps.score[i] * scale + shift, table)
                expected += normals.share[row, k] * below
        out[row, trees.output] += expected


@njit
def emit(rows, forest, stack, row, out):  # type: ignore[no-untyped-def]
    """Write (row, leaf, reach) from ``row`` on until there may be no room for another row's leaves.

    Returns the number of entries and the next row.
    """
    count = 0
    while row < len(rows[0]) and count + len(stack.leaf) <= len(out.leaf):
        n = walk_row(rows, row, forest, stack)
        for i in range(n):
            out.row[count + i], out.leaf[count + i] = row, stack.leaf[i]
            out.reach[count + i] = stack.reach[i]
        count += n
        row += 1
    return count, row
