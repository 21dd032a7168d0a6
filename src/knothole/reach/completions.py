"""Reach by completions: for densities without closed-form boxes, and for what is not linear.

64 draws of a row's holes walk a tree at once as the bits of one machine word
(:mod:`knothole.reach.completion_kernels`). The word is made of :data:`GROUPS` independent sets of
draws; how far their means lie apart gives the standard error. More words give more draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from knothole.evidence import Evidence
from knothole.reach import completion_kernels as kernels
from knothole.reach.engine import (
    ENTRIES,
    Engine,
    Entries,
    Moments,
    node_arrays,
    plain,
    stack_size,
    weighted_values,
)
from knothole.reach.tables import Grid
from knothole.trees.ensemble import Ensemble
from knothole.trees.traverse import tree_depths

Floats = NDArray[np.float64]

LANES = kernels.LANES
GROUPS = 4


class Sampler(Protocol):
    """Draws the holes of a block of rows, 64 draws at a time."""

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64); only the entries of holes are read.

        The same ``first_row`` and ``word`` give the same draws; different words are independent,
        and so are the :data:`GROUPS` equal parts of a word.
        """
        ...


class Completer(Protocol):
    """A density that can complete rows."""

    def complete_points(self, evidence: Evidence, draws: int, rng: np.random.Generator) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        ...


class IndependentDraws:
    """A sampler for any density with ``complete_points``: plain independent draws."""

    def __init__(self, density: Completer, seed: int) -> None:
        self.density = density
        self.seed = seed

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64), seeded by the block's place and the word."""
        rng = np.random.default_rng([self.seed, first_row, word])
        points = self.density.complete_points(evidence, LANES, rng)
        return np.ascontiguousarray(points.transpose(0, 2, 1))


class CompletionsEngine(Engine):
    """Expectations over draws of the holes, each with its standard error.

    Parameters
    ----------
    ensemble : Ensemble
        Over variables.
    sampler : Sampler
    tol : float, optional
        Words are added to a row until the standard error of its margin is at most this.
    max_words : int
        Most words a row is given.
    moment_words : int
        Words for variances, links and quantiles, which one word tells only roughly.
    """

    exact = False
    block = 128

    def __init__(
        self,
        ensemble: Ensemble,
        sampler: Sampler,
        tol: float | None = None,
        max_words: int = 64,
        moment_words: int = 4,
    ) -> None:
        self.ensemble = ensemble
        self.sampler = sampler
        self.tol = tol
        self.max_words = max_words
        self.moment_words = moment_words
        self.nodes = node_arrays(ensemble)
        self.value = weighted_values(ensemble)
        self.depth = stack_size(ensemble)
        self.depths = tree_depths(ensemble.roots, ensemble.feature, ensemble.left)
        grid = Grid.of(ensemble)
        self.n_masks = int(grid.offset[-1])
        starts = np.concatenate([[0], np.cumsum([len(cuts) for cuts in grid.cuts])])
        used = np.zeros(len(ensemble.columns), dtype=np.bool_)
        used[ensemble.feature[ensemble.feature >= 0]] = True
        self.grid = (
            np.concatenate([*grid.cuts, np.empty(0)]),
            starts.astype(np.int64),
            *first_cuts(grid.cuts, starts.astype(np.int64)),
            self._steps(grid),
            grid.offset,
            ensemble.n_levels,
            used,
        )
        lanes = LANES // GROUPS
        self.groups = np.array(
            [((1 << lanes) - 1) << (lanes * g) for g in range(GROUPS)], dtype=np.uint64
        )

    def _steps(self, grid: Grid) -> NDArray[np.void]:
        """Nodes as records; categorical splits on a hole read the empty last mask."""
        ensemble = self.ensemble
        numeric = (ensemble.feature >= 0) & (ensemble.set_start < 0)
        rows = grid.offset[np.where(numeric, ensemble.feature, 0)] + grid.position
        steps = np.empty(len(numeric), dtype=kernels.STEP)
        steps["cut"] = ensemble.cut
        steps["feature"] = ensemble.feature
        steps["left"] = ensemble.left
        steps["mask_row"] = np.where(numeric, rows, self.n_masks)
        return steps

    def _starts(self, points: Floats) -> NDArray[np.int32]:
        """Where each row first meets a hole or a leaf in each tree, or the roots: (rows, trees)."""
        roots = self.ensemble.roots
        starts = np.empty((len(points), len(roots)), dtype=np.int32)
        if self._plain(points):
            kernels.first_holes(points, self.grid[4], roots, self.depths, starts)
        else:
            starts[:] = roots
        return starts

    def _plain(self, points: Floats) -> bool:
        """Whether splits are numeric and nothing, observed or drawn, is "not recorded"."""
        nullable = any(column.nullable for column in self.ensemble.columns)
        return not nullable and plain(self.ensemble, points)

    def margin(self, evidence: Evidence, first_row: int) -> tuple[Floats, Floats]:
        """Mean over draws, and its standard error from the spread of independent groups."""
        means = [self._group_means(evidence, first_row, 0)]
        mean, error = _mean_and_error(np.concatenate(means, axis=1))
        if self.tol is None:
            return mean, error
        word = 1
        rows = np.flatnonzero((error > self.tol).any(axis=1))
        kept = means[0][rows]
        while len(rows) and word < self.max_words:
            more = self._group_means(evidence[rows], first_row, word)
            kept = np.concatenate([kept, more], axis=1)
            mean[rows], error[rows] = _mean_and_error(kept)
            word += 1
            wanting = (error[rows] > self.tol).any(axis=1)
            rows, kept = rows[wanting], kept[wanting]
        return mean, error

    def _group_means(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Mean margin of each group of draws of one word, (rows, groups, outputs)."""
        points = evidence.points
        sums = np.zeros((len(points), GROUPS + 1, self.ensemble.n_outputs))
        draws = self.sampler.draw(evidence, first_row, word)
        kernels.block_groups(
            points, draws, self._starts(points), self.nodes, self.grid, self._plain(points),
            self.groups, self.value, self.ensemble.tree_output, self._scratch(), sums,
        )  # fmt: skip
        common = sums[:, GROUPS:] + self.ensemble.base
        return np.asarray(sums[:, :GROUPS] / (LANES // GROUPS) + common)

    def margins(self, evidence: Evidence, first_row: int, words: int | None = None) -> Floats:
        """Margins of the completions themselves, (rows, draws, outputs)."""
        points = evidence.points
        words = self.moment_words if words is None else words
        out = np.empty((len(points), words, LANES, self.ensemble.n_outputs))
        out[:] = self.ensemble.base
        for word in range(words):
            lanes = np.ascontiguousarray(out[:, word])
            kernels.block_lanes(
                points, self.sampler.draw(evidence, first_row, word), self._starts(points),
                self.nodes, self.grid,
                self._plain(points), self.value, self.ensemble.tree_output,
                self._scratch(), lanes,
            )  # fmt: skip
            out[:, word] = lanes
        return out.reshape(len(points), words * LANES, -1)

    def mean_of(
        self, function: Callable[[Floats], Floats], evidence: Evidence, first_row: int
    ) -> tuple[Floats, Floats]:
        """Mean of a function of the margin over draws, and its standard error."""
        values = function(self.margins(evidence, first_row))
        groups = values.reshape(len(values), -1, LANES // GROUPS, values.shape[2])
        return _mean_and_error(groups.mean(axis=2))

    def entries(self, evidence: Evidence, first_row: int) -> Iterator[Entries]:
        """Shares of the draws of one word that reach each leaf."""
        points = evidence.points
        draws = self.sampler.draw(evidence, first_row, 0)
        scratch = self._scratch()
        capacity = max(ENTRIES, self.ensemble.n_leaves)
        row = 0
        while row < len(points):
            out = (
                np.empty(capacity, dtype=np.int32),
                np.empty(capacity, dtype=np.int32),
                np.empty(capacity),
            )
            count, row = kernels.block_entries(
                points, draws, self._starts(points), self.nodes, self.grid, self._plain(points),
                row, scratch,
                *out,
            )  # fmt: skip
            yield Entries(out[0][:count], out[1][:count], out[2][:count])

    def masks(
        self, evidence: Evidence, first_row: int, word: int
    ) -> tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int64]]:
        """Leaves that a block's draws reach, and the words of those that do.

        Returns leaves and words of all entries, row by row and tree by tree, and where the
        entries of each row's trees end, (rows, trees).
        """
        points = evidence.points
        draws = self.sampler.draw(evidence, first_row, word)
        scratch = self._scratch()
        capacity = max(ENTRIES, self.ensemble.n_leaves)
        stop = np.empty((len(points), self.ensemble.n_trees), dtype=np.int64)
        leaves, words = [np.empty(0, np.int32)], [np.empty(0, np.uint64)]
        row = total = 0
        while row < len(points):
            first = row
            leaf, mask = np.empty(capacity, np.int32), np.empty(capacity, np.uint64)
            count, row = kernels.block_masks(
                points, draws, self._starts(points), self.nodes, self.grid, self._plain(points),
                row, scratch,
                leaf, mask, stop,
            )  # fmt: skip
            stop[first:row] += total
            total += count
            leaves.append(leaf[:count].copy())
            words.append(mask[:count].copy())
        return np.concatenate(leaves), np.concatenate(words), stop

    def moments(self, evidence: Evidence, first_row: int) -> Moments:
        """Moments of the completions' margins, with standard errors from independent groups."""
        margins = self.margins(evidence, first_row)
        rows, _, outputs = margins.shape
        groups = margins.reshape(rows, -1, LANES // GROUPS, outputs)
        mean, error = _mean_and_error(groups.mean(axis=2))
        variance = margins.var(axis=1)
        # Each group's mean square about the row's mean: independent, and their mean is `variance`.
        about = ((groups - mean[:, None, None]) ** 2).mean(axis=2)
        return Moments(mean, variance, error, _mean_and_error(about)[1])

    def add_pairs(
        self, evidence: Evidence, row_weight: Floats, first_row: int, out: Floats
    ) -> None:
        """Add shares of the draws of one word that reach two leaves at once."""
        points = evidence.points
        kernels.block_pairs(
            points, self.sampler.draw(evidence, first_row, 0), self._starts(points), row_weight,
            self.nodes, self.grid,
            self._plain(points), self._scratch(), out,
        )  # fmt: skip

    def _scratch(self) -> tuple[Any, ...]:
        n = self.ensemble.n_leaves
        return (
            np.zeros(self.n_masks + 1, dtype=np.uint64),
            np.empty(len(self.ensemble.columns), dtype=np.uint64),
            np.empty(self.depth, dtype=np.int32),
            np.empty(self.depth, dtype=np.uint64),
            np.empty(n, dtype=np.int32),
            np.empty(n, dtype=np.uint64),
            np.empty(self.ensemble.n_trees, dtype=np.int64),
        )


def first_cuts(
    cuts: Sequence[Floats], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats]:
    """Cells of equal width between each variable's outer (finite) cuts.

    Returns the first cut above the lower end of each cell, (variables, cells), and where the
    cells begin and how many there are per unit, (variables, 2).
    """
    first = np.repeat(starts[:-1, None], kernels.CELLS, axis=1)
    rulers = np.zeros((len(cuts), 2))
    for v, own in enumerate(cuts):
        finite = own[np.isfinite(own)]
        width = finite[-1] - finite[0] if len(finite) else 0.0
        if not (np.isfinite(width) and width > np.finfo(np.float64).tiny * kernels.CELLS):
            continue  # one cell for all: the search begins at the first cut
        ends = np.linspace(finite[0], finite[-1], kernels.CELLS, endpoint=False)
        first[v] += np.searchsorted(own, ends, side="right")
        rulers[v] = finite[0], kernels.CELLS / width
    return first, rulers


def _mean_and_error(groups: Floats) -> tuple[Floats, Floats]:
    """Mean over independent groups (axis 1), and its standard error."""
    n = groups.shape[1]
    return groups.mean(axis=1), groups.std(axis=1, ddof=1) / np.sqrt(n)
