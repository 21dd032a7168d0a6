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
from knothole.compiled.bits import starts
from knothole.questions.correction.growing import DISTINCT, NODES, Coded, Tree, grow, room_for
from knothole.questions.correction.space import Space
from knothole.tables.columns import Column, Columns
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.libraries.cuts import cut_less_equal

# The least variance that counts, as a share of the mean one.
LEAST_VARIANCE = 0.02
# Trees of a stage, for each output.
TREES = 12


class Grown(NamedTuple):
    """Where margins start, how many nodes each tree has, these (trees, nodes), and their cuts."""

    start: float
    count: Ints
    tree: Tree
    cut: Floats


#: Trees for each output.
Stage = list[Grown]


class Grower:
    """Grows trees on some rows, whose columns are split at the given thresholds."""

    def __init__(self, inputs: Floats, thresholds: Sequence[Floats]) -> None:
        width = np.array([len(own) + 1 for own in thresholds])
        code = np.empty(inputs.shape, dtype=np.uint8)
        self.cut = np.full((len(width), DISTINCT), np.inf)  # every number goes left of the last
        for j, own in enumerate(thresholds):
            column = inputs[:, j]
            code[:, j] = np.where(np.isnan(column), width[j], np.searchsorted(own, column))
            self.cut[j, : len(own)] = cut_less_equal(own)
        self.coded = Coded(code, width)
        self.room = room_for(self.coded)

    def boost(
        self, start: float, trees: int, newton: Callable[[Floats], tuple[Floats, Floats]]
    ) -> tuple[Grown, Floats]:
        """So many trees, and margins (rows,); ``newton`` has slopes and curvatures at margins."""
        kinds = np.int64, np.int64, np.bool_, np.int64, np.float64
        nodes = Tree(*(np.zeros((trees, NODES), dtype=kind) for kind in kinds))
        margin, count = np.full(len(self.coded.code), start), np.empty(trees, dtype=np.int64)
        for number in range(trees):
            tree = Tree(*(array[number] for array in nodes))
            count[number] = grow(self.coded, *newton(margin), margin, self.room, tree)
        return Grown(start, count, nodes, self.cut[nodes.feature, nodes.code]), margin


def boost(
    inputs: Floats, base: Floats, truth: Floats, weight: Floats, space: Space
) -> Iterator[Stage]:
    """One stage after the other, without end: from the base (rows, outputs) to the truth."""
    z, grower = base.copy(), Grower(inputs, thresholds_of(inputs))
    while True:
        residual, curvature = space.newton(space.means(z), truth)
        stage = []
        for output, y in enumerate(residual.T):
            share = weight * curvature[:, output]
            share /= share.mean()
            start = float(np.average(y, weights=share))
            grown, step = grower.boost(start, TREES, lambda at, y=y, w=share: ((at - y) * w, w))
            stage.append(grown)
            z[:, output] += step
        yield stage


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
    count = np.concatenate([grown.count for grown in parts])
    kept, roots = np.arange(NODES) < count[:, None], starts(count)
    tree = Tree(*(np.concatenate(arrays) for arrays in zip(*(g.tree for g in parts), strict=True)))
    left = (tree.left + roots[:, None])[kept]
    nodes = Nodes(
        roots=roots,
        feature=np.where(tree.left < 0, -1, tree.feature)[kept],
        cut=np.concatenate([grown.cut for grown in parts])[kept],
        left=left,
        right=left + 1,
        missing_left=tree.missing_left[kept],
        value=share * tree.value[kept],
        native_leaf=np.arange(len(left)) - np.repeat(roots, count),
        tree_output=np.repeat(output, [len(grown.count) for grown in parts]),
    )
    base = share * np.bincount(output, [grown.start for grown in parts])
    columns = Columns(tuple(Column(name) for name in names))
    return Ensemble.build(nodes, columns=columns, base=base, library="", precision="float64")


def precisions(inputs: Floats, squares: Floats, fold: NDArray[np.intp]) -> Floats:
    """One over what squares are expected to be, by those of other folds; their mean is 1."""
    weight, thresholds = np.ones(len(squares)), thresholds_of(inputs)
    for number in np.unique(fold):
        own = fold == number
        unit = float(squares[~own].mean())
        if not unit > 0:
            return np.ones(len(squares))
        y = squares[~own] / unit
        # Poisson's loss: exp(margin) - y * margin.
        grown, _ = Grower(inputs[~own], thresholds).boost(
            0.0, 3 * TREES, lambda at, y=y: (np.exp(at) - y, np.exp(at))
        )
        weight[own] = 1.0 / (unit * (np.exp(step([grown], inputs[own])[:, 0]) + LEAST_VARIANCE))
    return np.asarray(weight / weight.mean())
