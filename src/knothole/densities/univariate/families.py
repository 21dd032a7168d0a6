"""The choice of a family for each variable, and point masses combined with another family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_array, require
from knothole.columns.columns import NOT_RECORDED, Kind, Variable
from knothole.densities.univariate.base import (
    Encoded,
    Natural,
    Statistics,
    Univariate,
    check_table,
    invert_codes,
    maximise_tables,
    maximised,
    observed,
    owned,
    part_of,
    start_table,
    table_prior,
    with_last,
)
from knothole.densities.univariate.continuous import (
    Gaussian,
    Histogram,
    Integer,
    choose_edges,
    information,
    location_and_scale,
)
from knothole.densities.univariate.discrete import Categorical, NegativeBinomial, Poisson
from knothole.errors import InvalidInput

#: Families that can be used without point masses.
PLAIN: dict[str, type[Univariate]] = {
    family.family: family
    for family in (Categorical, Gaussian, Histogram, Integer, Poisson, NegativeBinomial)
}

#: Default family of values by kind of variable, apart from point masses.
USUAL: dict[Kind, type[Univariate]] = {
    Kind.CATEGORICAL: Categorical,
    Kind.CONTINUOUS: Gaussian,
    Kind.INTEGER: Integer,
}

# A continuous column with at most so many different values consists of point masses.
FEW_VALUES = 32
# The least mean number of rows for each of them.
ROWS_PER_VALUE = 10
# Otherwise a value is a point mass if it has this fraction of the rows, and so many times as many
# as its neighbours: in a rounded column, most values near the centre are frequent.
REPEATED = 0.02
OUTSTANDING = 5
NEIGHBOURS = 3


def repeated_values(variable: Variable, x: Floats, weight: Floats) -> Floats:
    """Values of a continuous column that have a probability of their own."""
    if variable.kind is not Kind.CONTINUOUS:
        return np.empty(0)
    values, counts = np.unique(observed(x, weight)[0], return_counts=True)
    rows = counts.sum()
    if len(values) <= FEW_VALUES and rows >= ROWS_PER_VALUE * len(values):
        return np.asarray(values)
    often = np.flatnonzero(counts >= REPEATED * rows)
    return np.array(
        [values[i] for i in often if counts[i] >= OUTSTANDING * _next_to(counts, int(i))]
    )


def _next_to(counts: NDArray[np.int64], i: int) -> float:
    """The larger of the mean counts on either side."""
    sides = counts[max(0, i - NEIGHBOURS) : i], counts[i + 1 : i + 1 + NEIGHBOURS]
    return max((float(side.mean()) for side in sides if len(side)), default=0.0)


def prefers_histogram(x: Floats) -> bool:
    """Whether a histogram of all values has the better information criterion than a Gaussian."""
    x = x[np.isfinite(x)]
    weight = np.ones(len(x))
    if len(x) == 0 or x.min() == x.max():
        return False
    _, scale = location_and_scale(x, weight)
    gaussian = -0.5 * len(x) * (np.log(2 * np.pi) + 1) - len(x) * np.log(scale) - np.log(len(x))
    x = np.sort(x)
    return bool(information(choose_edges(x, weight), x, weight) > gaussian)


@dataclass(frozen=True, eq=False)
class Atoms(Univariate):
    """Point masses at some values; the rest follow another family.

    Densities are with respect to counting measure at the points, and to the rest's own measure
    elsewhere. "Not recorded" (:data:`~knothole.columns.columns.NOT_RECORDED`) is one of the points.
    Codes are the rest's, then one for each point. The prior is Dirichlet, centred on the column's
    frequencies.

    Attributes
    ----------
    points : float64 (points,)
        Positions of the point masses, ascending.
    table : float64 (1 + points, states)
        Log probabilities of the rest and of each point.
    marginal : float64 (1 + points,)
        The same in the whole column, smoothed.
    rest : Univariate
        The distribution of other values.
    """

    family: ClassVar[str] = "atoms"
    points: Floats
    table: Floats
    marginal: Floats
    rest: Univariate

    @cached_property
    def n_codes(self) -> int:
        """The rest's codes and the points."""
        return self.rest.n_codes + len(self.points)

    @classmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """Point masses at repeated values, and a family chosen for the rest."""
        points = repeated_values(variable, x, weight)
        if variable.nullable:
            points = np.append(points, NOT_RECORDED)
        return cls.beside(USUAL[variable.kind], points, variable, x, weight, n_states)

    @classmethod
    def beside(
        cls,
        rest: type[Univariate],
        points: Floats,
        variable: Variable,
        x: Floats,
        weight: Floats,
        n_states: int,
    ) -> Self:
        """Point masses at these points, with this family for the rest."""
        at = [x == point for point in points]
        elsewhere = ~np.isnan(x) & ~np.any(at, axis=0) if at else ~np.isnan(x)
        counts = np.array([weight[elsewhere].sum(), *(weight[here].sum() for here in at)])
        # If only the points were observed, other values are assumed to be on their scale.
        other = np.where(elsewhere, x, np.nan) if counts[0] > 0 else x
        distribution = rest.start(variable, other, weight, n_states)
        return cls(points, *start_table(counts, None, n_states), distribution)

    def encode(self, x: Floats) -> Encoded:
        """The code of the point, or the rest's encoding."""
        position = np.minimum(np.searchsorted(self.points, x), len(self.points) - 1)
        at = self.points[position] == x if len(self.points) else np.zeros(len(x), dtype=np.bool_)
        encoded = self.rest.encode(np.where(at, np.nan, x))
        code = np.where(at, self.rest.n_codes + position, encoded.code).astype(np.int32)
        return replace(encoded, code=code)

    def natural(self) -> Natural:
        """The rest's parameters, weighted by its probability, and the points' log probabilities."""
        natural = self.rest.form
        table = np.concatenate([natural.table + self.table[0], self.table[1:]])
        return replace(natural, table=table)

    @classmethod
    def maximise_each(
        cls, distributions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """Maximise the point masses of all distributions, and the rests of each family."""
        counts, of_rests = [], []
        for distribution, own in zip(distributions, statistics, strict=True):
            inner, at = np.split(own.count, [distribution.rest.n_codes])
            counts.append(np.concatenate([inner.sum(axis=0)[None], at]))
            of_rests.append(replace(own, count=inner))
        marginals = [one.marginal for one in distributions]
        # The prior's rows fall into the rest as often as those of the column.
        share = strengths * [marginal[0] for marginal in marginals]
        rests = maximised([one.rest for one in distributions], of_rests, share)
        tables = maximise_tables(counts, marginals, strengths)
        each = zip(distributions, tables, rests, strict=True)
        return [replace(distribution, table=table, rest=rest) for distribution, table, rest in each]

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
        """Point or rest, then a value."""
        part, left = invert_codes(self.table, state, uniform)
        x = np.append(np.nan, self.points)[part]
        other = part == 0
        x[other] = self.rest.invert(state[other], left[other])
        return np.asarray(x)

    def given_missing(self, odds: float) -> Self:
        """The last point, "not recorded", made more or less likely."""
        return replace(self, table=with_last(self.table, odds))

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, table=self.table[:, states], rest=self.rest.take(states))

    def check(self, variable: Variable, n_states: int) -> None:
        """Also checks the points and the rest."""
        check_array("points", self.points, (None,), finite=False)
        rising = (self.points > -np.inf).all() and (self.points[1:] > self.points[:-1]).all()
        require(rising, "points must rise, and be above -inf")
        require(self.rest.family != Categorical.family, "numbers have no categorical family")
        check_table(self.table, self.marginal, 1 + len(self.points), n_states)
        self.rest.check(variable, n_states)
        super().check(variable, n_states)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fields; those of the rest have a prefix."""
        own = {"points": self.points, "table": self.table, "marginal": self.marginal}
        rest = owned("rest", self.rest.arrays())
        return {**own, **rest, "family": np.array(self.rest.family)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """From fields."""
        rest = PLAIN[str(arrays["family"])].from_arrays(part_of(arrays, "rest"))
        return cls(arrays["points"], arrays["table"], arrays["marginal"], rest)


FAMILIES: dict[str, type[Univariate]] = {**PLAIN, Atoms.family: Atoms}
NUMERIC = [family for family in PLAIN if family != Categorical.family]


def choose(variable: Variable, x: Floats) -> type[Univariate]:
    """The family for a variable, from its values (which may hold NaN)."""
    usual = USUAL[variable.kind]
    if usual is Categorical:
        return Categorical
    points = variable.nullable or len(repeated_values(variable, x, np.ones(len(x))))
    return Atoms if points else usual


def start_distribution(
    variable: Variable, x: Floats, weight: Floats, n_states: int, family: str | None = None
) -> Univariate:
    """A distribution for a variable: of the family chosen from the data, unless one is named.

    ``"atoms+histogram"`` names the family of the rest beside point masses. A nullable numeric
    variable keeps its state "not recorded" with any family.
    """
    if family is None:
        return choose(variable, x).start(variable, x, weight, n_states)
    _check_family(variable, family)
    if family in FAMILIES and not (variable.nullable and family in NUMERIC):
        return FAMILIES[family].start(variable, x, weight, n_states)
    _, plus, rest = family.rpartition("+")
    points = repeated_values(variable, x, weight) if plus else np.empty(0)
    if variable.nullable:
        points = np.append(points, NOT_RECORDED)
    return Atoms.beside(FAMILIES[rest], points, variable, x, weight, n_states)


def _check_family(variable: Variable, family: str) -> None:
    known = [*FAMILIES, *(f"atoms+{rest}" for rest in NUMERIC)]
    if family not in known:
        raise InvalidInput(
            f"families: {family!r} for {variable.name!r} is no family; there are {known}."
        )
    discrete = variable.kind is Kind.CATEGORICAL
    if discrete != (family == Categorical.family):
        raise InvalidInput(
            f"families: {variable.name!r} is {variable.kind}, so its family "
            f"{'must' if discrete else 'cannot'} be 'categorical'; got {family!r}."
        )


def with_continuous(family: str, variable: Variable, x: Floats) -> str:
    """The name of the family that :func:`choose` takes, with another family for its values."""
    return f"atoms+{family}" if choose(variable, x) is Atoms else family


def distribution_arrays(distributions: Sequence[Univariate]) -> dict[str, NDArray[Any]]:
    """The arrays of distributions, for storage; the inverse of :func:`distributions_from`."""
    return {
        f"leaf{e}.{name}": array
        for e, distribution in enumerate(distributions)
        for name, array in distribution.arrays().items()
    }


def check_distributions(
    variables: Sequence[Variable], distributions: Sequence[Univariate], n_states: Sequence[int]
) -> None:
    """Refuse stored distributions unless there is one for each variable, with these states."""
    counts = f"{len(distributions)} distributions, {len(variables)} variables"
    require(len(distributions) == len(variables) == len(n_states), counts)
    for variable, distribution, size in zip(variables, distributions, n_states, strict=True):
        discrete = variable.kind is Kind.CATEGORICAL
        fits = discrete == (distribution.family == Categorical.family)
        require(
            fits, f"{variable.name!r} is {variable.kind}, not of family {distribution.family!r}"
        )
        distribution.check(variable, size)


def distributions_from(
    families: Sequence[str], arrays: dict[str, NDArray[Any]]
) -> tuple[Univariate, ...]:
    """Distributions of these families."""
    return tuple(
        FAMILIES[family].from_arrays(part_of(arrays, f"leaf{e}"))
        for e, family in enumerate(families)
    )
