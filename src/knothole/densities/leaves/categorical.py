"""The categorical leaf."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.columns import Variable
from knothole.densities.leaves.base import Encoded, Floats, Leaf, Natural, Statistics, observed
from knothole.densities.leaves.table import (
    draw_codes,
    maximise_table,
    smoothed_marginal,
    table_prior,
)


@dataclass(frozen=True, eq=False)
class Categorical(Leaf):
    """A probability for each level in each state.

    The prior is Dirichlet, ``strength`` rows with the column's own frequencies.

    Attributes
    ----------
    table : float64 (levels, states)
        Log probabilities.
    marginal : float64 (levels,)
        Frequencies in training, smoothed.
    """

    family: ClassVar[str] = "categorical"
    table: Floats
    marginal: Floats

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.table.shape[1]

    @property
    def n_codes(self) -> int:
        """Number of levels."""
        return self.table.shape[0]

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        x, weight = observed(x, weight)
        n_codes = max(1, len(variable.levels))
        counts = np.bincount(x.astype(np.int64), weights=weight, minlength=n_codes)
        marginal = smoothed_marginal(counts)
        return cls(np.repeat(np.log(marginal)[:, None], n_states, axis=1), marginal)

    def encode(self, x: Floats) -> Encoded:
        """The level's code."""
        code = np.where(np.isnan(x), -1.0, x).astype(np.int32)
        return Encoded(code, np.zeros(len(x)))

    def natural(self) -> Natural:
        """The log probabilities."""
        return Natural(self.table)

    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """Frequencies of the rows and of the prior's rows together."""
        table = maximise_table(statistics.count, self.marginal, strength)
        return replace(self, table=table)

    def log_prior(self, strength: float) -> float:
        """Expected log probability of the prior's rows."""
        return table_prior(self.table, self.marginal, strength)

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of the codes in an interval."""
        code = np.arange(self.n_codes)
        return self.set_mass((code >= low[:, None]) & (code < high[:, None]))

    def set_mass(self, allowed: NDArray[np.bool_]) -> Floats:
        """Mass of sets of levels."""
        return np.asarray(allowed.astype(np.float64) @ np.exp(self.table))

    def sample(self, state: NDArray[np.integer[Any]], rng: np.random.Generator) -> Floats:
        """Codes."""
        return draw_codes(self.table, state, rng).astype(np.float64)

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, table=self.table[:, states])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Fields."""
        return {"table": self.table, "marginal": self.marginal}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """From fields."""
        return cls(arrays["table"], arrays["marginal"])
