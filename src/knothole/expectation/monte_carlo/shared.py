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
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import COMMON, WORD
from knothole.densities.mixture.density import Mixture
from knothole.expectation.monte_carlo.cells import lone_numbers, mean_over_cells
from knothole.expectation.monte_carlo.engine import LEAST_ROWS, Collect, CompletionsEngine
from knothole.expectation.monte_carlo.samplers import Inversion
from knothole.expectation.monte_carlo.splits import LANES, Shared, splits_before
from knothole.expectation.monte_carlo.statistics import MeanOf
from knothole.expectation.tables import Grid
from knothole.expectation.tolerance import NONE, Tolerance
from knothole.trees.ensemble import Ensemble

# The most memory for the masks of shared draws, and for margins of rows at once.
BYTES = 1 << 26
MARGIN_BYTES = 1 << 19
# The most splits of a chunk's rows that are kept from one word to the next.
FOUND = 1 << 21
# Words after which means are corrected.
CORRECTED = 16


class SharedEngine(CompletionsEngine):
    """Completions under a mixture: the first words of draws are the same for all rows.

    They are made when first asked for; should two threads make them, they are alike.
    """

    # One word by itself would take half the time of four; errors that nothing corrects fall slower.
    first_words, decay = LANES, 0.55

    def __init__(self, ensemble: Ensemble, sampler: Inversion, density: Mixture) -> None:
        super().__init__(ensemble, sampler)
        self.density, self.points = density, sampler.points
        self._made: list[Shared] = []

    @property
    def shared_words(self) -> int:
        """Words that there is room for."""
        if self.splits is None:
            return 0
        trees, n = self.splits.trees, len(self.density.weights_)
        return LANES * (
            BYTES // (LANES * n * (WORD * int(trees.slots[-1]) + 8 * len(trees.own) + 1))
        )

    def _rows_at_once(self, words: int) -> int:
        if not self.shared_words:
            return super()._rows_at_once(words)
        return max(MARGIN_BYTES // (8 * WORD * words * self.ensemble.n_outputs), LEAST_ROWS)

    def mean(
        self, evidence: Evidence, mean: MeanOf, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """Exactly where a single number is missing; more draws are quicker than correcting."""
        splits, mean.after = self.splits, CORRECTED * WORD
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
        of_rest = mean.of(rest)
        of_rest.after = mean.after
        value[rest], error[rest] = super().mean(evidence[rest], of_rest, tolerance)
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
        return Grid.of(self.ensemble).masses(self.density.distributions_, self.merged)

    def margins(self, evidence: Evidence, words: range, rounded: bool = False) -> Floats:
        """Margins of the completions themselves, (rows, words, 64, outputs)."""
        return self.margins_of(evidence, rounded)(np.arange(len(evidence.points)), words)

    def margins_of(self, evidence: Evidence, rounded: bool = False) -> Collect:
        """:meth:`margins` of some rows of a chunk, which may be asked for again and again.

        Until the thread asks for another chunk's: what was found of rows is in memory to use again.
        """
        own = super().margins
        splits, last = self.splits, self.shared_words
        if splits is None or evidence.allowed is not None:
            return lambda rows, words: own(evidence[rows], words, rounded)
        log_p, share = self.density.responsibilities(evidence)
        impossible = np.isneginf(log_p)
        points = self.merged.points(evidence.points)
        sets, steps = splits.sets(points), splits.steps(self.value, rounded)
        whole = None
        if splits_before(sets)[-1] <= FOUND:
            whole = splits.found(sets, self.leaves, steps, self._memory)

        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            middle = min(max(words.start, last), words.stop)
            out = np.empty((len(rows), middle - words.start, WORD, self.ensemble.n_outputs))
            if whole is None:
                found = splits.found(sets[rows], self.leaves, steps, self._memory)
            else:
                found = whole.of(rows)
            splits.margins_of_shared(share[rows], found, self._shared(middle), words.start, out)
            if middle < words.stop:
                rest = own(evidence[rows], range(middle, words.stop), rounded)
                out = np.concatenate([out, rest], axis=1)
            lost = impossible[rows]
            if lost.any():
                out[lost] = own(evidence[rows[lost]], words, rounded)
            return out

        return collect

    def _shared(self, words: int) -> Shared:
        """What draws of so many words, or more, are in each component."""
        made = self._made[0] if self._made else self._make(0)
        start = len(made.cells)
        if not self._made or LANES * start < words:
            parts = [made, *map(self._make, range(start, -(-words // LANES)))]
            made = Shared(*map(np.concatenate, zip(*parts, strict=True)))
            self._made[:] = [made]
        return made

    def _make(self, four: int) -> Shared:
        """Of four words."""
        assert self.splits is not None
        words = range(LANES * four, LANES * (four + 1))
        uniform = self.points.uniform(words, COMMON)[0]
        draws = np.stack([self._components(own) for own in np.split(uniform, LANES)])
        cells, masks = self.splits.in_components(self.merged.points(draws, axis=2))
        order = np.argsort(uniform[:, 0], kind="stable")
        bits = np.uint64(1) << (order % WORD).astype(np.uint64)
        lowest = np.zeros((len(order) + 1, LANES), dtype=np.uint64)
        lowest[1 + np.arange(len(order)), order // WORD] = bits
        lowest = np.bitwise_or.accumulate(lowest, axis=0)
        return Shared(cells[None], masks[None], uniform[order, 0][None], lowest[None])

    def _components(self, uniform: Floats) -> Floats:
        """What points (64, coordinates) are in each component, (components, variables, 64)."""
        used, n = self.forest.look.used, len(self.density.weights_)
        states, first = np.repeat(np.arange(n), WORD), self.density.state_coordinates
        out = np.zeros((n, len(used), WORD))
        for v in np.flatnonzero(used):
            own = np.tile(uniform[:, first + v], n)
            out[:, v] = self.density.distributions_[v].invert(states, own).reshape(n, WORD)
        return out

    def __getstate__(self) -> dict[str, Any]:
        """Without what was made: it is large, and soon made again."""
        return self.__dict__ | {"_made": []}
