"""Monte Carlo expectations: for densities without closed-form regions, and for nonlinear answers.

64 draws of a row's missing values pass through all trees at once as the bits of one machine word
(:mod:`knothole.expectation.monte_carlo.records`). They are points of eight independent nets
(:mod:`knothole.sobol`), the same for every row; the spread of the groups' results gives the
standard error. A row whose error exceeds the tolerance gets twice as many draws, repeatedly, until
the tolerance is met or :data:`~knothole.sobol.WORDS` words are used. The groups continue their
nets, which reduces the error by more than independent draws would. How many draws a row gets
depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole._core import leaf_sets as kernels_of_sets
from knothole._core import monte_carlo as kernels
from knothole._core import shared_draws
from knothole.arrays import Floats, Integers, Words
from knothole.bits import unpack_at
from knothole.cached import cached_property
from knothole.columns.evidence import Evidence
from knothole.densities.base import draw
from knothole.densities.mixture.density import Mixture
from knothole.expectation.engine import ENTRIES, Engine, Entries, Moments, weighted_values
from knothole.expectation.monte_carlo.rare import (
    PROBES,
    Cell,
    LeastError,
    Probes,
    Rare,
    Told,
    cells_of,
    least_masses,
    masses,
    pairs_of,
)
from knothole.expectation.monte_carlo.records import (
    LANES,
    DrawOdds,
    Forest,
    LeafValues,
    Reached,
    SharedDraws,
    SmallTrees,
    draws_in_components,
    slots_of,
)
from knothole.expectation.monte_carlo.statistics import (
    Change,
    MeanOf,
    Statistic,
    by_group,
    change_of,
    change_of_mean_and_std,
    mean_and_error,
    mean_and_std,
)
from knothole.expectation.tables import Grid, LeafSets, RangeSets, leaf_sets
from knothole.expectation.tolerance import NONE, SHARE, Tolerance, refine
from knothole.sobol import COMMON, GROUPS, SIZE, WORD, WORDS, Points, row_keys
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged
from knothole.trees.links import IDENTITY

if TYPE_CHECKING:
    from scipy import sparse

# Words that a row begins with: few for expected margins, whose errors are soon known; for
# everything else as many as pass through the trees together.
FIRST_WORDS_OF_MARGINS = 1
FIRST_WORDS = LANES
# Groups may agree because none of them has hit a rare step. So a reported standard error is at
# least this fraction of how much one more or one less draw could change the answer.
RESOLUTION = 0.15
# The largest standard error of a mean whose groups lie within a range of 1: half of them at each
# end. If the groups' error is larger than this times another, the range is larger than that one.
LEAST_OF_RANGE = 0.23
# Assumed factor of the standard error when draws are doubled. The first doubling gains more than
# later ones; with this factor the reported errors are calibrated (tests/trust/test_errors_hold.py).
DECAY = 0.48
# Rows whose missing values are drawn together: as many as fit in draws of this size, within limits.
DRAWS_BYTES = 1 << 23
LEAST_ROWS, MOST_ROWS = 16, 256
# A chunk has more rows: as many as keep all the margins of their draws below this size. (Means
# keep less.)
KEPT_BYTES, MOST_ROWS_OF_CHUNK, MOST_ROWS_OF_MEANS = 1 << 27, 1024, 4096
# The most memory for the masks of shared draws, and for margins of rows, in bytes.
SHARED_BYTES = 1 << 26
MARGIN_BYTES = 1 << 19
# Number of words of shared draws after which means are corrected.
CORRECTED = 16


# First bit of each group of draws in a word.
FIRST_BITS = SIZE * np.arange(GROUPS, dtype=np.uint64)
GROUP_BITS = np.uint64((1 << SIZE) - 1)

#: From row numbers of a chunk and consecutive words to results of their draws.
Collect = Callable[[NDArray[np.intp], range], Floats]


class MonteCarloEngine(Engine):
    """Expectations over draws of missing values, each with its standard error.

    Parameters
    ----------
    ensemble : Ensemble
        Over variables.
    density : object
        Anything with ``draw`` and ``coordinate_variables``, as a
        :class:`~knothole.densities.base.Density` has them.
    seed : int
        Determines the points that draws are made from.

    Attributes
    ----------
    tolerance : Tolerance
        For margins and their standard deviations; initially
        :data:`~knothole.expectation.tolerance.NONE`, so that the first draws suffice.
    max_words : int
        The most words for a row.
    """

    exact = False

    def __init__(self, ensemble: Ensemble, density: Any, seed: int) -> None:
        self.merged = Merged.of(ensemble)
        self.ensemble = ensemble = self.merged.ensemble
        self.density = density
        self.tolerance, self.max_words = NONE, WORDS
        self.value = weighted_values(ensemble)
        self.forest = Forest.of(ensemble)
        variable = density.coordinate_variables
        self.n_variables = max(len(ensemble.columns), int(variable.max()) + 1)
        # Variables that the trees split on most get the best coordinates, after those of states.
        splits = np.bincount(ensemble.feature[ensemble.feature >= 0], minlength=self.n_variables)
        # Last come the coordinates that choose what is not recorded, and hypotheses.
        own = ensemble.columns.nullable
        self.nullable = np.flatnonzero(own)
        if len(self.nullable):
            variable = np.concatenate([variable, self.nullable, [-1]])
        self.points = Points(seed, len(variable))
        self.points.arrange(np.where(variable < 0, np.inf, splits[variable]))
        self._common: dict[range, Floats] = {}
        self.row_bytes = 8 * WORD * max(1, self.n_variables)
        kept = 8 * WORD * WORDS * ensemble.n_outputs
        self.chunk = min(max(KEPT_BYTES // kept, LEAST_ROWS), MOST_ROWS_OF_CHUNK)
        self.chunk_of_means = min(4 * self.chunk, MOST_ROWS_OF_MEANS)

    @cached_property
    def leaf_sets(self) -> list[LeafSets]:
        """The trees' sets of leaves; empty if some tree is too large for a word."""
        return leaf_sets(self.ensemble)

    @cached_property
    def range_sets(self) -> list[RangeSets]:
        """The leaves that ranges of draws are compatible with."""
        return [RangeSets.of(group) for group in self.leaf_sets]

    @cached_property
    def small(self) -> SmallTrees | None:
        """The small trees, whose splits divide draws; None if draws walk the trees."""
        return SmallTrees.of(self.leaf_sets, self.forest) if self.leaf_sets else None

    def _sets(self, points: Floats) -> Words | None:
        """The leaves of each small tree that observed values are compatible with, (rows, trees)."""
        if self.small is None:
            return None
        out = np.empty((len(points), len(self.small.output)), dtype=np.uint64)
        first = 0
        for group in self.leaf_sets:
            kernels_of_sets.read_rows(points, group, first, out)
            first += len(group.root)
        return out

    def _narrowed(self, points: Floats, draws: Floats) -> Words:
        """The leaves among them that each word of draws can reach, (rows, words, trees)."""
        sets = self._sets(points)
        assert sets is not None
        out = np.empty((len(sets), draws.shape[2] // WORD, sets.shape[1]), dtype=np.uint64)
        first = 0
        for group, ranges in zip(self.leaf_sets, self.range_sets, strict=True):
            kernels_of_sets.narrow_rows(points, draws, group, ranges, sets, first, out)
            first += len(group.root)
        return out

    def _leaves(self, rounded: bool = False) -> LeafValues:
        return LeafValues.of(self.value, self.ensemble.base, self.small, rounded)

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
            # Each later part has as many draws as all parts before it.
            words = FIRST_WORDS_OF_MARGINS << (sums.shape[1] - 1)
            return mean_and_error(sums.sum(axis=1) / (SIZE * words))

        first = FIRST_WORDS_OF_MARGINS
        return self._refined(evidence, collect, settle, self.tolerance, change_of(IDENTITY), first)

    def group_margins(self, evidence: Evidence, words: range) -> Floats:
        """Mean margins of the independent groups of some words, (rows, groups, outputs)."""
        if not len(evidence.points):
            return np.empty((0, GROUPS, self.ensemble.n_outputs))
        step = self._rows_at_once(len(words))
        parts = (evidence[i : i + step] for i in range(0, len(evidence.points), step))
        sums = np.concatenate([self._group_sums(part, words)[:, 0] for part in parts])
        return np.asarray(sums / (SIZE * len(words)))

    def of_draws(
        self,
        evidence: Evidence,
        statistic: Statistic,
        change: Change,
        tolerance: Tolerance = NONE,
        least: LeastError | None = None,
        link: Callable[[Floats], Floats] = IDENTITY,
    ) -> tuple[Floats, Floats]:
        """A statistic of the draws' margins, and its standard error, at most its ``change``.

        ``least`` tells what rare values give it, of answers through ``link``.
        """

        def settle(margins: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
            return statistic(by_group(margins), rows)

        value, error, _ = self._refined(
            evidence, self.margins_of(evidence), settle, tolerance, change,
            least=least, link=link,
        )  # fmt: skip
        return value, error

    def mean(
        self, evidence: Evidence, mean: MeanOf, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """Means of predictions, and their standard errors."""
        margins = self.margins_of(evidence, rounded=True)

        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            return mean.summary(margins(rows, words))

        change = change_of(self.ensemble.link)
        value, error, _ = self._refined(
            evidence, collect, mean.settle, tolerance, change,
            least=Rare.error_of_mean, link=mean.link,
        )  # fmt: skip
        return value, error

    def moments(self, evidence: Evidence) -> Moments:
        """Moments of the draws' margins; the tolerance is for mean and standard deviation."""
        change, tolerance = change_of_mean_and_std, self.tolerance.repeated(2)
        found, error = self.of_draws(evidence, mean_and_std, change, tolerance, Rare.error_of_both)
        mean, std = np.split(found, 2, axis=1)
        error, std_error = np.split(error, 2, axis=1)
        return Moments(mean, std, error, std_error)

    def entries(self, evidence: Evidence, by_group: bool = False) -> Iterator[Entries]:
        """Fraction of the draws that reach each leaf, with as many draws as for the margin.

        With ``by_group``, separately for each group of draws: row r of a group has the number
        r * GROUPS + group.
        """
        _, _, words = self._refined_margin(evidence)
        for n in np.unique(words).tolist():
            rows = np.flatnonzero(words == n)
            step = self._rows_at_once(n)
            for start in range(0, len(rows), step):
                some = rows[start : start + step]
                draws = self._draws(evidence[some], range(n))
                for word in range(n):
                    for first, reached in self._reached(evidence[some], draws, word):
                        counts = np.diff(reached.stop[:, -1], prepend=0)
                        row = np.repeat(some[first : first + len(counts)], counts)
                        if not by_group:
                            share = np.bitwise_count(reached.mask) / (WORD * n)
                            yield Entries(row.astype(np.int32), reached.leaf, share)
                            continue
                        parts = reached.mask[:, None] >> FIRST_BITS & GROUP_BITS
                        share = np.bitwise_count(parts) / (SIZE * n)
                        yield Entries(*by_groups(row, reached.leaf), share.ravel())

    def leaf_probabilities_by_group(self, evidence: Evidence) -> sparse.csr_matrix:
        """Leaf probabilities by independent groups of draws, (rows * groups, leaves).

        The groups of a row are adjacent.
        """
        from scipy import sparse

        parts = []
        for rows, part in evidence.parts():
            for row, leaf, share in self.entries(part, by_group=True):
                parts.append((rows[row // GROUPS] * GROUPS + row % GROUPS, leaf, share))
        row, leaf, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        shape = len(evidence.points) * GROUPS, self.ensemble.n_leaves
        return sparse.csr_matrix((share, (row, leaf)), shape=shape)

    def _reached(
        self, evidence: Evidence, draws: Floats, word: int = 0
    ) -> Iterator[tuple[int, Reached]]:
        """Leaves that a word of draws (rows, variables, draws) reaches, some rows at a time."""
        points, leaves, row = self._points(evidence), self._leaves(), 0
        sets = self._sets(points)
        # A word of draws reaches no more leaves of a tree than it has draws.
        most = int(np.minimum(np.diff(self.ensemble.leaf_start), WORD).sum())
        capacity = max(ENTRIES, most)
        while row < len(points):
            first = row
            out = Reached(
                np.empty(capacity, np.int32),
                np.empty(capacity, np.uint64),
                np.empty((len(points), self.ensemble.n_trees), dtype=np.int64),
            )
            count, row = kernels.fill_reached(
                points, sets, draws, word, self.forest, self.small, leaves, row, out
            )
            yield first, Reached(out.leaf[:count], out.mask[:count], out.stop[first:row])

    # ---- what learning adds up over rows: errors of rows with draws of their own cancel out -----

    def masks(self, evidence: Evidence, word: int) -> Reached:
        """Leaves that one word of a chunk's draws reaches, with the bits of these draws."""
        keys = row_keys(evidence.points, evidence.allowed)
        draws = self._draws(evidence, range(word, word + 1), keys)
        parts = [reached for _, reached in self._reached(evidence, draws)]
        ends = np.cumsum([0, *(len(part.leaf) for part in parts)])
        return Reached(
            np.concatenate([np.empty(0, np.int32), *(part.leaf for part in parts)]),
            np.concatenate([np.empty(0, np.uint64), *(part.mask for part in parts)]),
            np.concatenate(
                [
                    np.empty((0, self.ensemble.n_trees), np.int64),
                    *(part.stop + end for part, end in zip(parts, ends, strict=False)),
                ]
            ),
        )

    # ---- draws -----------------------------------------------------------------------------------

    def _points(self, evidence: Evidence) -> Floats:
        return np.ascontiguousarray(self.merged.points(evidence.points))

    def _draws(self, evidence: Evidence, words: range, keys: Words | None = None) -> Floats:
        """Draws (rows, variables, 64 * words), from common points or from points of ``keys``.

        Entries of observed values are meaningless.
        """
        uniform = self._uniform(words) if keys is None else self.points.uniform(words, keys)
        drawn = draw(self.density, evidence, uniform)
        return self.merged.points(np.ascontiguousarray(drawn.transpose(0, 2, 1)))

    def _uniform(self, words: range) -> Floats:
        """The common points of some words, cached because the same words are needed repeatedly."""
        if words not in self._common:
            self._common[words] = self.points.uniform(words, COMMON)
        return self._common[words]

    def __getstate__(self) -> dict[str, Any]:
        """Without points, which are quickly recomputed."""
        return self.__dict__ | {"_common": {}}

    def _group_sums(self, evidence: Evidence, words: range) -> Floats:
        """Margins summed over the draws of each group, (rows, 1, groups, outputs)."""
        if self.small is None or not self.forest.plain:
            return np.asarray(by_group(self.margins(evidence, words)).sum(axis=2)[:, None])
        points, draws, leaves = self._points(evidence), self._draws(evidence, words), self._leaves()
        out = np.empty((len(points), GROUPS, self.ensemble.n_outputs))
        kernels.fill_group_sums(
            self._narrowed(points, draws), draws, self.forest, self.small, leaves, out
        )  # fmt: skip
        return out[:, None]

    def margins_of(self, evidence: Evidence, rounded: bool = False) -> Collect:
        """A function for :meth:`margins` of rows of a chunk, for repeated calls."""
        return lambda rows, words: self.margins(evidence[rows], words, rounded)

    def margins(self, evidence: Evidence, words: range, rounded: bool = False) -> Floats:
        """Margins of the draws themselves, (rows, words, 64, outputs).

        ``rounded``: leaf values may be rounded, with an error far below that of draws.
        """
        points, leaves = self._points(evidence), self._leaves(rounded)
        out = np.empty((len(points), len(words), WORD, self.ensemble.n_outputs))
        kernels.fill_margins(
            points, self._sets(points), self._draws(evidence, words), self.forest, self.small,
            leaves, out,
        )  # fmt: skip
        return out

    def _refined(
        self,
        evidence: Evidence,
        collect: Collect,
        settle: Callable[[Floats, NDArray[np.intp]], tuple[Floats, Floats]],
        tolerance: Tolerance,
        change: Change,
        first: int = FIRST_WORDS,
        least: LeastError | None = None,
        link: Callable[[Floats], Floats] = IDENTITY,
    ) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Answers, their standard errors, and the number of words of each row.

        ``collect`` is asked for consecutive words of some rows, ``settle`` makes answers of all
        that was collected, (rows, parts, ...). Rows with a larger error than allowed get twice as
        many words. No error is larger than the ``change`` that missing values can make, and none
        smaller than what ``least`` tells of values that draws hardly meet.
        """
        rare = None
        if least is not None and tolerance.rare:
            rare = self._rare(evidence, WORD * first, tolerance, least, link)

        def collected(rows: NDArray[np.intp], words: range) -> Floats:
            step = self._rows_at_once(len(words))
            parts = [rows[i : i + step] for i in range(0, max(1, len(rows)), step)]
            return np.concatenate([collect(part, words) for part in parts])

        def settled(kept: Floats, rows: NDArray[np.intp], words: int) -> tuple[Floats, Floats]:
            value, error = settle(kept, rows)
            resolved = RESOLUTION * tolerance.unit / (WORD * words)
            told = np.hypot(error, resolved)
            if rare is not None and least is not None:
                told = np.maximum(told, least(rare.of(rows), Told(link, WORD * words, value)))
            few = np.flatnonzero((error < LEAST_OF_RANGE * resolved).any(axis=1))
            if len(few):
                ends = self.ensemble.margin_range(self._points(evidence[rows[few]]), 1)
                told[few] = np.minimum(told[few], change(*ends))
            return value, told

        sizes = [first]
        while sizes[-1] < self.max_words:
            sizes.append(2 * sizes[-1])
        n_rows = len(evidence.points)
        return refine(n_rows, sizes, collected, settled, tolerance, lambda before, now: DECAY)

    @cached_property
    def rare_cells(self) -> tuple[list[Cell], Floats, Floats]:
        """Cells that may be rare, and margins of 64 rows drawn, in each cell and as drawn.

        Margins are (cells, rows, outputs) and (rows, outputs).
        """
        cells, n = cells_of(self.merged, self.density), self.ensemble.n_outputs
        if not cells:
            return [], np.empty((0, WORD, n)), np.empty((WORD, n))
        nothing = np.full((1, self.n_variables), np.nan)
        drawn, inside = self._draws(Evidence(nothing), range(1)), []
        for cell in cells:
            point = nothing.copy()
            point[:, cell.within.variable] = cell.value
            inside.append(self._margins_at(point, drawn)[0])
        return cells, np.array(inside), self._margins_at(nothing, drawn)[0]

    def _rare(
        self,
        evidence: Evidence,
        draws: int,
        tolerance: Tolerance,
        least: LeastError,
        link: Callable[[Floats], Floats],
    ) -> Rare | None:
        """What so many draws of a chunk's rows may have missed; None where that is nothing."""
        cells, inside, beside = self.rare_cells
        if not cells:
            return None
        effect = np.abs(link(inside) - link(beside))
        largest = max(float(effect.max()), np.finfo(np.float64).tiny)
        changes = tuple(
            largest * ((effect / largest) ** power).mean(axis=1) ** (1 / power) for power in (2, 4)
        )
        most = effect.max(axis=(1, 2)) / (SHARE * tolerance.unit.min())
        little = least_masses(most, draws if least is Rare.error_of_mean else 1)
        mass = masses(self.density, evidence, cells)
        pairs = pairs_of(mass, cells, draws, little)
        alone = pairs.second < 0
        mass[pairs.row[alone], pairs.first[alone]] = 0.0
        if not len(pairs.row):
            none = np.empty((0, PROBES, self.ensemble.n_outputs))
            return Rare(pairs.row, pairs.mass, none, none, mass, changes)
        some = evidence[np.unique(pairs.row)]
        drawn = draw(self.density, some, self._uniform(range(1))[:, :PROBES])
        drawn = self.merged.points(np.ascontiguousarray(drawn.transpose(0, 2, 1)))
        probes = Probes.of(pairs, cells, drawn)
        margins = self._margins_at(self._points(some)[probes.row], probes.draws)
        return Rare(pairs.row, pairs.mass, *probes.margins(margins), mass, changes)

    def _margins_at(self, points: Floats, draws: Floats) -> Floats:
        """Margins (rows, draws, outputs) of a word of draws (rows, variables, draws)."""
        out = np.empty((len(points), 1, WORD, self.ensemble.n_outputs))
        kernels.fill_margins(
            points, self._sets(points), draws, self.forest, self.small, self._leaves(), out
        )
        return out[:, 0]


class MixtureMonteCarlo(MonteCarloEngine):
    """Draws under a mixture: the first words of draws are shared by all rows.

    Given the component, missing values are independent of observed ones, and predictions use the
    same points for all rows. So each draw's values in every component, and its side of every split,
    are computed once for all rows, when they are first needed. If two threads do so at the same
    time, their results are equal.
    """

    def __init__(self, ensemble: Ensemble, density: Mixture, seed: int) -> None:
        super().__init__(ensemble, density, seed)
        self._made: list[SharedDraws] = []

    @cached_property
    def shared_words(self) -> int:
        """Number of shared words that fit in memory."""
        if self.small is None:
            return 0
        n, slots = len(self.density.weights_), int(self._slots[0][-1])
        size = LANES * n * (WORD * slots + 8 * len(self.forest.set_nodes) + 1)
        return LANES * (SHARED_BYTES // size)

    def _rows_at_once(self, words: int) -> int:
        if not self.shared_words:
            return super()._rows_at_once(words)
        return max(MARGIN_BYTES // (8 * WORD * words * self.ensemble.n_outputs), LEAST_ROWS)

    def mean(
        self, evidence: Evidence, mean: MeanOf, tolerance: Tolerance = NONE
    ) -> tuple[Floats, Floats]:
        """Exact if a single number is missing; more draws are quicker than correcting few."""
        mean.after = CORRECTED * WORD
        if evidence.allowed is not None:
            return super().mean(evidence, mean, tolerance)
        points, ensemble = self._points(evidence), self.ensemble
        numbers = (ensemble.n_levels == 0) & ~ensemble.columns.nullable
        variable = single_missing(points[:, : len(numbers)], self.forest.look.used, numbers)
        single = np.flatnonzero(variable >= 0)
        impossible, share, _ = self._shares(evidence[single])
        single, share = single[~impossible], share[~impossible].sum(axis=1)
        rest = np.setdiff1d(np.arange(len(points)), single, assume_unique=True)
        if not len(single):
            return super().mean(evidence, mean, tolerance)
        value = np.empty((len(points), ensemble.n_responses))
        error = np.zeros_like(value)
        value[rest], error[rest] = super().mean(evidence[rest], mean.of(rest), tolerance)
        sets = self._sets(points[single])
        for number in np.unique(variable[single]).tolist():
            n_cells = int(np.diff(self.forest.look.offset[number : number + 2])[0])
            rows = np.flatnonzero(variable[single] == number)
            step = self._rows_at_once(1 + n_cells // WORD)
            for part in (rows[i : i + step] for i in range(0, len(rows), step)):
                if sets is None:
                    margins, weight = self._walked_cells(number, points[single[part]], share[part])
                else:
                    margins, weight = self._cells(number, sets[part], share[part])
                values = np.ascontiguousarray(mean.link(margins))
                out = np.zeros((len(part), values.shape[2]))
                shared_draws.add_cells(weight, values, out)
                value[single[part]] = out
        return value, error

    def _cells(self, number: int, sets: Words, share: Floats) -> tuple[Floats, Floats]:
        """Margins and masses of rows between the thresholds of their only missing number."""
        start, stop = self.forest.look.offset[number : number + 2].tolist()
        mass = np.ascontiguousarray(np.diff(self._below[start:stop], axis=0).T)
        margins = np.empty((len(sets), mass.shape[1], self.ensemble.n_outputs))
        weight = np.empty((len(sets), mass.shape[1]))
        shared_draws.fill_cells(
            sets, share, self.small, self._leaves(), start, mass, margins, weight
        )
        return margins, weight

    def _walked_cells(self, number: int, points: Floats, share: Floats) -> tuple[Floats, Floats]:
        """:meth:`_cells` for trees with vector leaves, or with too many leaves for a set."""
        thresholds = self._grid.thresholds[number]
        start, stop = self._grid.offset[number : number + 2].tolist()
        mass = np.ascontiguousarray(np.diff(self._below[start:stop], axis=0).T)
        inside = np.concatenate(
            [np.nextafter(thresholds[:1], -np.inf), thresholds]
        )  # a value of each cell
        low, high = self.ensemble.sentinel[number]
        inside = np.where((low <= inside) & (inside <= high), np.nextafter(high, np.inf), inside)
        rows = np.repeat(points, len(inside), axis=0)
        rows[:, number] = np.tile(inside, len(points))
        margins = self.ensemble.margin(rows, 1)
        weight = np.zeros((len(points), len(inside)))
        for component, each in zip(share.T, mass, strict=True):
            # Not a matrix product, whose last bit depends on the number of rows.
            weight += component[:, None] * each
        return margins.reshape(len(points), len(inside), -1), weight

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(self.ensemble)

    @cached_property
    def _below(self) -> Floats:
        """The mass of each component below every threshold, (rows of masks, components)."""
        return self._grid.masses(self.density.distributions_, self.merged)

    def margins(self, evidence: Evidence, words: range, rounded: bool = False) -> Floats:
        """Margins of the draws themselves, (rows, words, 64, outputs)."""
        return self.margins_of(evidence, rounded)(np.arange(len(evidence.points)), words)

    def margins_of(self, evidence: Evidence, rounded: bool = False) -> Collect:
        """A function for :meth:`margins` of rows of a chunk, for repeated calls."""
        of_rows, last = super().margins, self.shared_words
        if self.small is None or evidence.allowed is not None:
            return lambda rows, words: of_rows(evidence[rows], words, rounded)
        impossible, share, odds = self._shares(evidence)
        # Odds by which a value was more likely recorded are not tabulated.
        apart, sets = impossible | (odds < 1).any(axis=(1, 2)), self._sets(self._points(evidence))
        assert sets is not None
        leaves = self._leaves(rounded)
        share = share.reshape(len(share), share.shape[1] * share.shape[2])
        telling = self._telling(odds)

        def collect(rows: NDArray[np.intp], words: range) -> Floats:
            middle = min(max(words.start, last), words.stop)
            out = np.empty((len(rows), middle - words.start, WORD, self.ensemble.n_outputs))
            shared_draws.fill_shared_margins(
                share[rows], sets[rows], self._shared(middle), words.start,
                telling._replace(odds=telling.odds[rows] if len(telling.odds) else telling.odds),
                self._slots[1], self.small, leaves, out,
            )  # fmt: skip
            if middle < words.stop:
                rest = of_rows(evidence[rows], range(middle, words.stop), rounded)
                out = np.concatenate([out, rest], axis=1)
            slow = apart[rows]
            if slow.any():
                out[slow] = of_rows(evidence[rows[slow]], words, rounded)
            return out

        return collect

    def _shares(self, evidence: Evidence) -> tuple[NDArray[np.bool_], Floats, Floats]:
        """Impossible rows, probabilities of hypotheses and components, and odds of the hypotheses.

        (rows,), (rows, hypotheses, components) and (rows, hypotheses, nullable variables).
        """
        row, chance, cases = (
            np.arange(len(evidence.points)),
            np.ones(len(evidence.points)),
            evidence,
        )
        number = np.zeros_like(row)
        if evidence.hypotheses is not None:
            row, chance, cases = evidence.cases()
            number = np.nonzero(evidence.hypotheses.chance)[1]
        log_p, share = self.density.responsibilities(cases)
        shape = len(evidence.points), int(number.max(initial=0)) + 1
        shares, odds = np.zeros((*shape, share.shape[1])), np.ones((*shape, len(self.nullable)))
        shares[row, number] = chance[:, None] * share
        if cases.odds is not None:
            points = cases.points[:, self.nullable]
            not_recorded = ~np.isnan(points) & np.isnan(evidence.points[row][:, self.nullable])
            odds[row, number] = np.where(not_recorded, np.inf, cases.odds[:, self.nullable])
            odds[row, number] = np.where(np.isnan(points) | not_recorded, odds[row, number], 1.0)
        impossible = np.zeros(shape[0], dtype=np.bool_)
        impossible[row[np.isneginf(log_p)]] = True
        return impossible, shares, odds

    def _telling(self, odds: Floats) -> DrawOdds:
        of_row, goes_left, not_recorded = self._nullable_splits
        if (odds == 1).all():
            odds = np.empty((0, 0, 0))
        return DrawOdds(odds, not_recorded, of_row, goes_left)

    @cached_property
    def _nullable_splits(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], Floats]:
        """See the fields of :class:`DrawOdds`."""
        forest, ensemble = self.forest, self.ensemble
        place = np.full(len(ensemble.columns), -1)
        place[self.nullable] = np.arange(len(self.nullable))
        of_row = np.full(forest.n_masks, -1)
        goes_left = np.zeros(forest.n_masks, dtype=np.bool_)
        inner = np.flatnonzero(ensemble.feature >= 0)
        of_row[forest.mask_row[inner]] = place[ensemble.feature[inner]]
        own, code = forest.set_nodes, self.merged.not_recorded()
        goes_left[forest.mask_row[own]] = ensemble.missing_left[own]
        for v in np.flatnonzero(code >= 0).tolist():
            nodes = own[ensemble.feature[own] == v]
            sets = unpack_at(ensemble.sets, ensemble.set_start[nodes], int(ensemble.n_levels[v]))
            goes_left[forest.mask_row[nodes]] = sets[:, code[v]]
        distributions = self.density.distributions_
        probability = [distributions[v].not_recorded() for v in self.nullable.tolist()]
        return of_row, goes_left, np.array(probability).reshape(-1, len(self.density.weights_))

    @cached_property
    def _slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return slots_of(self.forest.look)

    def _shared(self, words: int) -> SharedDraws:
        """Draws of at least this many words, in each component."""
        made = self._made[0] if self._made else self._make(0)
        start = len(made.cells)
        if not self._made or LANES * start < words:
            parts = [made, *map(self._make, range(start, -(-words // LANES)))]
            made = SharedDraws(*map(np.concatenate, zip(*parts, strict=True)))
            self._made[:] = [made]
        return made

    def _make(self, four: int) -> SharedDraws:
        """Shared draws of four words."""
        words = range(LANES * four, LANES * (four + 1))
        uniform = self.points.uniform(words, COMMON)
        n, first = len(self.density.weights_), self.density.state_coordinates
        shape = n, uniform.shape[1], len(self.density.distributions_)
        states = np.broadcast_to(np.arange(n)[:, None, None], shape)
        used = self.forest.look.used
        rows = [np.arange(n if v < len(used) and used[v] else 0) for v in range(shape[2])]
        given = np.broadcast_to(uniform[:, :, first : first + shape[2]], shape)
        draws = self.density.draw_given(rows, states, given).transpose(0, 2, 1)
        draws = np.ascontiguousarray(self.merged.points(draws))
        status = np.zeros((1, uniform.shape[1]))
        if len(self.nullable):
            status = np.ascontiguousarray(uniform[0, :, -1 - len(self.nullable) : -1].T)
        return draws_in_components(uniform[0, :, 0].copy(), status, draws, self.forest)

    def __getstate__(self) -> dict[str, Any]:
        """Without the shared draws, which are large and quickly recomputed."""
        return super().__getstate__() | {"_made": []}


def by_groups(row: NDArray[Any], leaf: Integers) -> tuple[Integers, Integers]:
    """The entries of rows, repeated for each group of draws; see ``MonteCarloEngine.entries``."""
    rows = row[:, None] * GROUPS + np.arange(GROUPS)
    return rows.ravel().astype(np.int32), np.repeat(leaf, GROUPS)


def single_missing(
    points: Floats, used: NDArray[np.bool_], numbers: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """The only used variable that is missing in each row, if it is numeric; otherwise -1.

    Examples
    --------
    >>> yes, nan = np.array([True, True]), np.nan
    >>> points = np.array([[1.0, nan], [nan, nan], [nan, 2.0], [1.0, 2.0]])
    >>> single_missing(points, used=yes, numbers=yes).tolist()
    [1, -1, 0, -1]
    """
    missing = np.isnan(points) & used
    variable = missing.argmax(axis=1)
    return np.where((missing.sum(axis=1) == 1) & numbers[variable], variable, -1)
