"""Draws that all rows share: those of a mixture, component by component.

Given the component, holes are independent of what is observed, and the points of predictions are
the same for all rows (:mod:`knothole.compiled.sobol`). So what a draw is in each component, and on
which side of every cut, is worked out once for all rows.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.sobol import COMMON, WORD
from knothole.densities.mixture.density import Mixture
from knothole.reach.completions.cells import lone_numbers, mean_over_cells
from knothole.reach.completions.engine import LEAST_ROWS, Collect, CompletionsEngine, Inversion
from knothole.reach.completions.splits import Shared, splits_before
from knothole.reach.completions.statistics import MeanOf
from knothole.reach.tables import Grid
from knothole.reach.tolerance import NONE, Tolerance
from knothole.tables.evidence import Evidence
from knothole.trees.ensemble import Ensemble

# The most memory for the masks of shared draws, and for margins of rows at once.
BYTES = 1 << 26
MARGIN_BYTES = 1 << 19
# The most splits of a chunk's rows that are kept from one word to the next.
FOUND = 1 << 21


class SharedEngine(CompletionsEngine):
    """Completions under a mixture: the first words of draws are the same for all rows.

    They are made when first asked for; should two threads make them, they are alike.
    """

    def __init__(self, ensemble: Ensemble, sampler: Inversion, density: Mixture) -> None:
        super().__init__(ensemble, sampler)
        self.density, self.points = density, sampler.points
        self._made: list[Shared] = []

    @property
    def shared_words(self) -> int:
        """Words that there is room for."""
        if self.splits is None:
            return 0
        return BYTES // (8 * len(self.density.weights_) * self.splits.width)

    def _rows_at_once(self, words: int) -> int:
        if not self.shared_words:
            return super()._rows_at_once(words)
        return max(MARGIN_BYTES // (8 * WORD * words * self.ensemble.n_outputs), LEAST_ROWS)

    def mean(
        self, evidence: Evidence, mean: MeanOf, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """Exactly where a single number is missing."""
        splits = self.splits
        if splits is None or evidence.allowed is not None:
            return super().mean(evidence, mean, tolerance)
        points, columns = self.merged.points(evidence.points), self.ensemble
        numbers = (columns.n_levels == 0) & ~columns.columns.nullable
        variable = lone_numbers(points[:, : len(numbers)], self.forest.look.used, numbers)
        log_p, share = self.density.responsibilities(evidence[np.flatnonzero(variable >= 0)])
        lone = np.flatnonzero(variable >= 0)[~np.isneginf(log_p)]
        share = share[~np.isneginf(log_p)]
        rest = np.setdiff1d(np.arange(len(points)), lone, assume_unique=True)
        if not len(lone):
            return super().mean(evidence, mean, tolerance)
        value = np.empty((len(points), self.ensemble.n_responses))
        error = np.zeros_like(value)
        value[rest], error[rest] = super().mean(evidence[rest], mean.of(rest), tolerance)
        sets, leaves = splits.sets(points[lone]), self.leaves
        for number in np.unique(variable[lone]):
            start, stop = self.forest.look.offset[number : number + 2].tolist()
            masses = start, np.ascontiguousarray(np.diff(self._below[start:stop], axis=0).T)
            rows = np.flatnonzero(variable[lone] == number)
            step = self._rows_at_once(1 + (stop - start) // WORD)
            for some in (rows[i : i + step] for i in range(0, len(rows), step)):
                own = sets[some], share[some]
                value[lone[some]] = mean_over_cells(splits, leaves, own, masses, mean.link)
        return value, error

    @cached_property
    def _below(self) -> Floats:
        """What each component has below every cut, (rows of masks, components)."""
        return Grid.of(self.ensemble).masses(self.density.emissions_, self.merged)

    def margins(self, evidence: Evidence, words: range) -> Floats:
        """Margins of the completions themselves, (rows, words, 64, outputs)."""
        return self.margins_of(evidence)(np.arange(len(evidence.points)), words)

    def margins_of(self, evidence: Evidence) -> Collect:
        """:meth:`margins` of some rows of a chunk, which may be asked for again and again.

        Until the thread asks for another chunk's: what was found of rows is in memory to use again.
        """
        own = super().margins
        splits, last = self.splits, self.shared_words
        if splits is None or evidence.allowed is not None:
            return lambda rows, words: own(evidence[rows], words)
        log_p, share = self.density.responsibilities(evidence)
        impossible = np.isneginf(log_p)
        points = self.merged.points(evidence.points)
        sets = splits.sets(points)
        whole = None
        if splits_before(sets)[-1] <= FOUND:
            whole = splits.found(sets, self.leaves, self._memory)

        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            middle = min(max(words.start, last), words.stop)
            out = np.empty((len(rows), middle - words.start, WORD, self.ensemble.n_outputs))
            shared = self._shared(range(words.start, middle))
            if whole is None:
                found = splits.found(sets[rows], self.leaves, self._memory)
            else:
                found = whole.of(rows)
            splits.margins_of_shared(points[rows], share[rows], found, shared, out)
            if middle < words.stop:
                rest = own(evidence[rows], range(middle, words.stop))
                out = np.concatenate([out, rest], axis=1)
            lost = impossible[rows]
            if lost.any():
                out[lost] = own(evidence[rows[lost]], words)
            return out

        return collect

    def _shared(self, words: range) -> Shared:
        """What draws are in each component."""
        made = self._made[0] if self._made else self._make(0)
        start = len(made.masks)
        if not self._made or start < words.stop:
            parts = [made, *map(self._make, range(start, words.stop))]
            made = Shared(*map(np.concatenate, zip(*parts, strict=True)))
            self._made[:] = [made]
        return Shared(*(array[words.start : words.stop] for array in made))

    def _make(self, word: int) -> Shared:
        assert self.splits is not None
        uniform = self.points.uniform(range(word, word + 1), COMMON)[0]
        order = np.argsort(uniform[:, 0], kind="stable")
        bits = np.uint64(1) << order.astype(np.uint64)
        lowest = np.concatenate([np.zeros(1, np.uint64), np.bitwise_or.accumulate(bits)])
        masks = self.splits.masks_of_components(self.merged.points(self._components(uniform)))
        return Shared(masks[None], uniform[order, 0][None], lowest[None])

    def _components(self, uniform: Floats) -> Floats:
        """What points (64, coordinates) are in each component, (components, variables, 64)."""
        used, n = self.forest.look.used, len(self.density.weights_)
        states, first = np.repeat(np.arange(n), WORD), self.density.state_coordinates
        out = np.zeros((n, len(used), WORD))
        for v in np.flatnonzero(used):
            own = np.tile(uniform[:, first + v], n)
            out[:, v] = self.density.emissions_[v].invert(states, own).reshape(n, WORD)
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made: it is large, and soon made again."""
        return self.__dict__ | {"_made": []}
