"""The learner of latent trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Kind
from knothole.densities.em import Run
from knothole.densities.held_out import FEW_ROWS_TO_SEARCH
from knothole.densities.latent_tree.chow_liu import Tree, chow_liu
from knothole.densities.latent_tree.em import TreeParameters, expect, maximise
from knothole.densities.latent_tree.training import (
    Task,
    TreeRun,
    independent,
    learn_tree,
    log_densities,
)
from knothole.densities.learner import EmissionLearner
from knothole.densities.rows import EncodedRows, WeightedRows
from knothole.densities.search import fit_and_refine

# The ranking of edges needs no more rows than this.
ROWS_FOR_STRUCTURE = 20_000
# Numbers of states to choose from, each needing some rows.
STATES = (4, 8, 16, 32)
ROWS_PER_STATE = 10


class TreeLearner(EmissionLearner):
    """Trains latent trees."""

    unit: ClassVar[str] = "states"
    strengths: ClassVar[tuple[float, ...]] = (0.3, 1.5, 8.0, 40.0)

    look: Tree

    @classmethod
    def look_at(cls, rows: WeightedRows) -> Tree:
        """The tree of the variables."""
        some = rows[:ROWS_FOR_STRUCTURE]
        categorical = [variable.kind is Kind.CATEGORICAL for variable in rows.variables]
        return chow_liu(some.points(), some.own_weight(), categorical)

    @property
    def default_strength(self) -> float | None:
        """Many rows find it while they train."""
        return self.strengths[1] if len(self.rows) < FEW_ROWS_TO_SEARCH else None

    def few_rows_for(self, size: int) -> bool:
        """Whether rows are so few that the strength is chosen before, not while, training."""
        return len(self.rows) < FEW_ROWS_TO_SEARCH

    def fit(self, size: int, strength: float | None, held: Any = None) -> TreeRun:
        """Train on all rows; those held out are the judge (all, where there are none)."""
        judges = self.encoded if held is None else held
        if size > 1:
            task = Task(self.encoded, judges, self.training, strength)
            return learn_tree(task, self.look, self.emissions, size)
        run = self.fit_one(strength)
        parameters = independent(self.look, run.parameters.emissions)
        return replace(run, parameters=parameters, held_out=self.score(parameters, judges))

    def fit_like(self, size: int, strength: float | None, runs: Sequence[Run[Any]]) -> TreeRun:
        """Train as ever, with some rows held out: the stages of folds do not add up to a number."""
        return self.fit(1, strength) if size == 1 else fit_and_refine(self, size, strength)

    def refined(self, run: TreeRun) -> TreeRun:
        """One more pass, over all rows."""
        rows, packed = np.arange(len(self.rows)), self.encoded.packed
        found = expect(run.parameters, packed, rows, self.encoded.weight)
        parameters = maximise(run.parameters, packed, found, run.strength)
        return replace(run, parameters=parameters)

    def log_densities(self, parameters: TreeParameters, rows: EncodedRows) -> Floats:
        """Log p of encoded rows."""
        return log_densities(parameters, rows)


def sizes_for(rows: WeightedRows) -> list[int]:
    """1, and numbers of states that so many rows, and the memory, can bear."""
    return rows.affordable([1, *(n for n in STATES if n * ROWS_PER_STATE <= len(rows))])
