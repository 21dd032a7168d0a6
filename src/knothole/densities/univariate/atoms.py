"""Point masses beside another family: zero-inflated columns, and the state "not recorded"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_array, require
from knothole.columns.columns import NOT_RECORDED, Variable
from knothole.densities.univariate.base import (
    Emission,
    Encoded,
    Natural,
    Statistics,
    maximised,
    owned,
    part_of,
)
from knothole.densities.univariate.categorical import Categorical
from knothole.densities.univariate.choice import PLAIN, USUAL, repeated_values
from knothole.densities.univariate.table import (
    check_table,
    invert_codes,
    maximise_tables,
    start_table,
    table_prior,
)


@dataclass(frozen=True, eq=False)
class Atoms(Emission):
    """Some values have a probability of their own; the rest follow another family.

    Densities are with respect to counting measure at the points and the rest's own elsewhere.
    "Not recorded" (:data:`~knothole.columns.columns.NOT_RECORDED`) is a point like others. Codes
    are
    the rest's, then one for each point. The prior is Dirichlet, centred on the column's
    frequencies.

    Attributes
    ----------
    points : float64 (points,)
        Ascending.
    table : float64 (1 + points, states)
        Log probabilities of the rest and of each point.
    marginal : float64 (1 + points,)
        The same in the whole column, smoothed.
    rest : Emission
        The distribution of other values.
    """

    family: ClassVar[str] = "atoms"
    points: Floats
    table: Floats
    marginal: Floats
    rest: Emission

    @property
    def n_codes(self) -> int:
        """The rest's codes and the points."""
        return self.rest.n_codes + len(self.points)

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """Points at values that repeat, and a family chosen for the rest."""
        points = repeated_values(variable, x, weight)
        if variable.nullable:
            points = np.append(points, NOT_RECORDED)
        return cls.beside(USUAL[variable.kind], points, variable, x, weight, n_states)

    @classmethod
    def beside(
        cls,
        rest: type[Emission],
        points: Floats,
        variable: Variable,
        x: Floats,
        weight: Floats,
        n_states: int,
    ) -> Self:
        """These points beside this family."""
        at = [x == point for point in points]
        elsewhere = ~np.isnan(x) & ~np.any(at, axis=0) if at else ~np.isnan(x)
        counts = np.array([weight[elsewhere].sum(), *(weight[here].sum() for here in at)])
        # Where nothing but the points was seen, what else there may be is on their scale.
        other = np.where(elsewhere, x, np.nan) if counts[0] > 0 else x
        emission = rest.start(variable, other, weight, n_states)
        return cls(points, *start_table(counts, None, n_states), emission)

    def encode(self, x: Floats) -> Encoded:
        """The point's code, or the rest's encoding."""
        position = np.minimum(np.searchsorted(self.points, x), len(self.points) - 1)
        at = self.points[position] == x if len(self.points) else np.zeros(len(x), dtype=np.bool_)
        encoded = self.rest.encode(np.where(at, np.nan, x))
        code = np.where(at, self.rest.n_codes + position, encoded.code).astype(np.int32)
        return replace(encoded, code=code)

    def natural(self) -> Natural:
        """The rest's parameters, weighted, and the points' log probabilities."""
        natural = self.rest.form
        table = np.concatenate([natural.table + self.table[0], self.table[1:]])
        return replace(natural, table=table)

    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """Each part by its own statistics."""
        return self.maximise_each([self], [statistics], np.array([strength]))[0]

    @classmethod
    def maximise_each(
        cls, emissions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """The points of all of them, and the rests of each family."""
        counts, of_rests = [], []
        for emission, own in zip(emissions, statistics, strict=True):
            inner, at = np.split(own.count, [emission.rest.n_codes])
            counts.append(np.concatenate([inner.sum(axis=0)[None], at]))
            of_rests.append(replace(own, count=inner))
        marginals = [emission.marginal for emission in emissions]
        # The prior's rows have the rest only as often as the column has it.
        share = strengths * [marginal[0] for marginal in marginals]
        rests = maximised([emission.rest for emission in emissions], of_rests, share)
        tables = maximise_tables(counts, marginals, strengths)
        each = zip(emissions, tables, rests, strict=True)
        return [replace(emission, table=table, rest=rest) for emission, table, rest in each]

    def log_prior(self, strength: float) -> float:
        """Of both parts."""
        rest = self.rest.log_prior(strength * self.marginal[0])
        return table_prior(self.table, self.marginal, strength) + rest

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of the rest, and of the points in an interval."""
        inside = (self.points >= low[:, None]) & (self.points < high[:, None])
        inside |= (self.points == NOT_RECORDED) & not_recorded[:, None]
        probability = np.exp(self.table)
        rest = self.rest.mass(low, high, not_recorded) * probability[0]
        return np.asarray(rest + inside.astype(np.float64) @ probability[1:])

    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """A part, then a value of it."""
        part, left = invert_codes(self.table, state, uniform)
        x = np.append(np.nan, self.points)[part]
        other = part == 0
        x[other] = self.rest.invert(state[other], left[other])
        return np.asarray(x)

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, table=self.table[:, states], rest=self.rest.take(states))

    def check(self, variable: Variable, n_states: int) -> None:
        """With the points and the rest."""
        check_array("points", self.points, (None,), finite=False)
        rising = (self.points > -np.inf).all() and (self.points[1:] > self.points[:-1]).all()
        require(rising, "points must rise, and be above -inf")
        require(self.rest.family != Categorical.family, "numbers have no categorical family")
        check_table(self.table, self.marginal, 1 + len(self.points), n_states)
        self.rest.check(variable, n_states)
        super().check(variable, n_states)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Fields; those of the rest with a prefix."""
        own = {"points": self.points, "table": self.table, "marginal": self.marginal}
        rest = owned("rest", self.rest.arrays())
        return {**own, **rest, "family": np.array(self.rest.family)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """From fields."""
        rest = PLAIN[str(arrays["family"])].from_arrays(part_of(arrays, "rest"))
        return cls(arrays["points"], arrays["table"], arrays["marginal"], rest)
