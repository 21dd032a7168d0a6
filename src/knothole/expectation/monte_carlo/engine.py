"""Reach by completions: for densities without closed-form boxes, and for what is not linear.

64 draws of a row's holes walk all trees at once as the bits of one machine word
(:mod:`knothole.expectation.monte_carlo.kernels`). They are points of eight independent nets
(:mod:`knothole.compiled.sobol`), the same for every row; how far the groups' own answers lie apart
gives the standard error. A row whose error is larger than the tolerance is given
twice as many draws, and again, until it is met or :data:`~knothole.compiled.sobol.WORDS` words are
used up: the groups go on with their nets, which lowers the error by more than independent draws
would. Which row gets how many depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Words
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import GROUPS, SIZE, WORD, WORDS, row_keys
from knothole.compiled.threads import Memory
from knothole.expectation.cuts import lookup
from knothole.expectation.engine import (
    ENTRIES,
    Engine,
    Entries,
    Moments,
    node_arrays,
    weighted_values,
)
from knothole.expectation.monte_carlo import kernels as kernels
from knothole.expectation.monte_carlo.divide import Divided, add_groups, divided, lists
from knothole.expectation.monte_carlo.masks import ALL
from knothole.expectation.monte_carlo.samplers import Sampler
from knothole.expectation.monte_carlo.splits import Splits
from knothole.expectation.monte_carlo.statistics import (
    MeanOf,
    Statistic,
    mean_and_error,
    mean_and_std,
)
from knothole.expectation.tables import Grid
from knothole.expectation.tolerance import NONE, Tolerance
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged
from knothole.trees.traverse import LEVELS, tree_depths

# Words that a row begins with: for means, and for what needs the draws themselves.
FIRST_WORDS = 1
FIRST_WORDS_OF_DRAWS = 4
# Groups may agree because none of them has met a rare step. So a standard error is never told to be
# less than this part of what one draw more or less could change an answer by.
RESOLUTION = 0.15
# A mean of predictions is settled by its first word of draws, which may miss what happens once in
# a hundred times, only with an error of less than this part of what is allowed; and it has a
# coarser resolution, so that in effect its groups must agree.
SETTLED_AT_ONCE = 0.5
RESOLUTION_OF_ONE_WORD = 0.3
# What twice as many draws are taken to multiply a standard error by. The first doubling gains more
# than later ones; with this number told errors are calibrated (tests/trust/test_errors_hold.py).
DECAY = 0.48
# Rows whose holes are drawn together: as many as draws of this size allow, within limits.
DRAWS_BYTES = 1 << 23
LEAST_ROWS, MOST_ROWS = 16, 256
# A chunk has more of them: as many as may keep all the margins that their draws can have.
# (Of means, what is kept is less.)
KEPT_BYTES, MOST_ROWS_OF_CHUNK, MOST_ROWS_OF_MEANS = 1 << 27, 1024, 4096


#: From the numbers of some rows of a chunk, and consecutive words, to something of their draws.
Collect = Callable[[NDArray[np.intp], range], Floats]


class CompletionsEngine(Engine):
    """Expectations over draws of the holes, each with its standard error.

    Parameters
    ----------
    ensemble : Ensemble
        Over variables.
    sampler : Sampler
    tolerance : Tolerance, optional
        Of margins, and of their standard deviations; :data:`~knothole.expectation.tolerance.NONE`
        for
        what the first draws give.
    max_words : int
        Most words a row is given.
    """

    exact = False
    # Of means of predictions.
    first_words, decay = FIRST_WORDS, DECAY

    def __init__(
        self,
        ensemble: Ensemble,
        sampler: Sampler,
        tolerance: Tolerance = NONE,
        max_words: int = WORDS,
    ) -> None:
        self.merged = Merged.of(ensemble)
        self.ensemble = ensemble = self.merged.ensemble
        self.sampler = sampler
        self.tolerance = tolerance
        self.max_words = max_words
        self.value = weighted_values(ensemble)
        grid = Grid.of(ensemble)
        self.n_masks = int(grid.offset[-1])
        deepest = int(tree_depths(ensemble.roots, ensemble.feature, ensemble.left).max(initial=0))
        self.forest = kernels.Forest(
            node_arrays(ensemble),
            self._steps(grid),
            ensemble.leaf_tree,
            lookup(ensemble, grid),
            deepest,
            not len(ensemble.sets) and not ensemble.columns.nullable.any(),
        )
        # Or level by level, where splits are numeric and trees are not too deep.
        self.by_tree = None if self.forest.plain and deepest <= LEVELS else True
        self._memory = Memory()
        self.n_variables = sampler.n_variables
        splits = ensemble.feature[ensemble.feature >= 0]
        sampler.arrange(np.bincount(splits, minlength=self.n_variables).astype(np.float64))
        self.row_bytes = 8 * WORD * max(1, self.n_variables)
        kept = 8 * WORD * WORDS * ensemble.n_outputs
        self.chunk = min(max(KEPT_BYTES // kept, LEAST_ROWS), MOST_ROWS_OF_CHUNK)
        self.chunk_of_means = min(4 * self.chunk, MOST_ROWS_OF_MEANS)

    @cached_property
    def splits(self) -> Splits | None:
        """What words of draws are divided at, where trees are small enough."""
        return Splits.of(self.ensemble, self.forest)

    @cached_property
    def divided(self) -> list[Divided]:
        """The trees as draws are divided at their splits; none where they walk."""
        return divided(self.ensemble, self.value) if self.forest.plain else []

    @property
    def leaves(self) -> tuple[Floats, Floats]:
        """What margins are sums of: the weighted values of leaves by tree and bit, and the base."""
        assert self.splits is not None
        return self.splits.values(self.value), self.ensemble.base

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

    def _rows_at_once(self, words: int) -> int:
        return min(max(DRAWS_BYTES // (words * self.row_bytes), LEAST_ROWS), MOST_ROWS)

    # ---- answers, each with its error ----------------------------------------------------------

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Mean over draws, and its standard error from the spread of independent groups."""
        mean, error, _ = self._refined_margin(evidence)
        return mean, error

    def _refined_margin(self, evidence: Evidence) -> tuple[Floats, Floats, NDArray[np.int64]]:
        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            return self._group_sums(evidence[rows], words)

        def settle(sums: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
            # Parts after the first have as many draws as all before them.
            draws = SIZE * FIRST_WORDS << (sums.shape[1] - 1)
            return mean_and_error(sums.sum(axis=1) / draws + self.ensemble.base)

        return self._refined(evidence, collect, settle, self.tolerance, FIRST_WORDS)

    def group_margins(self, evidence: Evidence, words: range) -> Floats:
        """Mean margins of the independent groups of some words, (rows, groups, outputs)."""
        if not len(evidence.points):
            return np.empty((0, GROUPS, self.ensemble.n_outputs))
        step = self._rows_at_once(len(words))
        parts = (evidence[i : i + step] for i in range(0, len(evidence.points), step))
        sums = np.concatenate([self._group_sums(part, words)[:, 0] for part in parts])
        return np.asarray(sums / (SIZE * len(words)) + self.ensemble.base)

    def of_draws(
        self, evidence: Evidence, statistic: Statistic, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """A statistic of the completions' margins, and its standard error."""

        def settle(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
            return statistic(by_group(margins), rows)

        first, margins = min(FIRST_WORDS_OF_DRAWS, self.max_words), self.margins_of(evidence)
        value, error, _ = self._refined(evidence, margins, settle, tolerance, first)
        return value, error

    def mean(
        self, evidence: Evidence, mean: MeanOf, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """Means of predictions, and their standard errors."""
        margins = self.margins_of(evidence, rounded=True)

        many = min(FIRST_WORDS_OF_DRAWS, self.max_words)
        first = self.first_words if tolerance.share < np.inf else many
        ends = (FIRST_WORDS,) if first == self.first_words > FIRST_WORDS else ()

        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            return mean.summary(margins(rows, words), () if words.start else ends)

        settle, decay = mean.settle, self.decay
        value, error, _ = self._refined(evidence, collect, settle, tolerance, first, many, decay)
        return value, error

    def moments(self, evidence: Evidence) -> Moments:
        """Moments of the completions' margins; the tolerance is for mean and standard deviation."""
        found, error = self.of_draws(evidence, mean_and_std, self.tolerance.repeated(2))
        mean, std = np.split(found, 2, axis=1)
        error, std_error = np.split(error, 2, axis=1)
        return Moments(mean, std, error, std_error)

    def entries(self, evidence: Evidence) -> Iterator[Entries]:
        """Shares of the draws that reach each leaf: of as many draws as the margin has."""
        _, _, words = self._refined_margin(evidence)
        for n in np.unique(words).tolist():
            rows = np.flatnonzero(words == n)
            step = self._rows_at_once(n)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                yield from self._entries(evidence[some], some, range(n), None)

    def _entries(
        self, evidence: Evidence, rows: NDArray[np.intp], words: range, keys: Words | None
    ) -> Iterator[Entries]:
        for own in self._draws(evidence, words, keys):
            for first, reached in self._reached(evidence, own):
                counts = np.diff(reached.stop[:, -1], prepend=0)
                row = np.repeat(rows[first : first + len(counts)], counts).astype(np.int32)
                share = np.bitwise_count(reached.mask) / (WORD * len(words))
                yield Entries(row, reached.leaf, share)

    def _reached(self, evidence: Evidence, draws: Floats) -> Iterator[tuple[int, kernels.Reached]]:
        """Leaves that draws (rows, variables, 64) reach, for some rows after the other."""
        points, scratch = self.merged.points(evidence.points), self._scratch()
        capacity = max(ENTRIES, self.ensemble.n_leaves)
        row = 0
        while row < len(points):
            first = row
            out = kernels.Reached(
                np.empty(capacity, np.int32),
                np.empty(capacity, np.uint64),
                np.empty((len(points), self.ensemble.n_trees), dtype=np.int64),
            )
            count, row = kernels.chunk_masks(
                points, draws, self.forest, self.by_tree, row, scratch, out
            )
            yield first, kernels.Reached(out.leaf[:count], out.mask[:count], out.stop[first:row])

    # ---- what learning adds up over rows: each has points of its own ---------------------------

    def masks(self, evidence: Evidence, word: int) -> kernels.Reached:
        """Leaves that one word of a chunk's draws reaches, and the words of those that do."""
        draws = self._own_draws(evidence, word)
        parts = [reached for _, reached in self._reached(evidence, draws)]
        ends = np.cumsum([0, *(len(part.leaf) for part in parts)])
        return kernels.Reached(
            np.concatenate([np.empty(0, np.int32), *(part.leaf for part in parts)]),
            np.concatenate([np.empty(0, np.uint64), *(part.mask for part in parts)]),
            np.concatenate(
                [
                    np.empty((0, self.ensemble.n_trees), np.int64),
                    *(part.stop + end for part, end in zip(parts, ends, strict=False)),
                ]
            ),
        )

    def summed_entries(self, evidence: Evidence) -> Iterator[Entries]:
        """Shares of the draws of one word that reach each leaf."""
        keys = row_keys(evidence.points, evidence.allowed)
        yield from self._entries(evidence, np.arange(len(keys)), range(1), keys)

    def add_pairs(self, evidence: Evidence, row_weight: Floats, out: Floats) -> None:
        """Add shares of the draws of one word that reach two leaves at once."""
        points = self.merged.points(evidence.points)
        kernels.chunk_pairs(
            points, self._own_draws(evidence, 0), row_weight, self.forest, self.by_tree,
            self._scratch(), out,
        )  # fmt: skip

    def _own_draws(self, evidence: Evidence, word: int) -> Floats:
        keys = row_keys(evidence.points, evidence.allowed)
        return np.asarray(self._draws(evidence, range(word, word + 1), keys)[0])

    # ---- draws -----------------------------------------------------------------------------------

    def _draws(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        return self.merged.points(self.sampler.draw(evidence, words, keys), axis=2)

    def _group_sums(self, evidence: Evidence, words: range) -> Floats:
        """Leaf values summed over the draws of each group, (rows, 1, groups, outputs)."""
        points = self.merged.points(evidence.points)
        out = np.zeros((len(points), GROUPS, self.ensemble.n_outputs))
        draws = self._draws(evidence, words)
        for trees in self.divided:
            add_groups(points, draws, trees, self._memory.once(lists), out)
        if not self.divided:
            kernels.chunk_groups(
                points, draws, self.forest, self.by_tree,
                self.value, self.ensemble.tree_output, self._scratch(), out,
            )  # fmt: skip
        return out[:, None]

    def margins_of(self, evidence: Evidence, rounded: bool = False) -> Collect:
        """:meth:`margins` of some rows of a chunk, which may be asked for again and again."""
        return lambda rows, words: self.margins(evidence[rows], words, rounded)

    def margins(self, evidence: Evidence, words: range, rounded: bool = False) -> Floats:
        """Margins of the completions themselves, (rows, words, 64, outputs).

        ``rounded`` says that far less than draws tell will do.
        """
        points = self.merged.points(evidence.points)
        out = np.empty((len(points), len(words), WORD, self.ensemble.n_outputs))
        if self.splits is not None:
            steps, draws = self.splits.steps(self.value, rounded), self._draws(evidence, words)
            self.splits.margins(points, draws, self.leaves, steps, out)
            return out
        out[:] = self.ensemble.base
        kernels.chunk_margins(
            points, self._draws(evidence, words), self.forest, self.by_tree,
            self.value, self.ensemble.tree_output, self._scratch(), out,
        )  # fmt: skip
        return out

    def _refined(
        self,
        evidence: Evidence,
        collect: Collect,
        settle: Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]],
        tolerance: Tolerance,
        words: int,
        least: int = 0,
        decay: float = DECAY,
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Answers, their standard errors, and how many words each row was given.

        ``collect`` is asked for consecutive words of some rows, ``settle`` makes answers of all
        that was collected, (rows, parts, ...). Rows with a larger error than allowed go on, with
        ``least`` words or more; their new error is told together with what the last one leads to
        expect, or those that stop would be the ones whose error happens to look small. So is that
        of the first words where the first of them is a part by itself.
        """

        def collected(rows: NDArray[np.intp], words: range) -> Floats:
            step = self._rows_at_once(len(words))
            parts = [rows[i : i + step] for i in range(0, len(rows), step)]
            return np.concatenate([collect(part, words) for part in parts])

        rows = np.arange(len(evidence.points))
        kept = collected(rows, range(words)) if len(rows) else collect(rows, range(words))
        value, error = settle(kept, rows)
        begins = words < least
        error = _resolved(error, tolerance, words, RESOLUTION_OF_ONE_WORD if begins else RESOLUTION)
        if kept.shape[1] > 1:
            _, one = settle(kept[:, :1], rows)
            one = _resolved(one, tolerance, FIRST_WORDS, RESOLUTION_OF_ONE_WORD)
            error = _together(error, one, decay ** np.log2(words / FIRST_WORDS))
        used = np.full(len(rows), words)
        while words < self.max_words:
            allowed = tolerance.allowed * (SETTLED_AT_ONCE if words < least else 1.0)
            late = (error[rows] > allowed).any(axis=1)
            rows, kept = rows[late], kept[late]
            if not len(rows):
                break
            before, words = words, max(2 * words, least)
            kept = np.concatenate([kept, collected(rows, range(before, words))], axis=1)
            value[rows], now = settle(kept, rows)
            now = _resolved(now, tolerance, words)
            error[rows] = _together(now, error[rows], decay ** np.log2(words / before))
            used[rows] = words
        return value, error, used

    def _scratch(self) -> kernels.Scratch:
        """Working memory: every thread has its own, to use again."""
        return self._memory.once(self._new_scratch)

    def _new_scratch(self) -> kernels.Scratch:
        n = self.ensemble.n_leaves
        masks = np.zeros(self.n_masks + 2, dtype=np.uint64)
        masks[-1] = ALL
        return kernels.Scratch(
            masks,
            absent=np.empty(len(self.ensemble.columns), dtype=np.uint64),
            found=np.empty(WORD, dtype=np.uint32),
            # A list is never longer than the leaves, and has room for what will be overwritten.
            node=np.empty((2, n + 1), dtype=np.uint32),
            mask=np.empty((2, n + 1), dtype=np.uint64),
            leaves=np.empty(n, dtype=np.int32),
            leaf_masks=np.empty(n, dtype=np.uint64),
            tree_stop=np.empty(self.ensemble.n_trees, dtype=np.int64),
        )


def by_group(margins: Floats) -> Floats:
    """Margins of draws (rows, words, 64, outputs) as (rows, groups, draws of a group, outputs)."""
    rows, words, _, outputs = margins.shape
    groups = margins.reshape(rows, words, GROUPS, SIZE, outputs).swapaxes(1, 2)
    return groups.reshape(rows, GROUPS, words * SIZE, outputs)


def _together(error: Floats, before: Floats, part: float) -> Floats:
    """A standard error, with what that of fewer draws leads to expect: a part of it."""
    return np.asarray(np.sqrt((error**2 + (part * before) ** 2) / 2))


def _resolved(
    error: Floats, tolerance: Tolerance, words: int, resolution: float = RESOLUTION
) -> Floats:
    """Standard errors, with what so many draws can tell."""
    return np.hypot(error, resolution * tolerance.unit / (WORD * words))
