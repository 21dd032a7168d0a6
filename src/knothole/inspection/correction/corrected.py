"""An expectation with its correction: answers to rows with holes, moved to where f was found.

A correction has *parts*: ensembles of small trees over what is known of a row and its expectation
under p. One part serves rows whose only hole is a certain variable, another all other rows with
holes. Rows without holes have no correction, and rows that no part serves have none either. Rows
whose holes are all determined by what is observed (:mod:`.determined`) have the model's own answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, require
from knothole.columns.columns import Columns
from knothole.columns.evidence import NOT_RECORDED, Evidence
from knothole.expectation.engine import Engine
from knothole.expectation.expectation import Expectation
from knothole.inspection.correction.determined import NOTHING, Determined
from knothole.inspection.correction.space import Space
from knothole.trees.ensemble import Ensemble

#: The part that serves what no other serves.
GENERAL = -1


@dataclass(frozen=True, eq=False)
class Part:
    """Trees for some of the rows.

    Attributes
    ----------
    variable : int
        The one that is a hole in the rows it serves; :data:`GENERAL` for all other rows.
    ensemble : Ensemble
        Over :meth:`Correction.inputs`; its margin is the correction.
    spread : float64 (outputs,)
        What standard deviations under p are multiplied by.
    """

    variable: int
    ensemble: Ensemble
    spread: Floats


@dataclass(frozen=True, eq=False)
class Correction:
    """All parts, and the order of categories that their trees know.

    Attributes
    ----------
    parts : tuple of Part
    levels : tuple of float64 arrays (levels,)
        For each variable: the mean output of rows with each of its levels, by which trees tell
        levels apart; empty where it is numeric.
    determined : Determined
    """

    parts: tuple[Part, ...]
    levels: tuple[Floats, ...]
    determined: Determined = NOTHING

    def inputs(self, points: Floats, base: Floats) -> Floats:
        """What the trees see: variables, NaN where nothing is recorded or known, and the base."""
        own = np.where(points == NOT_RECORDED, np.nan, points)[:, : len(self.levels)]
        for variable, values in enumerate(self.levels):
            if len(values):
                codes = np.append(values, np.nan)
                known = ~np.isnan(own[:, variable]) & (own[:, variable] < len(values))
                own[:, variable] = codes[np.where(known, own[:, variable], -1).astype(np.intp)]
        return np.ascontiguousarray(np.hstack([own, base]))

    def served(
        self, holes: NDArray[np.bool_], used: NDArray[np.int64], strange: NDArray[np.bool_]
    ) -> Iterator[tuple[Part, NDArray[np.intp]]]:
        """Each part with the rows it serves, by their holes (rows, variables).

        Holes of variables that no tree has ``used`` do not make a row incomplete, but in p they
        matter. Where NaN is not a hole unless it is called one, ``strange`` (variables,), no part
        has learned from such holes.
        """
        count = holes.sum(axis=1)
        left = holes[:, used].any(axis=1) & ~holes[:, strange].any(axis=1)
        for part in sorted(self.parts, key=lambda part: part.variable, reverse=True):
            alone = (count == 1) & holes[:, part.variable]
            own = left if part.variable == GENERAL else left & alone
            left = left & ~own
            if own.any():
                yield part, np.flatnonzero(own)

    def check(self, n_levels: Sequence[int], n_outputs: int) -> None:
        """Refuse what does not fit a model of variables with so many levels, and outputs."""
        n_variables = len(n_levels)
        for values, levels in zip(self.levels, n_levels, strict=True):
            require(values.shape == (levels,) and values.dtype == np.float64, "levels of a part")
            require(not np.isinf(values).any(), "levels of a correction must be finite, or NaN")
        numbers = [part.variable for part in self.parts]
        self.determined.check(n_levels)
        fits = len(set(numbers)) == len(numbers) and bool(numbers or self.determined.targets)
        fits = fits and all(GENERAL <= number < n_variables for number in numbers)
        require(fits, f"parts of a correction must be for different variables, not {numbers}")
        for part in self.parts:
            check_array("spread of a correction", part.spread, (n_outputs,))
            require((part.spread >= 0).all(), "spread of a correction must not be negative")
            ensemble = part.ensemble
            fits = len(ensemble.columns) == n_variables + n_outputs
            fits = fits and ensemble.n_outputs == n_outputs and not ensemble.n_levels.any()
            require(fits, "trees of a correction must be over variables and expectations")


def level_counts(columns: Columns) -> list[int]:
    """Levels of each variable, 0 where it is numeric."""
    return [len(variable.levels) for variable in columns.variables]


def input_names(n_variables: int, n_outputs: int) -> tuple[str, ...]:
    """Names of the inputs of a correction's trees.

    >>> input_names(2, 1)
    ('variable 0', 'variable 1', 'expected 0')
    """
    variables = [f"variable {number}" for number in range(n_variables)]
    return (*variables, *(f"expected {number}" for number in range(n_outputs)))


@dataclass(frozen=True, eq=False)
class Corrected(Expectation):
    """An expectation whose predictions, spreads and quantiles are corrected; margins are not."""

    correction: Correction = field(default_factory=lambda: Correction((), ()))

    @classmethod
    def by(cls, expectation: Expectation, correction: Correction) -> Self:
        """An expectation with a correction; tables and draws are shared."""
        own: dict[str, Any] = {
            one.name: getattr(expectation, one.name) for one in fields(Expectation)
        }
        return cls(**{**own, "source": expectation}, correction=correction)

    @cached_property
    def engine(self) -> Engine:
        """What margins come from: to the last bit those of the expectation itself."""
        if self.source is not None and self.exact:
            return self.source.engine
        return self.completions

    @cached_property
    def space(self) -> Space:
        """Where corrections are added."""
        return Space.of(self.original)

    def predict(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Corrected prediction and its standard error, (rows, outputs) each."""
        evidence = self.correction.determined.complete(evidence, self.used)
        mean, error = super().predict(evidence, threads=threads)
        moved = self._moved(evidence, mean, threads)
        for _, rows in self._served(evidence):
            error[rows] *= self.space.slope(mean[rows], moved[rows])
        return moved, error

    def _moved(self, evidence: Evidence, mean: Floats, threads: int | None) -> Floats:
        """Predictions under p, corrected."""
        moved = mean.copy()
        for part, rows in self._served(evidence):
            base = self.space.base(mean[rows])
            inputs = self.correction.inputs(evidence.points[rows], base)
            moved[rows] = self.space.means(base + part.ensemble.margin(inputs, threads))
        return moved

    def std(self, evidence: Evidence, *, threads: int | None = None) -> tuple[Floats, Floats]:
        """Standard deviation of the prediction given x_o, and its error, (rows, outputs) each."""
        evidence = self.correction.determined.complete(evidence, self.used)
        found, error = super().std(evidence, threads=threads)
        for part, rows in self._served(evidence):
            found[rows] *= part.spread
            error[rows] *= part.spread
        return found, error

    def quantiles(
        self, evidence: Evidence, quantiles: Sequence[float], *, threads: int | None = None
    ) -> tuple[Floats, Floats]:
        """Quantiles of the prediction, and their errors: about the corrected prediction."""
        evidence = self.correction.determined.complete(evidence, self.used)
        found, error = super().quantiles(evidence, quantiles, threads=threads)
        mean, _ = super().predict(evidence, threads=threads)
        moved = self._moved(evidence, mean, threads)
        for part, rows in self._served(evidence):
            spread = part.spread[:, None]
            found[rows] = moved[rows, :, None] + spread * (found[rows] - mean[rows, :, None])
            error[rows] *= spread
        return found, error

    def _served(self, evidence: Evidence) -> Iterator[tuple[Part, NDArray[np.intp]]]:
        holes = np.isnan(evidence.points[:, : len(self.correction.levels)])
        integrate, variables = self.integrate, self.columns.variables
        strange = [not integrate[list(variable.columns)].any() for variable in variables]
        return self.correction.served(holes, self.used, np.array(strange))
