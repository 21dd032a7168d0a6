"""What the learners of densities that are built from emissions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from knothole.densities.em import Run, Training, train
from knothole.densities.emissions import with_continuous
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.choice import prefers_histogram
from knothole.densities.learner import STRENGTH, Learner
from knothole.densities.mixture.em import ProductMixture, step
from knothole.densities.rows import FIRST_ROWS, EncodedRows, WeightedRows

# Gain per row at which independent variables stop, and their most steps.
TOL_OF_ONE = 1e-10
MAX_ITER_OF_ONE = 500


@dataclass(frozen=True, eq=False)
class EmissionLearner(Learner):
    """Trains a density that has one emission for each variable.

    Attributes
    ----------
    named : mapping
        Families that were asked for, by variable.
    chosen : mapping or None
        Families for others; None: those that fit each variable alone.
    emissions : tuple of Emission
        With one state: the marginals of the rows, on which priors are centred.
    encoded : EncodedRows
        The rows in terms of the emissions.
    """

    one_is_independent: ClassVar[bool] = True

    named: Mapping[str, str]
    chosen: Mapping[str, str] | None
    emissions: tuple[Emission, ...]
    encoded: EncodedRows

    @classmethod
    def of(
        cls,
        rows: WeightedRows,
        training: Training,
        named: Mapping[str, str],
        chosen: Mapping[str, str] | None,
    ) -> Self:
        """A learner for some rows."""
        families = families_alone(rows) if chosen is None else chosen
        emissions = rows.marginals({**families, **named})
        return cls(
            rows=rows,
            training=training,
            named=named,
            chosen=chosen,
            emissions=emissions,
            encoded=EncodedRows.of(rows, emissions),
            **cls.look_at(rows),
        )

    @classmethod
    def look_at(cls, rows: WeightedRows) -> dict[str, Any]:
        """Further fields of a subclass, from the rows."""
        return {}

    def on(self, rows: WeightedRows) -> Self:
        """A learner for other rows, which alone say how columns are read."""
        return self.of(rows, self.training, self.named, self.chosen)

    def first(self, n: int) -> Self:
        """The same, training on the first of its rows only; columns are read as before."""
        return replace(self, rows=self.rows[:n], encoded=self.encoded[:n])

    def alone(self) -> Self:
        """The learner for independent variables, each with the family that fits it alone."""
        if self.chosen is None:
            return self
        return self.of(self.rows, self.training, self.named, None)

    def encode(self, rows: WeightedRows) -> EncodedRows:
        """Rows in terms of the emissions."""
        return EncodedRows.of(rows, self.emissions)

    def fit_one(self, strength: float | None) -> Run[Any]:
        """Independent variables, which have a single maximum, and are trained to it.

        It takes more than a step only where sets of categories are known.
        """
        strength = STRENGTH if strength is None else strength
        rows = float(self.encoded.weight.sum())
        tight = replace(self.training, tol=TOL_OF_ONE, max_iter=MAX_ITER_OF_ONE)
        marginals = ProductMixture(np.ones(1), self.emissions)
        run = train(
            lambda mixture: step(self.encoded, mixture, strength), marginals, strength, rows, tight
        )
        gain = run.objective[-1] - run.objective[-2:][0]
        return replace(run, converged=bool(gain < self.training.tol * rows))


def continuous_families(rows: WeightedRows, family: str) -> dict[str, str]:
    """The same family for all continuous variables, beside point masses where there are some."""
    points = rows[:FIRST_ROWS].points()
    named = {
        variable.name: with_continuous(family, variable, points[:, v])
        for v, variable in enumerate(rows.variables)
    }
    return {name: family for name, family in named.items() if family is not None}


def families_alone(rows: WeightedRows) -> dict[str, str]:
    """The family that fits each continuous variable on its own."""
    points = rows[:FIRST_ROWS].points()
    gaussian = continuous_families(rows, "gaussian")
    histogram = continuous_families(rows, "histogram")
    return {
        variable.name: (histogram if prefers_histogram(points[:, v]) else gaussian)[variable.name]
        for v, variable in enumerate(rows.variables)
        if variable.name in gaussian
    }
