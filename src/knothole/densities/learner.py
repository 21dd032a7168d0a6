"""Learners: each trains one kind of density, of a given size and with a given prior.

Which size and which prior is for :mod:`knothole.densities.search` to find.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Kind
from knothole.densities.em import Run, Training, train
from knothole.densities.held_out import FOLDS
from knothole.densities.mixture.em import ProductMixture, step
from knothole.densities.rows import FIRST_ROWS, EncodedRows, WeightedRows
from knothole.densities.univariate.base import Univariate
from knothole.densities.univariate.families import prefers_histogram, with_continuous

# The strength of the prior to begin with, in rows.
STRENGTH = 1.0
# How many times as many rows as the first ones each further stage has.
GROWTH = 4
# Steps of each start, of each stage before the last, and on all rows after training has stopped.
SHORT = 10
REFINE = 5
# Gain per row at which independent variables stop, and their most steps.
TOL_OF_ONE = 1e-10
MAX_ITER_OF_ONE = 500


@dataclass(frozen=True, eq=False)
class Learner(ABC):
    """Trains one kind of density on some rows.

    Attributes
    ----------
    unit : str
        What a size counts.
    strengths : tuple of float
        Of the prior, to choose from, ascending.
    one_is_independent : bool
        Whether size 1 means independent variables, which no prior changes.
    rows : WeightedRows
        What it trains on, and ``encoded`` in its own terms.
    training : Training
        How it trains.
    """

    unit: ClassVar[str] = "components"
    strengths: ClassVar[tuple[float, ...]] = (0.1, STRENGTH, 10.0, 100.0)
    one_is_independent: ClassVar[bool] = True

    rows: WeightedRows
    encoded: Any
    training: Training

    @property
    def default_strength(self) -> float | None:
        """Of the prior, where none is chosen; None: the learner finds it while it trains."""
        return STRENGTH

    @abstractmethod
    def few_rows_for(self, size: int) -> bool:
        """Whether rows are so few that the strength of the prior makes a difference."""

    @abstractmethod
    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows, which alone say how columns are read."""

    def first(self, n: int) -> Self:
        """The same, training on the first of its rows only; columns are read as before."""
        if n >= len(self.rows):
            return self
        return replace(self, rows=self.rows[:n], encoded=self.encoded[:n])

    def alone(self) -> Self:
        """The learner for size 1, with columns read as suits that best."""
        return self

    @abstractmethod
    def encode(self, rows: WeightedRows) -> Any:
        """Rows, with their ``weight``, as :meth:`fit` and :meth:`log_densities` take them."""

    @abstractmethod
    def fit(self, size: int, strength: float | None, held: Any = None) -> Run[Any]:
        """Train on all its rows; those held out say when to stop."""

    @abstractmethod
    def fit_like(self, size: int, strength: float | None, runs: Sequence[Run[Any]]) -> Run[Any]:
        """Train on all its rows, to where the runs of folds came to."""

    @abstractmethod
    def refined(self, run: Run[Any]) -> Run[Any]:
        """A few more steps on all its rows; what is told of the training stays."""

    @abstractmethod
    def log_densities(self, parameters: Any, rows: Any) -> Floats:
        """Log p of encoded rows."""

    def score(self, parameters: Any, rows: Any) -> float:
        """Weighted mean of log p."""
        return float(np.average(self.log_densities(parameters, rows), weights=rows.weight))


class MixtureLearner(Learner):
    """Trains a mixture: several starts, then more and more of the rows.

    A subclass knows how to start, and how to make a step of EM under a prior.
    """

    # As many times the starts of a fold are needed to come to what all folds came to.
    starts_of_folds: ClassVar[int] = FOLDS

    @abstractmethod
    def prior(self, strength: float) -> Any:
        """What :meth:`start` and :meth:`step` take for the prior."""

    @abstractmethod
    def start(self, size: int, prior: Any, number: int) -> Any:
        """A mixture to start with."""

    @abstractmethod
    def step(self, mixture: Any, prior: Any) -> tuple[float, Any]:
        """The objective, and the mixture after a step."""

    def fit(self, size: int, strength: float | None, held: Any = None) -> Run[Any]:
        """The best of several starts, trained on more and more of the rows."""
        strength = STRENGTH if strength is None else strength
        prior = self.prior(strength)
        few = self.first(FIRST_ROWS)
        starts = range(self.training.n_init if size > 1 else 1)
        runs = [few._train(few.start(size, prior, i), prior, strength, SHORT) for i in starts]
        mixture = max(runs, key=lambda run: float(run.objective[-1])).parameters
        part = FIRST_ROWS * GROWTH
        while part < len(self.rows):
            mixture = self.first(part)._train(mixture, prior, strength, SHORT).parameters
            part *= GROWTH
        return self._train(mixture, prior, strength, self.training.max_iter, held)

    def fit_like(self, size: int, strength: float | None, runs: Sequence[Run[Any]]) -> Run[Any]:
        """Train on all rows, for as many steps as served the folds best on average.

        One training must come to what those of all folds came to: it has all their starts.
        """
        steps = max(1, round(np.mean([run.steps for run in runs])))
        n_init = self.starts_of_folds * self.training.n_init
        training = replace(self.training, max_iter=steps, n_init=n_init)
        run = replace(self, training=training).fit(size, strength)
        return replace(run, converged=all(each.converged for each in runs))

    def refined(self, run: Run[Any]) -> Run[Any]:
        """A few more steps on all rows; what is told of the training stays."""
        prior = self.prior(run.strength)
        again = self._train(run.parameters, prior, run.strength, REFINE)
        return replace(run, parameters=again.parameters)

    def _train(
        self, mixture: Any, prior: Any, strength: float, max_iter: int, held: Any = None
    ) -> Run[Any]:
        return train(
            lambda mixture: self.step(mixture, prior),
            mixture,
            strength,
            float(self.encoded.weight.sum()),
            replace(self.training, max_iter=max_iter),
            None if held is None else lambda mixture: self.score(mixture, held),
        )


@dataclass(frozen=True, eq=False)
class LatentLearner(Learner):
    """Trains a density that has one distribution for each variable.

    Attributes
    ----------
    named : mapping
        Families that were asked for, by variable.
    chosen : mapping or None
        Families for others; None: those that fit each variable alone.
    distributions : tuple of Univariate
        With one state: the marginals of the rows, on which priors are centred.
    look : object
        What else a subclass needs to know of all rows.
    """

    named: Mapping[str, str]
    chosen: Mapping[str, str] | None
    distributions: tuple[Univariate, ...]
    look: Any

    @classmethod
    def of(
        cls,
        rows: WeightedRows,
        training: Training,
        named: Mapping[str, str],
        chosen: Mapping[str, str] | None,
    ) -> Self:
        """A learner for some rows."""
        families = continuous_families(rows) if chosen is None else chosen
        distributions = rows.marginals({**families, **named})
        encoded = EncodedRows.of(rows, distributions)
        return cls(rows, encoded, training, named, chosen, distributions, cls.look_at(rows))

    @classmethod
    @abstractmethod
    def look_at(cls, rows: WeightedRows) -> Any:
        """What else there is to know of all rows."""

    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows, which alone say how columns are read."""
        return self.of(rows, self.training, self.named, self.chosen)

    def alone(self) -> Self:
        """The learner for independent variables, each with the family that fits it alone."""
        if self.chosen is None:
            return self
        distributions = self.rows.marginals({**continuous_families(self.rows), **self.named})
        encoded = EncodedRows.of(self.rows, distributions)
        return replace(self, encoded=encoded, chosen=None, distributions=distributions)

    def encode(self, rows: WeightedRows) -> EncodedRows:
        """Rows in terms of the distributions."""
        return EncodedRows.of(rows, self.distributions)

    def fit_one(self, strength: float | None) -> Run[Any]:
        """Independent variables, which have a single maximum, and are trained to it.

        It takes more than a step only where sets of categories are known.
        """
        strength = STRENGTH if strength is None else strength
        rows = float(self.encoded.weight.sum())
        tight = replace(self.training, tol=TOL_OF_ONE, max_iter=MAX_ITER_OF_ONE)
        marginals = ProductMixture(np.ones(1), self.distributions)
        run = train(
            lambda mixture: step(self.encoded, mixture, strength), marginals, strength, rows, tight
        )
        gain = run.objective[-1] - run.objective[-2:][0]
        return replace(run, converged=bool(gain < self.training.tol * rows))


def continuous_families(rows: WeightedRows, family: str | None = None) -> dict[str, str]:
    """The same family for all continuous variables, beside point masses where there are some.

    By default the one that fits each variable on its own.
    """
    found = {}
    for variable, x in zip(rows.variables, rows[:FIRST_ROWS].points().T, strict=True):
        if variable.kind is Kind.CONTINUOUS:
            own = family or ("histogram" if prefers_histogram(x) else "gaussian")
            found[variable.name] = with_continuous(own, variable, x)
    return found
