"""Training a mixture of products of a given size: several starts, then more and more rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.emissions import start_emission
from knothole.densities.emissions.base import Emission
from knothole.densities.emissions.packed import Packed, pack
from knothole.densities.mixture.em import Components, Run, log_densities, train
from knothole.densities.mixture.start import comparable, start
from knothole.tables.columns import Evidence, Kind, Variable

# Rows for the first steps, and how many times as many each further stage has.
FIRST_ROWS = 8192
GROWTH = 4
# Steps of each start, and of each stage before the last.
SHORT = 10
# Steps on all rows, those held out included, after training has stopped.
REFINE = 5


@dataclass(frozen=True)
class Settings:
    """How to train, whatever the rows.

    ``may_mask`` allows to make holes in rows held out: not where holes themselves are variables.
    """

    families: Mapping[str, str]
    max_iter: int
    tol: float
    n_init: int
    seed: int
    may_mask: bool
    report: Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of evidence, which ``order`` names: in random order, each with weight."""

    variables: Sequence[Variable]
    evidence: Evidence
    weight: Floats
    order: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> Table:
        return replace(self, order=self.order[rows])


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to learn from: encoded, their weights, and the first of them on one scale."""

    packed: Packed
    weight: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(self.packed[rows], self.weight[rows], self.value[rows])

    def score(self, components: Components) -> float:
        """Weighted mean of log p."""
        return float(np.average(log_densities(self.packed, components), weights=self.weight))


@dataclass(frozen=True, eq=False)
class Trainer:
    """Everything that training needs but the size of the mixture and the prior's strength.

    Attributes
    ----------
    rows : Rows
        Of the table, in its order.
    emissions : tuple of Emission
        With one state: the marginals, on which priors are centred.
    """

    rows: Rows
    emissions: tuple[Emission, ...]
    table: Table
    settings: Settings

    def fit(
        self,
        n_components: int,
        strength: float,
        rows: Rows,
        held: Rows | None = None,
        max_iter: int | None = None,
    ) -> Run:
        """The best of several starts, trained on more and more of the rows."""
        few = rows[:FIRST_ROWS]
        starts = range(self.settings.n_init if n_components > 1 else 1)
        runs = [self._short_run(n_components, strength, few, number) for number in starts]
        components = max(runs, key=lambda run: float(run.objective[-1])).components
        size = FIRST_ROWS * GROWTH
        while size < len(rows):
            components = self._train(rows[:size], components, strength, SHORT).components
            size *= GROWTH
        steps = self.settings.max_iter if max_iter is None else max_iter
        return self._train(rows, components, strength, steps, None if held is None else held.score)

    def refined(self, run: Run, strength: float) -> Run:
        """A few more steps on all rows; what is told of the training stays."""
        again = self._train(self.rows, run.components, strength, REFINE)
        return Run(again.components, run.objective, run.steps, run.converged)

    def _short_run(self, n_components: int, strength: float, few: Rows, number: int) -> Run:
        rng = np.random.default_rng([self.settings.seed, n_components, number])
        category = np.array(
            [v.kind is Kind.CATEGORICAL for v in self.table.variables], dtype=np.bool_
        )
        components = start(
            few.packed, few.weight, few.value, category, self.emissions, n_components, strength, rng
        )
        return self._train(few, components, strength, SHORT)

    def _train(
        self,
        rows: Rows,
        components: Components,
        strength: float,
        max_iter: int,
        score: Callable[[Components], float] | None = None,
    ) -> Run:
        tol = self.settings.tol
        return train(rows.packed, rows.weight, components, strength, max_iter, tol, score)


def prepare(table: Table, settings: Settings) -> Trainer:
    """A trainer for the rows of a table."""
    weight = np.zeros(len(table.weight))
    weight[table.order] = table.weight[table.order]
    points = table.evidence.points
    emissions = tuple(
        start_emission(variable, points[:, v], weight, 1, settings.families.get(variable.name))
        for v, variable in enumerate(table.variables)
    )
    value = comparable(points[table.order[:FIRST_ROWS]], table.variables)
    packed = pack(emissions, table.evidence, table.order)
    return Trainer(Rows(packed, table.weight[table.order], value), emissions, table, settings)
