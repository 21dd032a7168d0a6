"""Best leaves of single trees under losses whose best value is no mean (as Prop. 2 for squares).

A leaf minimises sum_n w_n r_n(leaf) loss(y_n - v) over v: at the weighted quantile of its rows, or
where the derivative of a Huber loss vanishes. That takes all rows of a leaf at once, not sums over
rows that can be gathered in chunks. So the reach matrix of one tree after the other is looked at.
They are computed for as many trees together as have about :data:`ENTRIES` entries, 12 bytes each
and 8 for each row and tree; entries of the tree at hand take 40 bytes more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import GROUPS, WORD
from knothole.expectation.expectation import Expectation
from knothole.leaves.defaults import Settings
from knothole.leaves.draw_matrix import DrawMatrix
from knothole.leaves.losses.base import Location
from knothole.leaves.problem import Problem
from knothole.progress import Advance, silent
from knothole.trees.ensemble import Ensemble, some_trees

# Entries of the reach of trees that are taken together; a sample of rows tells how many there are.
ENTRIES = 1 << 25
SAMPLE = 512


@dataclass(frozen=True, eq=False)
class TreeReach:
    """The reach (rows, leaves) of one tree's leaves, and the weights of the rows.

    Attributes
    ----------
    tree : int
    rows : int array
        Which rows.
    weight : float64 (rows,)
    reach : sparse (rows, leaves)
    fresh : list of such
        Reach from groups of other draws, where ``reach`` comes from draws: losses are measured on
        them.
    """

    tree: int
    rows: NDArray[np.intp]
    weight: Floats
    reach: sparse.csr_matrix
    fresh: list[sparse.csr_matrix]


@dataclass(frozen=True, eq=False)
class LeafFit:
    """Best leaves, as ``change`` from the start of their trees (leaves, width).

    ``before`` and ``after`` are losses of a row with old and new leaves: one each, or one for each
    group of draws that took no part.
    """

    change: Floats
    unreached: NDArray[np.intp]
    before: Floats
    after: Floats
    exact: bool


def fit(
    problem: Problem, trees: Iterable[TreeReach], ridge: float, advance: Advance = silent
) -> LeafFit:
    """The best leaves of each tree by itself."""
    ensemble = problem.ensemble
    change = (problem.theta - problem.leaf_start) / problem.tree_unit
    reached, rest = np.zeros(len(change)), problem.y - problem.offset
    losses, exact = [], True
    for found in trees:
        leaves = slice(*ensemble.leaf_start[found.tree : found.tree + 2])
        output, width = ensemble.tree_output[found.tree], change.shape[1]
        part = problem.loss.part(output, width)
        assert isinstance(part, Location)
        own, old = rest[found.rows, output : output + width], change[leaves]
        leaf, row, weight = _entries(found.reach, found.weight)
        reached[leaves] = np.bincount(leaf, weight, len(old))
        best = part.by_leaf(leaf, own[row], weight, len(old), ridge)
        if ridge == 0:
            best[reached[leaves] <= 0] = old[reached[leaves] <= 0]
        change[leaves] = best
        losses.append(
            [
                [_loss(part, reach, found.weight, own, value) for value in (old, best)]
                for reach in found.fresh or [found.reach]
            ]
        )
        exact = exact and not found.fresh
        advance()
    before, after = (problem.combined(each) for each in np.moveaxis(np.array(losses), 2, 0))
    return LeafFit(change, np.flatnonzero(reached <= 0), before, after, exact)


def _entries(
    reach: sparse.csr_matrix, row_weight: Floats
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Leaf, row and weight of every entry."""
    flat = reach.tocoo()
    return flat.col, flat.row, row_weight[flat.row] * flat.data


def _loss(
    loss: Location,
    reach: sparse.csr_matrix,
    row_weight: Floats,
    rest: Floats,
    value: Floats,
) -> float:
    """Expected loss of a row when a tree answers by itself."""
    leaf, row, weight = _entries(reach, row_weight)
    each = loss.value(value[leaf][:, :, None], rest[row][:, :, None])[:, 0]
    return float(weight @ each) * loss.factor / float(row_weight.sum())


def reach_of_trees(
    ensemble: Ensemble,
    expectation: Expectation,
    evidence: Evidence,
    row_weight: Floats,
    settings: Settings,
) -> Iterator[TreeReach]:
    """The reach of every tree: exact, or from completions as many as the settings say."""
    rows, given = np.arange(len(row_weight)), settings.options
    if expectation.exact:
        for tree, reach in reach_by_tree(ensemble, expectation, evidence, settings):
            yield TreeReach(tree, rows, row_weight, reach, [])
        return
    engine, words, threads = expectation.completions, given.draws // WORD, given.threads
    drawn = DrawMatrix(engine, evidence, row_weight, words, threads=threads)
    other = DrawMatrix(engine, evidence, row_weight, first_word=words, threads=threads)
    for tree in range(ensemble.n_trees):
        fresh = [other.reach(tree, group) for group in np.split(np.arange(WORD), GROUPS)]
        yield TreeReach(tree, rows, row_weight, drawn.reach(tree), fresh)


def reach_by_tree(
    ensemble: Ensemble, expectation: Expectation, evidence: Evidence, settings: Settings
) -> Iterator[tuple[int, sparse.csr_matrix]]:
    """Each tree and its reach matrix, (rows, leaves of the tree)."""
    n_rows, threads = len(evidence.points), settings.options.threads
    some = evidence[np.arange(0, n_rows, -(-n_rows // SAMPLE))]
    found = expectation.engine.leaf_probabilities(some).nnz
    entries = found / len(some.points) * n_rows
    n_parts = min(ensemble.n_trees, max(1, round(entries / ENTRIES)))
    for trees in np.array_split(np.arange(ensemble.n_trees), n_parts):
        own = expectation
        if n_parts > 1:
            own = settings.expectation(some_trees(ensemble, trees)[0], expectation.density)
        for tree, reach in own.leaf_probabilities_by_tree(evidence, threads=threads):
            yield int(trees[tree]), reach
