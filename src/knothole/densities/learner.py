"""Learners: each trains one kind of density, of a given size and with a given prior.

Which size and which prior is for :mod:`knothole.densities.search` to find.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np

from knothole.arrays import Floats
from knothole.densities.em import Run, Training, train
from knothole.densities.rows import FIRST_ROWS, WeightedRows

# The strength of the prior to begin with, in rows.
STRENGTH = 1.0
# Parts of few rows that are held out in turn.
FOLDS = 3
# How many times as many rows as the first ones each further stage has.
GROWTH = 4
# Steps of each start, of each stage before the last, and on all rows after training has stopped.
SHORT = 10
REFINE = 5


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
        What it trains on.
    training : Training
        How it trains.
    """

    unit: ClassVar[str]
    strengths: ClassVar[tuple[float, ...]] = (0.1, STRENGTH, 10.0, 100.0)
    one_is_independent: ClassVar[bool]

    rows: WeightedRows
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

    @abstractmethod
    def first(self, n: int) -> Self:
        """The same, training on the first of its rows only; columns are read as before."""

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


class Weighted(Protocol):
    """Encoded rows."""

    @property
    def weight(self) -> Floats:
        """Of each row."""


Mixture = TypeVar("Mixture")
Encoded = TypeVar("Encoded", bound=Weighted)


@dataclass(frozen=True, eq=False)
class MixtureLearner(Learner, Generic[Mixture, Encoded]):
    """Trains a mixture: several starts, then more and more of the rows.

    A subclass knows how to start, and how to make a step of EM under a prior.

    Attributes
    ----------
    encoded : Encoded
        The rows.
    """

    unit: ClassVar[str] = "components"

    encoded: Encoded

    @abstractmethod
    def prior(self, strength: float) -> Any:
        """What :meth:`step` takes for the prior."""

    @abstractmethod
    def start(self, size: int, prior: Any, number: int) -> Mixture:
        """A mixture to start with."""

    @abstractmethod
    def step(self, mixture: Mixture, prior: Any) -> tuple[float, Mixture]:
        """The objective, and the mixture after a step."""

    def fit(self, size: int, strength: float | None, held: Encoded | None = None) -> Run[Mixture]:
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

    def fit_like(self, size: int, strength: float | None, runs: Sequence[Run[Any]]) -> Run[Mixture]:
        """Train on all rows, for as many steps as served the folds best on average.

        One training must come to what those of all folds came to: it has all their starts.
        """
        steps = max(1, round(np.mean([run.steps for run in runs])))
        training = replace(self.training, max_iter=steps, n_init=FOLDS * self.training.n_init)
        run = replace(self, training=training).fit(size, strength)
        return replace(run, converged=all(each.converged for each in runs))

    def refined(self, run: Run[Mixture]) -> Run[Mixture]:
        """A few more steps on all rows; what is told of the training stays."""
        prior = self.prior(run.strength)
        again = self._train(run.parameters, prior, run.strength, REFINE)
        return replace(run, parameters=again.parameters)

    def _train(
        self,
        mixture: Mixture,
        prior: Any,
        strength: float,
        max_iter: int,
        held: Encoded | None = None,
    ) -> Run[Mixture]:
        return train(
            lambda mixture: self.step(mixture, prior),
            mixture,
            strength,
            float(self.encoded.weight.sum()),
            replace(self.training, max_iter=max_iter),
            None if held is None else lambda mixture: self.score(mixture, held),
        )
