"""The categorical emission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Variable
from knothole.densities.univariate.base import Encoded, observed
from knothole.densities.univariate.table import TableEmission, start_table, weight_per_code


@dataclass(frozen=True, eq=False)
class Categorical(TableEmission):
    """A probability for each level: the codes are the levels'."""

    family: ClassVar[str] = "categorical"

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """The marginal in every state."""
        x, weight = observed(x, weight)
        n_codes = max(1, len(variable.levels))
        counts = weight_per_code(x.astype(np.int64), weight, n_codes)
        return cls(*start_table(counts, None, n_states))

    def encode(self, x: Floats) -> Encoded:
        """The level's code."""
        code = np.where(np.isnan(x), -1.0, x).astype(np.int32)
        return Encoded(code, np.zeros(len(x)))

    def coverage(self, low: Floats, high: Floats) -> Floats:
        """Codes from ``low`` to below ``high``."""
        code = np.arange(self.n_codes)
        return ((code >= low[:, None]) & (code < high[:, None])).astype(np.float64)

    def set_mass(self, allowed: NDArray[np.bool_]) -> Floats:
        """Mass of sets of levels."""
        return np.asarray(allowed.astype(np.float64) @ np.exp(self.table))

    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """The code itself."""
        return code.astype(np.float64)
