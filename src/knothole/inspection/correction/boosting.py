"""Small boosted trees, stage by stage, and the ensemble that they make together.

Each stage is a few trees for every output, fitted to Newton's step at what the stages before have
reached (:class:`.space.Space`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Ints
from knothole.columns.columns import Column, Columns
from knothole.compiled.bits import starts
from knothole.inspection.correction.growing import DISTINCT, LEAVES, NODE, NODES, grow
from knothole.inspection.correction.space import Space
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.thresholds import cut_less_equal

# The least variance that counts, as a share of the mean one.
LEAST_VARIANCE = 0.02
# Trees of a stage, for each output, and who grows them.
TREES, OWN = 12, "knothole"

#: Slopes and curvatures of losses (rows,) at margins.
Newton = Callable[[Floats], tuple[Floats, Floats]]


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


def boost(
    inputs: Floats, base: Floats, truth: Floats, weight: Floats, space: Space
) -> Iterator[Stage]:
    """One stage after the other, without end: from the base (rows, outputs) to the truth."""
    z, grower = base.copy(), Grower(inputs, thresholds_of(inputs))
    while True:
        residual, curvature = space.newton(space.means(z), truth)
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
