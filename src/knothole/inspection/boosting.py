"""Small boosted trees, grown on codes as scikit-learn's HistGradientBoosting grows them.

Each stage adds a few trees per output, fitted to Newton's step at the current margins. Every row
has the slope and the curvature of its loss. The leaf with the best split is divided next: sums over
its rows, by column and code, give the gain of every split, with NaN on either side. Sums are
computed for the smaller of two children and subtracted from the parent's for the other. The
library's trees are the same (tests compare them), but take three to five times as long
(docs/decisions/0007).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import boosting as kernels
from knothole.arrays import Floats, Ints, Mask
from knothole.bits import starts
from knothole.columns.columns import Column, Columns
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.thresholds import exact_less_equal

# The most codes of numbers; NaN has the code after the last of its column.
DISTINCT = kernels.DISTINCT
# Limits of trees.
LEAVES, LEAST_ROWS, LEAST_CURVATURE = kernels.LEAVES, kernels.LEAST_ROWS, kernels.LEAST_CURVATURE
RATE, PENALTY = kernels.RATE, kernels.PENALTY
NODES = 2 * LEAVES - 1
# Trees of a stage for each output, and the ``library`` of the resulting ensemble.
TREES, OWN = 12, "knothole"
# The least variance that counts, as a fraction of the mean variance.
LEAST_VARIANCE = 0.02

#: Slopes and curvatures of the losses (rows,) at given margins.
Newton = Callable[[Floats], tuple[Floats, Floats]]
#: Targets of the next trees and their weights, (rows, outputs) each, at given margins.
Step = Callable[[Floats], tuple[Floats, Floats]]


class Trees(NamedTuple):
    """Nodes of small trees, (trees, nodes), or of one, (nodes,).

    Rows with a code up to ``code`` go to the node ``left`` (-1 at leaves), others to the one after.
    """

    feature: Ints
    code: Ints
    left: Ints
    missing_left: Mask
    value: Floats


class Grown(NamedTuple):
    """Initial margin, trees, number of nodes of each, and thresholds of the nodes."""

    start: float
    trees: Trees
    sizes: Ints
    threshold: Floats


#: The trees of one stage, for each output.
Stage = list[Grown]


class Grower:
    """Grows trees on some rows, whose columns are split at the given thresholds."""

    def __init__(self, inputs: Floats, thresholds: Sequence[Floats]) -> None:
        self.width = np.array([len(own) + 1 for own in thresholds], dtype=np.int64)
        self.code = np.empty(inputs.shape, dtype=np.uint8)
        self.threshold = np.full(
            (len(thresholds), DISTINCT), np.inf
        )  # all numbers go left of the last
        for column, code, inner, row in zip(
            inputs.T, self.code.T, thresholds, self.threshold, strict=True
        ):
            code[:] = np.where(np.isnan(column), len(inner) + 1, np.searchsorted(inner, column))
            row[: len(inner)] = exact_less_equal(inner)

    def boost(self, start: float, trees: int, newton: Newton) -> tuple[Grown, Floats]:
        """So many trees, and the margins of the rows; ``newton`` returns slopes and curvatures."""
        margin, sizes = np.full(len(self.code), start), np.empty(trees, dtype=np.int64)
        shape = trees, NODES
        feature, code, left = (np.zeros(shape, dtype=np.int64) for _ in range(3))
        grown = Trees(feature, code, left, np.zeros(shape, dtype=np.bool_), np.zeros(shape))
        for k in range(trees):
            tree = Trees(*(field[k] for field in grown))
            sizes[k] = kernels.grow(self.code, self.width, *newton(margin), margin, tree)
        return Grown(start, grown, sizes, self.threshold[grown.feature, grown.code]), margin


def boost(inputs: Floats, base: Floats, weight: Floats, newton: Step) -> Iterator[Stage]:
    """Yield stage after stage, without end, starting from the base (rows, outputs)."""
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
    """Trees fitted to y, and their values for the rows."""
    start = float(np.average(y, weights=weight))
    return grower.boost(start, TREES, lambda margin: ((margin - y) * weight, weight))


def poisson(grower: Grower, y: Floats, trees: int) -> Grown:
    """Trees for the logarithm of the expectation of y, which has mean 1."""
    return grower.boost(0.0, trees, lambda margin: (np.exp(margin) - y, np.exp(margin)))[0]


def thresholds_of(inputs: Floats) -> list[Floats]:
    """Candidate thresholds of each column: midway between neighbouring quantiles."""
    thresholds = []
    for column in inputs.T:
        own = np.sort(column[~np.isnan(column)])
        nearest = np.rint(np.linspace(0, max(len(own) - 1, 0), DISTINCT)).astype(np.intp)
        few = np.unique(own[nearest]) if len(own) else own
        thresholds.append((few[1:] + few[:-1]) / 2)
    return thresholds


def step(stage: Stage, inputs: Floats) -> Floats:
    """The values of a stage, (rows, outputs)."""
    return as_ensemble([stage], [str(j) for j in range(inputs.shape[1])]).margin(inputs, 1)


def as_ensemble(stages: list[Stage], names: Sequence[str], share: float = 1.0) -> Ensemble:
    """All stages as one ensemble over the inputs, with margins multiplied by ``share``."""
    parts = [grown for stage in stages for grown in stage]
    output = np.tile(np.arange(len(stages[0])), len(stages))
    sizes = np.concatenate([grown.sizes for grown in parts])
    kept, roots = np.arange(NODES) < sizes[:, None], starts(sizes)
    fields = zip(*(grown.trees for grown in parts), strict=True)
    tree = Trees(*(np.concatenate(field)[kept] for field in fields))
    first = np.repeat(roots, sizes)
    nodes = Nodes(
        roots=roots,
        feature=np.where(tree.left < 0, -1, tree.feature),
        threshold=np.concatenate([grown.threshold for grown in parts])[kept],
        left=first + tree.left,
        right=first + tree.left + 1,
        missing_left=tree.missing_left,
        value=share * tree.value,
        native_leaf=np.arange(len(first)) - first,
        tree_output=np.repeat(output, [len(grown.sizes) for grown in parts]),
    )
    base = share * np.bincount(output, [grown.start for grown in parts])
    columns = Columns(tuple(Column(name) for name in names))
    return Ensemble.build(nodes, columns=columns, base=base, library=OWN, precision="float64")


def precisions(inputs: Floats, squares: Floats, fold: NDArray[np.intp]) -> Floats:
    """One over the expected squares, learned from other folds; normalised to mean 1."""
    weight, thresholds = np.ones(len(squares)), thresholds_of(inputs)
    for number in np.unique(fold):
        own = fold == number
        unit = float(squares[~own].mean())
        if not unit > 0:
            return np.ones(len(squares))
        grown = poisson(Grower(inputs[~own], thresholds), squares[~own] / unit, 3 * TREES)
        weight[own] = 1.0 / (unit * (np.exp(step([grown], inputs[own])[:, 0]) + LEAST_VARIANCE))
    return np.asarray(weight / weight.mean())
