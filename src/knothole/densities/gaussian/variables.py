"""Which variables of a density are Gaussian and which discrete, and rows read accordingly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.columns import Evidence, Kind, Variable
from knothole.compiled.bits import word_offsets
from knothole.densities.gaussian.draws import Discrete
from knothole.densities.gaussian.em import ScoreRows
from knothole.densities.gaussian.normal_scores import NormalScores
from knothole.densities.rows import WeightedRows
from knothole.densities.univariate import Categorical, packed
from knothole.densities.univariate.base import Emission
from knothole.densities.univariate.choice import repeated_values
from knothole.errors import InvalidInput

RECORDED, NOT_RECORDED = 0, 1
# Beyond it the ends of a map would be infinite.
LARGEST = 1e300
# Rows whose scores are found at once.
AT_ONCE = 2**14


@dataclass(frozen=True)
class Layout:
    """Numeric variables are jointly Gaussian, the others independent given the component.

    A nullable numeric variable has a discrete one beside it, its *flag*: recorded or not. Where
    it is not recorded, its number is like a hole.

    Attributes
    ----------
    variables : tuple of Variable
    numeric, categorical, flagged : int64
        Variables of each kind; flagged ones are numeric, too. Discrete emissions come in the order
        categorical, flagged.
    """

    variables: tuple[Variable, ...]
    numeric: NDArray[np.int64]
    categorical: NDArray[np.int64]
    flagged: NDArray[np.int64]

    @classmethod
    def of(cls, variables: Sequence[Variable]) -> Layout:
        """The layout of a density's variables."""
        category = np.array([v.kind is Kind.CATEGORICAL for v in variables], dtype=np.bool_)
        nullable = np.array([v.nullable for v in variables], dtype=np.bool_)
        return cls(
            tuple(variables),
            np.flatnonzero(~category),
            np.flatnonzero(category),
            np.flatnonzero(~category & nullable),
        )

    @property
    def n_discrete(self) -> int:
        """Number of discrete emissions."""
        return len(self.categorical) + len(self.flagged)

    @property
    def discrete(self) -> list[Variable]:
        """What discrete emissions are of."""
        flag = Variable("recorded", Kind.CATEGORICAL, (True, False))
        return [self.variables[v] for v in self.categorical] + [flag] * len(self.flagged)

    def ways_to_read(
        self, rows: WeightedRows, normal_scores: bool | Literal["repeated", "auto"]
    ) -> list[NDArray[np.bool_]]:
        """Which numeric variables may be taken by rank: the ways that are to be tried.

        "auto": all, or only those whose values have probabilities of their own.
        """
        every = np.ones(len(self.numeric), dtype=np.bool_)
        if isinstance(normal_scores, bool):
            return [every if normal_scores else ~every]
        whole, often = self._repeated(rows)
        repeat = whole | np.array([len(values) > 0 for values in often], dtype=np.bool_)
        if normal_scores == "repeated":
            return [repeat]
        return [every] if repeat.all() else [every, repeat]

    def scores(self, rows: WeightedRows, by_rank: NDArray[np.bool_]) -> NormalScores:
        """Maps of the numeric variables, some by rank."""
        for v, x in zip(self.numeric, self._numbers(rows), strict=True):
            largest = np.abs(x[np.isfinite(x)]).max(initial=0.0)
            if largest > LARGEST:
                raise InvalidInput(
                    f"column {self.variables[v].name!r} holds {largest:g}; a GaussianMixture takes "
                    f"numbers up to {LARGEST:g}. Give the column in a larger unit."
                )
        columns = self._numbers(rows)
        return NormalScores.fit(columns, rows.own_weight(), *self._repeated(rows), by_rank)

    def _numbers(self, rows: WeightedRows) -> Iterator[Floats]:
        """The numeric variables, one after another: there may be little memory."""
        return (rows.evidence.points[rows.order, v] for v in self.numeric)

    def _repeated(self, rows: WeightedRows) -> tuple[NDArray[np.bool_], list[Floats]]:
        """Which numeric variables are whole numbers, and values of the others that repeat."""
        numeric = [self.variables[v] for v in self.numeric]
        weight, columns = rows.own_weight(), zip(numeric, self._numbers(rows), strict=True)
        whole = np.array([variable.kind is Kind.INTEGER for variable in numeric], dtype=np.bool_)
        return whole, [repeated_values(variable, x, weight) for variable, x in columns]

    def start_emissions(self, rows: WeightedRows) -> tuple[Categorical, ...]:
        """Marginals of the discrete variables: one state each."""
        if not self.n_discrete:
            return ()
        columns, weight = self._discrete_points(rows.points()), rows.own_weight()
        return tuple(
            Categorical.start(variable, columns[:, e], weight, 1)
            for e, variable in enumerate(self.discrete)
        )

    def rows(
        self,
        evidence: Evidence,
        weight: Floats,
        scores: NormalScores,
        emissions: Sequence[Emission],
        order: NDArray[np.intp] | None = None,
    ) -> ScoreRows:
        """Evidence as EM takes it: of all rows, or of those that ``order`` names."""
        n, repeats = len(weight), scores.repeats
        z, base = np.empty((n, len(self.numeric))), np.empty(n)
        variance = np.empty((n, len(self.numeric) if repeats.any() else 0))
        for start in range(0, n, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            some = part if order is None else order[part]
            z[part], own, bases = scores.encode(evidence.points[some][:, self.numeric])
            variance[part], base[part] = own[:, : variance.shape[1]], bases.sum(axis=1)
        discrete = None
        if emissions:
            known = evidence if order is None else evidence[order]
            points, levels = self._discrete_points(known.points), self._levels(known)
            discrete = packed.pack(emissions, Evidence(points, known.allowed, levels))
        return ScoreRows(z, variance, base, repeats, discrete, weight)

    def _discrete_points(self, points: Floats) -> Floats:
        flags = points[:, self.flagged]
        flags = np.where(np.isnan(flags), np.nan, np.isinf(flags))
        return np.hstack([points[:, self.categorical], flags])

    def _levels(self, evidence: Evidence) -> NDArray[np.int64]:
        """Levels of each discrete variable that ``evidence.allowed`` has words of, else 0."""
        levels = np.zeros(self.n_discrete, dtype=np.int64)
        own = np.flatnonzero(self.categorical < len(evidence.n_levels))
        levels[own] = evidence.n_levels[self.categorical[own]]
        return levels

    def discrete_tables(self, emissions: Sequence[Emission], own: int, k: int) -> Discrete:
        """The discrete emissions as plain arrays; the first ``own`` variables are the columns'."""
        tables = [emission.natural().table for emission in emissions]
        n_levels = [len(variable.levels) for variable in self.variables[:own]]
        offsets = word_offsets(np.array(n_levels, dtype=np.int64))
        words = [offsets[v] if v < own else -1 for v in self.categorical]
        return Discrete(
            np.concatenate([self.categorical, self.flagged]),
            np.arange(self.n_discrete) >= len(self.categorical),
            np.cumsum([0, *(len(table) for table in tables)], dtype=np.int64),
            np.exp(np.vstack([*tables, np.empty((0, k))])),
            np.array(words + [-1] * len(self.flagged), dtype=np.int64),
        )
