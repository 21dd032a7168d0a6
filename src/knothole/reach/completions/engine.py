"""Reach by completions: for densities without closed-form boxes, and for what is not linear.

64 draws of a row's holes walk a tree at once as the bits of one machine word
(:mod:`knothole.reach.completions.kernels`). The word is made of :data:`GROUPS` independent sets of
draws; how far their means lie apart gives the standard error. More words give more draws.

The error grows with the number of holes. Where draws are points of nets, a row with more than
:data:`FEW_HOLES` is given both parts of a word: each group goes on with its own net, from 16 points
to 32. That lowers the error by more than independent draws would, and what is said of it remains
as true: the groups are as many, and as independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.threads import Memory
from knothole.reach.completions import kernels as kernels
from knothole.reach.completions.masks import ALL, lookup
from knothole.reach.completions.masks import LANES as LANES
from knothole.reach.engine import (
    ENTRIES,
    Engine,
    Entries,
    Moments,
    node_arrays,
    plain,
    weighted_values,
)
from knothole.reach.tables import Grid
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble
from knothole.trees.traverse import LEVELS, tree_depths

GROUPS = 4
FEW_HOLES = 3
# A chunk has as many rows as draws of this size allow, within limits.
CHUNK_BYTES = 1 << 23
LEAST_ROWS, MOST_ROWS = 16, 512


class Sampler(Protocol):
    """Draws the holes of a chunk of rows, 64 draws at a time.

    ``parts`` is how many parts a word has that are better than as many words.
    """

    parts: int

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64); only the entries of holes are read.

        The same ``first_row`` and ``word`` give the same draws; different words are independent,
        and so are the :data:`GROUPS` equal groups of lanes in a word.
        """
        ...

    def draw_parts(
        self, evidence: Evidence, rows: NDArray[np.int64], word: int, parts: int
    ) -> Floats:
        """Draws (parts, rows, variables, 64) of rows with these numbers.

        The first part is what ``draw`` gives. Lanes of one group are not independent of each
        other, be they in one part or in two.
        """
        ...


class Completer(Protocol):
    """A density that can complete rows."""

    def complete_points(self, evidence: Evidence, draws: int, rng: np.random.Generator) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        ...


class IndependentDraws:
    """A sampler for any density with ``complete_points``: plain independent draws."""

    parts = 1

    def __init__(self, density: Completer, seed: int) -> None:
        self.density = density
        self.seed = seed

    def draw(self, evidence: Evidence, first_row: int, word: int) -> Floats:
        """Draws (rows, variables, 64), seeded by the chunk's place and the word."""
        rows = np.arange(first_row, first_row + len(evidence.points))
        return np.asarray(self.draw_parts(evidence, rows, word, 1)[0])

    def draw_parts(
        self, evidence: Evidence, rows: NDArray[np.int64], word: int, parts: int
    ) -> Floats:
        """Draws (parts, rows, variables, 64), seeded by the first row's number and the word."""
        rng = np.random.default_rng([self.seed, *rows[:1], word])
        points = self.density.complete_points(evidence, parts * LANES, rng)
        shape = len(points), parts, LANES, points.shape[2]
        return np.ascontiguousarray(points.reshape(shape).transpose(1, 0, 3, 2))


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
        self.value = weighted_values(ensemble)
        grid = Grid.of(ensemble)
        self.n_masks = int(grid.offset[-1])
        deepest = int(tree_depths(ensemble.roots, ensemble.feature, ensemble.left).max(initial=0))
        self.forest = kernels.Forest(
            node_arrays(ensemble),
            self._steps(grid),
            ensemble.leaf_tree,
            lookup(ensemble, grid),
            deepest if deepest <= LEVELS else -1,
        )
        self._memory = Memory()
        self.used = np.flatnonzero(self.forest.look.used)
        row_bytes = 8 * LANES * sampler.parts * max(1, len(ensemble.columns))
        self.chunk = min(max(CHUNK_BYTES // row_bytes, LEAST_ROWS), MOST_ROWS)

    def _steps(self, grid: Grid) -> NDArray[np.void]:
        """Nodes as records; categorical splits read the mask that is always 0."""
        ensemble = self.ensemble
        leaf = ensemble.feature < 0
        numeric = ~leaf & (ensemble.set_start < 0)
        rows = grid.offset[np.where(numeric, ensemble.feature, 0)] + grid.position
        steps = np.empty(len(leaf), dtype=kernels.STEP)
        steps["mask_row"] = np.where(numeric, rows, self.n_masks + leaf)
        steps["left"] = np.where(leaf, np.arange(len(leaf)), ensemble.left)
        return steps

    def _plain(self, points: Floats) -> bool:
        """Whether splits are numeric and nothing, observed or drawn, is "not recorded"."""
        nullable = any(column.nullable for column in self.ensemble.columns)
        return not nullable and plain(self.ensemble, points)

    def margin(self, evidence: Evidence, first_row: int) -> tuple[Floats, Floats]:
        """Mean over draws, and its standard error from the spread of independent groups."""
        numbers = np.arange(first_row, first_row + len(evidence.points))
        kept = self._group_means(evidence, numbers, 0)
        mean, error = _mean_and_error(kept)
        if self.tol is None:
            return mean, error
        word = 1
        rows = np.flatnonzero((error > self.tol).any(axis=1))
        kept = kept[rows]
        while len(rows) and word < self.max_words:
            more = self._group_means(evidence[rows], numbers[rows], word)
            kept = np.concatenate([kept, more], axis=1)
            mean[rows], error[rows] = _mean_and_error(kept)
            word += 1
            wanting = (error[rows] > self.tol).any(axis=1)
            rows, kept = rows[wanting], kept[wanting]
        return mean, error

    def _group_means(self, evidence: Evidence, numbers: NDArray[np.int64], word: int) -> Floats:
        """Mean margin of each group of draws of one word, (rows, groups, outputs)."""
        points = evidence.points
        out = np.zeros((len(points), GROUPS, self.ensemble.n_outputs))
        holes = np.isnan(points[:, self.used]).sum(axis=1)
        parts = np.where(holes > FEW_HOLES, self.sampler.parts, 1)
        for n in np.unique(parts).tolist():
            rows = np.flatnonzero(parts == n)
            some = evidence[rows]
            draws = self.sampler.draw_parts(some, numbers[rows], word, n)
            sums = np.zeros((len(rows), *out.shape[1:]))
            kernels.block_groups(
                some.points, draws, self.forest, self._plain(points),
                self.value, self.ensemble.tree_output, self._scratch(), sums,
            )  # fmt: skip
            out[rows] = sums / (n * LANES // GROUPS)
        return out + self.ensemble.base

    def margins(self, evidence: Evidence, first_row: int, words: int | None = None) -> Floats:
        """Margins of the completions themselves, (rows, draws, outputs)."""
        points = evidence.points
        words = self.moment_words if words is None else words
        out = np.empty((len(points), words, LANES, self.ensemble.n_outputs))
        out[:] = self.ensemble.base
        for word in range(words):
            lanes = np.ascontiguousarray(out[:, word])
            kernels.block_lanes(
                points, self.sampler.draw(evidence, first_row, word), self.forest,
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
                points, draws, self.forest, self._plain(points),
                row, scratch, out,
            )  # fmt: skip
            yield Entries(out[0][:count], out[1][:count], out[2][:count])

    def masks(
        self, evidence: Evidence, first_row: int, word: int
    ) -> tuple[NDArray[np.int32], NDArray[np.uint64], NDArray[np.int64]]:
        """Leaves that a chunk's draws reach, and the words of those that do.

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
                points, draws, self.forest, self._plain(points),
                row, scratch, (leaf, mask, stop),
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
            points, self.sampler.draw(evidence, first_row, 0), row_weight, self.forest,
            self._plain(points), self._scratch(), out,
        )  # fmt: skip

    def _scratch(self) -> kernels.Scratch:
        """Working memory: every thread has its own, to use again."""
        memory = self._memory.__dict__
        if "scratch" not in memory:
            memory["scratch"] = self._new_scratch()
        scratch: kernels.Scratch = memory["scratch"]
        return scratch

    def _new_scratch(self) -> kernels.Scratch:
        n = self.ensemble.n_leaves
        masks = np.zeros(self.n_masks + 2, dtype=np.uint64)
        masks[-1] = ALL
        return kernels.Scratch(
            masks,
            absent=np.empty(len(self.ensemble.columns), dtype=np.uint64),
            found=np.empty(LANES, dtype=np.uint32),
            # A list is never longer than the leaves, and has room for what will be overwritten.
            node=np.empty((2, n + 1), dtype=np.uint32),
            mask=np.empty((2, n + 1), dtype=np.uint64),
            leaves=np.empty(n, dtype=np.int32),
            leaf_masks=np.empty(n, dtype=np.uint64),
            tree_stop=np.empty(self.ensemble.n_trees, dtype=np.int64),
        )


def _mean_and_error(groups: Floats) -> tuple[Floats, Floats]:
    """Mean over independent groups (axis 1), and its standard error."""
    n = groups.shape[1]
    return groups.mean(axis=1), groups.std(axis=1, ddof=1) / np.sqrt(n)
