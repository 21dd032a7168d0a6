"""Small boosted trees, grown on codes as scikit-learn's HistGradientBoosting grows them.

Each stage is a few trees for every output, fitted to Newton's step at what the stages before have
reached. Every row has the slope and the curvature of its loss. The leaf whose split takes most off
the loss is split next: sums over its rows, by column and code, tell how much, with NaN on either
side. Of two children, sums are taken over the rows of the smaller one, and the other has what is
left. The library's trees are the same (tests compare them), but take it three to five times as long
(docs/decisions/0007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.columns.columns import Column, Columns
from knothole.compiled.bits import starts
from knothole.compiled.policy import inner, njit
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.thresholds import cut_less_equal

# Codes of numbers at most; NaN has the one after those of its column.
DISTINCT = 64
# What trees are like.
LEAVES, LEAST_ROWS, LEAST_CURVATURE = 16, 15, 1e-3
RATE, PENALTY = 0.1, 1.0
NODES = 2 * LEAVES - 1
#: Rows with a code up to ``code`` go to the node ``left`` (-1 of leaves), the others to the next.
#: While it grows: what its split gains, which rows and sums are its own, how much these are in all,
#: and how much of that goes left.
NODE = np.dtype(
    [(name, np.int64) for name in ("feature", "code", "missing_left", "left")]
    + [(name, np.int64) for name in ("start", "stop", "place")]
    + [(name, np.float64) for name in ("value", "gain", "g", "h", "n", "left_g", "left_h")]
)
# Trees of a stage, for each output, and the library that they are said to be of.
TREES, OWN = 12, "knothole"
# The least variance that counts, as a share of the mean one.
LEAST_VARIANCE = 0.02

#: Slopes and curvatures of losses (rows,) at margins.
Newton = Callable[[Floats], tuple[Floats, Floats]]
#: Targets of the next trees and their weights, (rows, outputs) each, at margins.
Step = Callable[[Floats], tuple[Floats, Floats]]


class Grown(NamedTuple):
    """Where margins start, trees (trees, nodes), and how many nodes each has; cuts of the nodes."""

    start: float
    trees: NDArray[np.void]
    sizes: Ints
    cut: Floats


#: Trees for each output.
Stage = list[Grown]


class Grower:
    """Grows trees on some rows, whose columns are split at the given thresholds."""

    def __init__(self, inputs: Floats, thresholds: Sequence[Floats]) -> None:
        self.width = np.array([len(own) + 1 for own in thresholds])
        self.code = np.empty(inputs.shape, dtype=np.uint8)
        self.cut = np.full((len(thresholds), DISTINCT), np.inf)  # all numbers go left of the last
        for column, code, own, cut in zip(inputs.T, self.code.T, thresholds, self.cut, strict=True):
            code[:] = np.where(np.isnan(column), len(own) + 1, np.searchsorted(own, column))
            cut[: len(own)] = cut_less_equal(own)
        self.rows = np.empty((2, len(inputs)), dtype=np.int64)
        self.sums = np.empty((LEAVES, inputs.shape[1], DISTINCT + 1, 3))

    def boost(self, start: float, trees: int, newton: Newton) -> tuple[Grown, Floats]:
        """So many trees, and the margins of the rows; ``newton`` has their slopes, curvatures."""
        margin, sizes = np.full(len(self.code), start), np.empty(trees, dtype=np.int64)
        grown = np.zeros((trees, NODES), dtype=NODE)
        room = self.rows, self.sums
        for k, tree in enumerate(grown):
            sizes[k] = grow(self.code, self.width, *newton(margin), margin, *room, tree)
        return Grown(start, grown, sizes, self.cut[grown["feature"], grown["code"]]), margin


def boost(inputs: Floats, base: Floats, weight: Floats, newton: Step) -> Iterator[Stage]:
    """One stage after the other, without end, from the base (rows, outputs)."""
    z, grower = base.copy(), Grower(inputs, thresholds_of(inputs))
    while True:
        residual, curvature = newton(z)
        stage = []
        for output in range(z.shape[1]):
            share = weight * curvature[:, output]
            grown, step = least_squares(grower, residual[:, output], share / share.mean())
            stage.append(grown)
            z[:, output] += step
        yield stage


def least_squares(grower: Grower, y: Floats, weight: Floats) -> tuple[Grown, Floats]:
    """Trees towards y, and what they add to rows."""
    start = float(np.average(y, weights=weight))
    return grower.boost(start, TREES, lambda margin: ((margin - y) * weight, weight))


def poisson(grower: Grower, y: Floats, trees: int) -> Grown:
    """Trees towards the logarithm of what y is in the mean, which is 1 over all rows."""
    return grower.boost(0.0, trees, lambda margin: (np.exp(margin) - y, np.exp(margin)))[0]


def thresholds_of(inputs: Floats) -> list[Floats]:
    """Thresholds of each column: in the middle between neighbours among some of its quantiles."""
    thresholds = []
    for column in inputs.T:
        own = np.sort(column[~np.isnan(column)])
        nearest = np.rint(np.linspace(0, max(len(own) - 1, 0), DISTINCT)).astype(np.intp)
        few = np.unique(own[nearest]) if len(own) else own
        thresholds.append((few[1:] + few[:-1]) / 2)
    return thresholds


def step(stage: Stage, inputs: Floats) -> Floats:
    """What a stage adds, (rows, outputs)."""
    return as_ensemble([stage], [str(j) for j in range(inputs.shape[1])]).margin(inputs, 1)


def as_ensemble(stages: list[Stage], names: Sequence[str], share: float = 1.0) -> Ensemble:
    """All stages as one ensemble over the inputs, whose margin is a share of what they add."""
    parts = [grown for stage in stages for grown in stage]
    output = np.tile(np.arange(len(stages[0])), len(stages))
    sizes = np.concatenate([grown.sizes for grown in parts])
    kept, roots = np.arange(NODES) < sizes[:, None], starts(sizes)
    tree = np.concatenate([grown.trees for grown in parts])[kept]
    first = np.repeat(roots, sizes)
    nodes = Nodes(
        roots=roots,
        feature=np.where(tree["left"] < 0, -1, tree["feature"]),
        cut=np.concatenate([grown.cut for grown in parts])[kept],
        left=first + tree["left"],
        right=first + tree["left"] + 1,
        missing_left=tree["missing_left"] > 0,
        value=share * tree["value"],
        native_leaf=np.arange(len(tree)) - first,
        tree_output=np.repeat(output, [len(grown.sizes) for grown in parts]),
    )
    base = share * np.bincount(output, [grown.start for grown in parts])
    columns = Columns(tuple(Column(name) for name in names))
    return Ensemble.build(nodes, columns=columns, base=base, library=OWN, precision="float64")


def precisions(inputs: Floats, squares: Floats, fold: NDArray[np.intp]) -> Floats:
    """One over what squares are expected to be, by those of other folds; their mean is 1."""
    weight, thresholds = np.ones(len(squares)), thresholds_of(inputs)
    for number in np.unique(fold):
        own = fold == number
        unit = float(squares[~own].mean())
        if not unit > 0:
            return np.ones(len(squares))
        grown = poisson(Grower(inputs[~own], thresholds), squares[~own] / unit, 3 * TREES)
        weight[own] = 1.0 / (unit * (np.exp(step([grown], inputs[own])[:, 0]) + LEAST_VARIANCE))
    return np.asarray(weight / weight.mean())


# ---- kernels ---------------------------------------------------------------------------------


@njit
def grow(code, width, slope, curvature, margin, rows, sums, tree):  # type: ignore[no-untyped-def]
    """Grow a tree, add its values to the margins of its rows, and say how many nodes it has.

    ``code`` is (rows, columns), ``width`` how many codes of numbers each column has. ``rows``
    (2, rows) and ``sums`` (leaves, columns, codes, 3) are room to work in.
    """
    root = tree[0]
    root.start, root.stop, root.place, root.left = 0, len(slope), 0, -1
    root.g, root.h, root.n, root.gain, root.value = 0.0, 0.0, len(slope), 0.0, 0.0
    for i in range(len(slope)):
        rows[0, i] = i
        root.g += slope[i]
        root.h += curvature[i]
    left = right = small = large = 0  # who is looked at next, from left to right
    while right < NODES - 1:
        if tree[large].n >= 2 * LEAST_ROWS:
            tree[small].place = (right + 1) // 2
            _add_up(code, width, slope, curvature, rows[0], sums, tree[small])
            if small != large:
                _take_off(width, sums[tree[small].place], sums[tree[large].place])
            for child in range(left, right + 1):
                _seek(width, sums[tree[child].place], tree[child])
        best = 0
        for other in range(right + 1):
            if tree[other].gain > tree[best].gain:
                best = other
        node = tree[best]
        if not node.gain > 0:
            break
        left, right = right + 1, right + 2
        node.gain, node.left = 0.0, left
        middle = _divide(code[:, node.feature], width[node.feature], rows, node)
        for child in range(left, right + 1):
            own, is_left = tree[child], child == left
            own.start, own.stop = (node.start, middle) if is_left else (middle, node.stop)
            own.g = node.left_g if is_left else node.g - node.left_g
            own.h = node.left_h if is_left else node.h - node.left_h
            own.n = own.stop - own.start
            own.left, own.gain, own.value = -1, 0.0, -own.g / (own.h + PENALTY)
        small = left if tree[left].n < tree[right].n else right
        large = left + right - small
        tree[large].place = node.place
        if sums[node.place, node.feature, width[node.feature], 2] == 0:
            node.missing_left = tree[left].n > tree[right].n  # no row has NaN: with most of them
    for k in range(right + 1):
        if tree[k].left < 0:
            tree[k].value *= RATE
            for i in range(tree[k].start, tree[k].stop):
                margin[rows[0, i]] += tree[k].value
    return right + 1


@inner
def _add_up(code, width, slope, curvature, rows, sums, node):  # type: ignore[no-untyped-def]
    """Slopes, curvatures and numbers of a node's rows by column and code."""
    own = sums[node.place]
    for j in range(len(width)):
        own[j, : width[j] + 1] = 0.0
    for i in range(node.start, node.stop):
        row = rows[i]
        g, h = slope[row], curvature[row]
        for j in range(len(width)):
            entry = own[j, code[row, j]]
            entry[0] += g
            entry[1] += h
            entry[2] += 1.0


@inner
def _take_off(width, small, large):  # type: ignore[no-untyped-def]
    """From the sums of a node those of its smaller child: what is left is the other's."""
    for j in range(len(width)):
        for c in range(width[j] + 1):
            n = large[j, c, 2] - small[j, c, 2]
            for k in range(2):  # of no rows exactly nothing
                large[j, c, k] = large[j, c, k] - small[j, c, k] if n > 0 else 0.0
            large[j, c, 2] = n


@inner
def _seek(width, sums, node):  # type: ignore[no-untyped-def]
    """Find the split of a node that gains most."""
    without = -node.g * node.value
    best = without  # what both sides together must exceed
    if node.n < 2 * LEAST_ROWS or node.h < LEAST_CURVATURE:
        return
    for j in range(len(width)):
        missing = sums[j, width[j], 2] > 0
        for backwards in range(1 + missing):  # NaN on the right, then on the left
            near_g = near_h = near_n = 0.0
            for step in range(width[j] - 1 + (missing and not backwards)):
                c = width[j] - 1 - step if backwards else step
                near_g += sums[j, c, 0]
                near_h += sums[j, c, 1]
                near_n += sums[j, c, 2]
                if near_n < LEAST_ROWS or near_h < LEAST_CURVATURE:
                    continue
                far_g, far_h = node.g - near_g, node.h - near_h
                if node.n - near_n < LEAST_ROWS or far_h < LEAST_CURVATURE:
                    break
                near, far = near_h + PENALTY, far_h + PENALTY
                both, of = near_g**2 * far + far_g**2 * near, near * far
                if both > best * of:  # a division would take as long as all the rest
                    best = both / of
                    node.gain, node.feature, node.missing_left = best - without, j, backwards
                    node.code = c - 1 if backwards else c
                    node.left_g = far_g if backwards else near_g
                    node.left_h = far_h if backwards else near_h


@inner
def _divide(code, nan, rows, node):  # type: ignore[no-untyped-def]
    """Bring the rows that go left before the others, all in their order; say where these begin."""
    at, others = node.start, 0
    for i in range(node.start, node.stop):
        row = rows[0, i]
        if code[row] <= node.code or (code[row] == nan and node.missing_left):
            rows[0, at] = row
            at += 1
        else:
            rows[1, others] = row
            others += 1
    for i in range(others):
        rows[0, at + i] = rows[1, i]
    return at
