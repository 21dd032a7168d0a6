"""Expectations under a Gaussian mixture: exact where that is possible, else by Monte Carlo.

Given the component, categorical variables are independent of each other and of all numeric ones. So
if all numeric values of a row are known, its missing values have a mixture of products with the
responsibilities as weights: rare categories, which few draws may never hit, are integrated exactly.

If a single numeric value of a row is missing, it has a mixture of normals. Every region of one
number is an interval between two thresholds. With F the row's cumulative distribution at all
thresholds, a leaf's probability is the difference of F at the ends of its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from knothole._core import single_missing
from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.gaussian.draws import Normals
from knothole.densities.normal import normal_cdf
from knothole.expectation.engine import Entries
from knothole.expectation.exact.mixture import MixtureEngine
from knothole.expectation.exact.walk import WalkEngine
from knothole.expectation.monte_carlo.engine import MonteCarloEngine, by_groups
from knothole.sobol import GROUPS
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged

# Ways to integrate a row.
DRAWN, BY_CATEGORIES, BY_NUMBER = range(3)
# Range and steps per unit of the tabulated normal distribution. Cubic interpolation, which
# matches its slope too, has an error below 1e-12 (core/single_missing.cpp).
END, STEPS = 8.5, 256.0


class GaussianEngine(MonteCarloEngine):
    """Monte Carlo, but exact if a single number or only categories of a row are missing."""

    def __init__(self, ensemble: Ensemble, density: GaussianMixture, seed: int) -> None:
        super().__init__(ensemble, density, seed)
        used = ensemble.used
        self.numbers = np.flatnonzero(used & (ensemble.n_levels == 0))
        self.labels = np.flatnonzero(used & (ensemble.n_levels > 0))
        self.number_weights = density.number_weights()
        self.exactly: dict[int, WalkEngine] = {
            BY_NUMBER: SingleMissing(ensemble, density.threshold_scores, density.describe_number)
        }
        if len(self.labels):
            self.exactly[BY_CATEGORIES] = MixtureEngine(ensemble, _CategoriesGivenNumbers(density))

    def with_values(self, ensemble: Ensemble) -> Self:
        """The engine for the same trees with other leaf values; all else is shared."""
        other = super().with_values(ensemble)
        other.exactly = {how: each.with_values(ensemble) for how, each in self.exactly.items()}
        return other

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1 where it is exact, with error 0; otherwise the mean over draws."""
        mean = np.empty((len(evidence.points), self.ensemble.n_outputs))
        error = np.empty_like(mean)
        for how, rows in self._ways(evidence):
            if how == DRAWN:
                mean[rows], error[rows] = super().margin(evidence[rows])
            else:
                mean[rows], error[rows] = self._exact_margin(how, evidence[rows]), 0.0
        return mean, error

    def _exact_margin(self, how: int, evidence: Evidence) -> Floats:
        """Expected margins of rows (rows, outputs), over their hypotheses."""
        if evidence.hypotheses is None:
            return self.exactly[how].margin(evidence)[0]
        row, chance, cases = evidence.cases()
        out = np.zeros((len(evidence.points), self.ensemble.n_outputs))
        for some, part in cases.parts():
            found = self.exactly[how].margin(part)[0]
            np.add.at(out, row[some], chance[some, None] * found)
        return out

    def group_margins(self, evidence: Evidence, words: range) -> Floats:
        """Margins by group of draws; all groups are equal where margins are exact."""
        out = np.empty((len(evidence.points), GROUPS, self.ensemble.n_outputs))
        for how, rows in self._ways(evidence):
            if how == DRAWN:
                out[rows] = super().group_margins(evidence[rows], words)
            else:
                out[rows] = self._exact_margin(how, evidence[rows])[:, None]
        return out

    def entries(self, evidence: Evidence, by_group: bool = False) -> Iterator[Entries]:
        """Leaf probabilities of a chunk, in parts; groups are equal where they are exact."""
        for how, rows in self._ways(evidence):
            part = evidence[rows]
            if how == DRAWN:
                n = GROUPS if by_group else 1
                for entries in super().entries(part, by_group):
                    place = rows[entries.row // n] * n + entries.row % n
                    yield entries._replace(row=place.astype(np.int32))
                continue
            row, chance = np.arange(len(rows)), np.ones(len(rows))
            if part.hypotheses is not None:
                row, chance, part = part.cases()
            for some, cases in part.parts():
                for entries in self.exactly[how].entries(cases):
                    case = some[entries.row]
                    place = rows[row[case]].astype(np.int32)
                    found = Entries(place, entries.leaf, entries.probability * chance[case])
                    if by_group:
                        of_groups = by_groups(place, entries.leaf)
                        found = Entries(*of_groups, np.repeat(found.probability, GROUPS))
                    yield found

    def _ways(self, evidence: Evidence) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """How rows are integrated, and which rows. (Drawing an observed value would do no harm.)"""
        points = evidence.points
        numbers = np.isnan(points[:, self.numbers]).any(axis=1)
        labels = np.isnan(points[:, self.labels]).any(axis=1)
        way = np.where(labels & ~numbers, BY_CATEGORIES, DRAWN)
        if evidence.allowed is None:
            one = ~np.isfinite(points) @ self.number_weights == 1
            way[numbers & ~labels & one] = BY_NUMBER
        for how in (DRAWN, *self.exactly):
            rows = np.flatnonzero(way == how)
            if len(rows):
                yield how, rows


class _CategoriesGivenNumbers:
    """A Gaussian mixture as a mixture of products, for rows whose numbers are all known."""

    def __init__(self, density: GaussianMixture) -> None:
        self.responsibilities = density.responsibilities
        self.variables_ = density.variables_
        categories: dict[int, Any] = density.distributions_of_categories()
        self.distributions_ = tuple(categories.get(v) for v in range(len(density.variables_)))


class SingleMissing(WalkEngine):
    """Exact expectations for rows in which a single number is missing.

    Parameters
    ----------
    ensemble : Ensemble
        Over variables.
    threshold_scores : callable
        From a variable and its thresholds to the z with P(X < threshold) = P(Z < z).
    describe_number : callable
        From evidence to the distribution of the score z of each row's only missing number.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        threshold_scores: Callable[[int, Floats], Floats],
        describe_number: Callable[[Evidence], Normals],
    ) -> None:
        super().__init__(Merged.of(ensemble), [None] * len(ensemble.columns))
        self.describe_number = describe_number
        ensemble, grid = self.ensemble, self.grid
        self.score = np.full(int(grid.offset[-1]), np.inf)
        for v, (first, thresholds) in enumerate(
            zip(grid.offset.tolist(), grid.thresholds, strict=False)
        ):
            if len(thresholds):
                self.score[first + 1 : first + 1 + len(thresholds)] = threshold_scores(
                    v, thresholds
                )
        numeric = (ensemble.feature >= 0) & (ensemble.set_start < 0)
        row = np.where(numeric, grid.offset[np.maximum(ensemble.feature, 0)] + grid.position, 0)
        self.node_score = np.where(numeric, np.append(self.score, 0.0)[row], 0.0)
        self.numeric = np.flatnonzero(ensemble.n_levels == 0)

    def margin(self, evidence: Evidence) -> tuple[Floats, Floats]:
        """Prop. 1; the error is 0."""
        if not self.leaf_sets:
            return super().margin(evidence)
        out = np.tile(self.ensemble.base, (len(evidence.points), 1))
        points, normals = self._points(evidence), self.describe_number(evidence)
        value = np.ascontiguousarray(self.value[:, 0])
        for trees in self.leaf_sets:
            single_missing.add_expected(
                points, normals, trees, self.node_score, normal_table(), value, out
            )
        return out, np.zeros_like(out)

    def _given(self, evidence: Evidence, regions: bool) -> NumberGiven:
        points = self.merged.points(evidence.points)
        variable = self.numeric[np.isnan(points[:, self.numeric]).argmax(axis=1)]
        normals = self.describe_number(evidence)
        known = self._known(evidence)
        return NumberGiven(known, variable, normals, self.score, normal_table())


class NumberGiven(NamedTuple):
    """The distributions of the rows' missing numbers, as densities with one component."""

    known: Any  # RegionRows
    variable: Any  # (rows,) the missing variable
    normals: Any  # Normals of the rows
    score: Any  # (grid rows,) of thresholds
    table: Any  # see `normal_table`

    @property
    def kernels(self) -> Any:
        """The kernels for these arguments."""
        return single_missing


@cache
def normal_table() -> Floats:
    """P(Z < z) and its slope per step, at multiples of a step from -END on, (steps + 1, 2)."""
    z = np.arange(int(2 * END * STEPS) + 2) / STEPS - END
    return np.stack([normal_cdf(z), np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / STEPS], axis=1)
