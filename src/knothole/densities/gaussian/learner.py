"""The learner of Gaussian mixtures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.em import Run, Training
from knothole.densities.gaussian.em import GaussianComponents, Prior, ScoreRows, step
from knothole.densities.gaussian.normal_scores import NormalScores
from knothole.densities.gaussian.splits import grown
from knothole.densities.gaussian.variables import Layout
from knothole.densities.learner import SHORT, MixtureLearner
from knothole.densities.mixture.start import CLIP, assign
from knothole.densities.rows import WeightedRows
from knothole.densities.univariate import Categorical
from knothole.densities.univariate.table import Tables

# Sizes to choose from; more components than one need so many rows each, and at most so many
# parameters a row, to be worth trying.
SIZES = (1, 2, 4, 8, 16, 32)
ROWS_PER_COMPONENT = 5
PARAMETERS_PER_ROW = 5
# Components are split by what so many rows say.
ROWS_TO_GROW = 8192
# With more rows than this for each parameter, the strength makes no difference.
ROWS_PER_PARAMETER = 20


@dataclass(frozen=True)
class Covariances:
    """The form of the covariances: one for all components, or of low rank."""

    tied: bool = False
    rank: int | None = None


@dataclass(frozen=True, eq=False)
class GaussianLearner(MixtureLearner):
    """Trains Gaussian mixtures.

    Attributes
    ----------
    form : Covariances
    by_rank : bool (numeric variables,)
        Which of them are taken by rank.
    layout : Layout
    scores : NormalScores
        The maps of the numeric variables.
    emissions : tuple of Categorical
        The discrete variables' marginals: one state each.
    begun : GaussianComponents or None
        What a mixture of as many components starts as.
    """

    one_is_independent: ClassVar[bool] = False
    # What is grown comes to the same again.
    starts_of_folds: ClassVar[int] = 1

    encoded: ScoreRows
    form: Covariances
    by_rank: NDArray[np.bool_]
    layout: Layout
    scores: NormalScores
    emissions: tuple[Categorical, ...]
    begun: GaussianComponents | None = None

    @classmethod
    def of(
        cls, rows: WeightedRows, training: Training, form: Covariances, by_rank: NDArray[np.bool_]
    ) -> Self:
        """A learner for some rows."""
        layout = Layout.of(rows.variables)
        scores, emissions = layout.scores(rows, by_rank), layout.start_emissions(rows)
        weight = rows.own_weight()
        encoded = layout.rows(rows.evidence, weight, scores, emissions, rows.order)
        return cls(rows, encoded, training, form, by_rank, layout, scores, emissions)

    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows, which alone say how columns are read."""
        return self.of(rows, self.training, self.form, self.by_rank)

    def few_rows_for(self, size: int) -> bool:
        """Whether rows are so few that the strength of the prior makes a difference."""
        d = len(self.layout.numeric)
        return len(self.rows) <= ROWS_PER_PARAMETER * size * d * (d + 3) / 2

    def encode(self, rows: WeightedRows) -> ScoreRows:
        """Rows as scores, equal patterns of holes side by side."""
        encoded = self.layout.rows(
            rows.evidence, rows.own_weight(), self.scores, self.emissions, rows.order
        )
        return encoded.by_pattern()

    def prior(self, strength: float) -> Prior:
        """Centred on the variances of the scores."""
        return Prior.of(self.encoded, strength, self.form.tied)

    def start(self, size: int, prior: Prior, number: int) -> GaussianComponents:
        """The first start is grown; others, and where no variable is numeric, are around rows."""
        if self.begun is not None and len(self.begun) == size and number == 0:
            tables = Tables.of([emission.take(np.zeros(size, int)) for emission in self.emissions])
            if tables is not None and self.begun.discrete is not None:
                tables = replace(tables, table=self.begun.discrete.table)
            return replace(self.begun, discrete=tables)
        if size == 1 or number > 0 or not len(self.layout.numeric):
            return self.around_rows(size, prior, number)
        return self.growing.grown(size, prior)

    @cached_property
    def growing(self) -> Self:
        """The same on rows that say which components to split; it remembers what it has grown."""
        return self.first(ROWS_TO_GROW)

    def grown(self, size: int, prior: Prior) -> GaussianComponents:
        """From half of the components; each size once, with the prior that it first has."""

        def train(
            rows: ScoreRows, mixture: GaussianComponents, steps: int
        ) -> Run[GaussianComponents]:
            return replace(self, encoded=rows)._train(mixture, prior, prior.strength, steps)

        if size == 1:
            return train(self.encoded, self.start(1, prior, 0), SHORT).parameters
        if size not in self.sizes_grown:
            half = self.grown((size + 1) // 2, prior)
            self.sizes_grown[size] = grown(self.by_pattern, half, size, prior, train)
        return self.sizes_grown[size]

    @cached_property
    def sizes_grown(self) -> dict[int, GaussianComponents]:
        """Starts of several sizes, for which larger ones are grown from smaller ones."""
        return {}

    def around_rows(self, size: int, prior: Prior, number: int) -> GaussianComponents:
        """Components around rows that are far from each other, as in k-means++."""
        rows = self.encoded
        rng = np.random.default_rng([self.training.seed, size, number])
        d = rows.z.shape[1]
        value = np.clip(rows.z, -CLIP, CLIP)
        category = np.zeros(d, dtype=np.bool_)
        if rows.discrete is not None:
            code = rows.discrete.code
            value = np.hstack([value, np.where(code < 0, np.nan, code)])
            category = np.arange(value.shape[1]) >= d
        nearest = assign(value, category, rows.weight, size, rng)
        share = np.zeros((len(rows), size))
        share[np.arange(len(rows)), nearest] = rows.weight
        known = ~np.isnan(rows.z)
        mean = (share.T @ np.where(known, rows.z, 0.0)) / (share.T @ known + 1)
        covariance = np.tile(np.diag(prior.variance) / (1 if size == 1 else 2), (size, 1, 1))
        weight = share.sum(axis=0) + 1
        everywhere = np.zeros(size, dtype=np.int64)
        tables = Tables.of([emission.take(everywhere) for emission in self.emissions])
        rank = self.form.rank
        loading = np.zeros((size, d, min(rank, d))) if rank is not None and d else None
        return GaussianComponents(weight / weight.sum(), mean, covariance, tables, loading)

    @cached_property
    def by_pattern(self) -> ScoreRows:
        """The rows, equal patterns of holes side by side, which steps are quick on."""
        return self.encoded.by_pattern()

    def step(self, mixture: GaussianComponents, prior: Prior) -> tuple[float, GaussianComponents]:
        """The objective, and the components after a step."""
        return step(self.by_pattern, mixture, prior)

    def log_densities(self, parameters: GaussianComponents, rows: ScoreRows) -> Floats:
        """Log p of encoded rows."""
        return parameters.log_density(rows)


def sizes_for(rows: WeightedRows, n_numeric: int) -> list[int]:
    """Sizes worth trying with so many rows and numeric variables, as far as there is memory."""
    of_one = max(ROWS_PER_COMPONENT, n_numeric * (n_numeric + 3) / 2 / PARAMETERS_PER_ROW)
    return rows.affordable([n for n in SIZES if n == 1 or n * of_one <= len(rows)])
