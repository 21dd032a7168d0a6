"""The base of all families of univariate distributions.

A distribution is that of one variable given the state of a latent (the component of a mixture, or a
node of a latent tree), for all ``n_states`` states at once. All families have one common form, so
that EM, expectations and sampling need no code for single families. A value ``x`` is *encoded* once
as a code ``c``, a number ``z`` and a base measure ``h``; then

    log p(x | k) = h + table[c, k] + z * linear[k] + z**2 * square[k].

A Gaussian has one code and uses ``z``; a categorical has a code per level and ``z = 0``; a Gaussian
with a point mass has one code for the point (``z = 0``) and one for the rest. Sufficient statistics
have the same form: responsibilities summed by code, and weighted sums of ``z`` and ``z**2``. A
missing value has code -1 and contributes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.cached import cached_property
from knothole.checks import check_array, check_chances, check_log_chances, require
from knothole.columns.columns import Variable

#: Standardised values are clipped to this, so that squares times a precision stay finite.
FARTHEST = 1e100


@dataclass(frozen=True, eq=False)
class Encoded:
    """Values of one variable in the common form of the module's docstring.

    Attributes
    ----------
    code : int32 (rows,)
        Row of the table; -1 for a missing value.
    z : float64 (rows,)
        Standardised value; 0 where the code determines the density.
    base : float64 (rows,) or None
        Log base measure; None if it is 0 everywhere.
    """

    code: NDArray[np.int32]
    z: Floats
    base: Floats | None = None


@dataclass(frozen=True, eq=False)
class Natural:
    """Parameters in the common form: (codes, states), (states,), (states,).

    A family that does not use ``z`` has ``linear = square = None``.
    """

    table: Floats
    linear: Floats | None = None
    square: Floats | None = None


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected sufficient statistics, which can be added over rows, blocks and workers.

    Attributes
    ----------
    count : float64 (codes, states)
        Sum of responsibilities per code.
    first, second : float64 (states,)
        Sums of responsibility times ``z`` and ``z**2``.
    """

    count: Floats
    first: Floats
    second: Floats


class Stored:
    """A dataclass of arrays and numbers that can be stored in files without pickle."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All fields."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """The inverse of :meth:`arrays`."""
        return cls(**{name: array if array.ndim else array[()] for name, array in arrays.items()})


class Univariate(Stored, ABC):
    """One variable's distribution in each of ``n_states`` states. Immutable: steps return copies.

    What depends on the column alone (levels, bin edges, location and scale, the value of a point
    mass) is set by :meth:`start` and never changes; EM changes the rest by :meth:`maximise`.
    """

    family: ClassVar[str]

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.form.table.shape[1])

    @cached_property
    def n_codes(self) -> int:
        """Number of codes."""
        return len(self.form.table)

    @classmethod
    @abstractmethod
    def start(cls, variable: Variable, x: Floats, weight: Floats, n_states: int) -> Self:
        """A distribution for this variable that is the marginal of ``x`` in every state.

        The learner breaks the symmetry by a first :meth:`maximise` with its initial
        responsibilities.
        """

    @abstractmethod
    def encode(self, x: Floats) -> Encoded:
        """Values (rows,), NaN for missing values, in the common form."""

    @abstractmethod
    def natural(self) -> Natural:
        """Parameters in the common form."""

    @cached_property
    def form(self) -> Natural:
        """:meth:`natural`, cached: a distribution never changes."""
        return self.natural()

    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """The maximum a posteriori distribution given expected statistics.

        ``strength`` is the weight of the prior, in rows per state: a conjugate prior centred on the
        marginal of :meth:`start` (Dirichlet, normal-inverse-gamma). With 0 it is maximum
        likelihood, kept away from singular solutions.
        """
        return self.maximise_each([self], [statistics], np.array([strength]))[0]

    @classmethod
    @abstractmethod
    def maximise_each(
        cls, distributions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """:meth:`maximise` of several distributions at once, each with its own strength."""

    @abstractmethod
    def log_prior(self, strength: float) -> float:
        """Log prior density of the parameters (up to a constant), part of EM's objective."""

    @abstractmethod
    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """P(low <= x < high, or x not recorded where the flag is set | state), (regions, states).

        For a categorical family use :meth:`set_mass`.
        """

    def set_mass(self, allowed: NDArray[np.bool_]) -> Floats:
        """P(code in the set | state): (sets, states) from a bool array (sets, levels)."""
        raise NotImplementedError

    def not_recorded(self) -> Floats:
        """P(not recorded | state) of a nullable variable, (states,)."""
        return np.asarray(np.minimum(np.exp(self.form.table[-1]), 1.0))

    def log_missing(self, odds: Floats) -> Floats:
        """Log likelihood of missing values with these odds of "not recorded", (odds, states)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log1p((odds[:, None] - 1) * self.not_recorded()))

    def given_missing(self, odds: float) -> Self:
        """The distribution of a nullable variable given that it is missing, with these odds."""
        raise NotImplementedError

    @abstractmethod
    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """One draw for each entry of ``state``, from a uniform number.

        By inversion where values are ordered, so that evenly spread numbers give evenly spread
        draws.
        """

    def sample(self, state: NDArray[np.integer[Any]], rng: np.random.Generator) -> Floats:
        """One independent draw for each entry of ``state``."""
        return self.invert(state, rng.random(len(state)))

    @abstractmethod
    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """The distribution with only these states, in this order (repeats allowed)."""

    def check(self, variable: Variable, n_states: int) -> None:
        """Refuse a file's content that is not a distribution of this variable with these states.

        A subclass checks its own fields first.
        """
        natural = self.form
        shape = (self.n_codes, n_states)
        check_array(f"the {self.family} table", natural.table, shape, finite=False)
        require((natural.table < np.inf).all(), f"the {self.family} table must not be infinite")
        for slope in (natural.linear, natural.square):
            if slope is not None:
                check_array(f"parameters of a {self.family}", slope, (n_states,))
                require((np.abs(slope) < FARTHEST).all(), f"a {self.family} narrower than can be")

    def log_density(self, x: Floats) -> Floats:
        """Log p(x | state), (rows, states); 0 where x is missing. Slow twin of compiled sums."""
        encoded, natural = self.encode(x), self.form
        out = np.asarray(natural.table[encoded.code])
        if natural.linear is not None and natural.square is not None:
            with np.errstate(over="ignore"):  # values far out have density 0
                out = out + encoded.z[:, None] * natural.linear
                out = out + encoded.z[:, None] ** 2 * natural.square
        if encoded.base is not None:
            out = out + encoded.base[:, None]
        return np.asarray(np.where(encoded.code[:, None] < 0, 0.0, out))


def maximised(
    distributions: Sequence[Univariate], statistics: Sequence[Statistics], strength: float | Floats
) -> tuple[Univariate, ...]:
    """The distributions after a step of EM; ``strength`` is one number, or one for each."""
    strengths = np.broadcast_to(np.asarray(strength, dtype=np.float64), len(distributions))
    alike: dict[tuple[type[Univariate], int], list[int]] = {}
    for e, distribution in enumerate(distributions):
        alike.setdefault((type(distribution), statistics[e].count.shape[1]), []).append(e)
    out = list(distributions)
    for (family, _), own in alike.items():
        each = [distributions[e] for e in own]
        after = family.maximise_each(each, [statistics[e] for e in own], strengths[own])
        for e, distribution in zip(own, after, strict=True):
            out[e] = distribution
    return tuple(out)


def observed(x: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Values with positive weight that are neither missing nor "not recorded", and weights."""
    keep = np.isfinite(x) & (weight > 0)
    return x[keep], weight[keep]


def owned(owner: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays with prefixed names, to store them beside others; inverse of :func:`part_of`."""
    return {f"{owner}.{name}": array for name, array in arrays.items()}


def part_of(arrays: dict[str, NDArray[Any]], owner: str) -> dict[str, NDArray[Any]]:
    """The arrays named ``owner.name``, by name."""
    prefix = f"{owner}."
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def with_last(table: Floats, odds: float) -> Floats:
    """Log probabilities (codes, states) with the last code made ``odds`` times as likely."""
    with np.errstate(divide="ignore"):
        table = np.concatenate([table[:-1], table[-1:] + np.log(odds)])
    total = np.logaddexp.reduce(table, axis=0)
    return np.asarray(table - np.where(np.isneginf(total), 0.0, total))


# Weight, in rows, of uniform counts added to a column's frequencies, so that none is 0.
SMOOTHING = 1.0
# Rescaled uniform numbers are kept away from 0 and 1, where quantiles are infinite.
LEAST = 2.0**-33
TINY = np.finfo(np.float64).tiny
# With at most so many codes, draws count them off; with more, they search state by state.
FEW_CODES = 32


@dataclass(frozen=True, eq=False)
class UnivariateTable(Univariate):
    """A probability for each code in each state, shared by the values of a code.

    The prior is Dirichlet: roughly, ``strength`` rows with the column's own frequencies; see
    :func:`prior_rows`.

    Attributes
    ----------
    table : float64 (codes, states)
        Log probabilities.
    marginal : float64 (codes,)
        Frequencies in training, smoothed.
    """

    table: Floats
    marginal: Floats

    @abstractmethod
    def coverage(self, low: Floats, high: Floats) -> Floats:
        """The fraction of each code's mass within ``[low, high)``, (regions, codes)."""

    @abstractmethod
    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """A value of each code, by a uniform number."""

    def natural(self) -> Natural:
        """The log probabilities."""
        return Natural(self.table)

    @property
    def n_codes(self) -> int:
        """Number of codes."""
        return len(self.marginal)

    @classmethod
    def maximise_each(
        cls, distributions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """Frequencies of the rows together with those of the prior; all tables in one call."""
        marginals = [one.marginal for one in distributions]
        tables = maximise_tables([own.count for own in statistics], marginals, strengths)
        pairs = zip(distributions, tables, strict=True)
        return [distribution.with_table(table) for distribution, table in pairs]

    def with_table(self, table: Floats) -> Self:
        """A copy with another table; ``dataclasses.replace`` takes five times as long."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, table=table)
        other.__dict__.pop("form", None)
        return other

    def log_prior(self, strength: float) -> float:
        """Expected log probability of the prior's rows."""
        return table_prior(self.table, self.marginal, strength)

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of intervals."""
        return np.asarray(self.coverage(low, high) @ np.exp(self.table))

    def given_missing(self, odds: float) -> Self:
        """The distribution with the last code, "not recorded", made more or less likely."""
        return self.with_table(with_last(self.table, odds))

    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """A code, then one of its values."""
        return self.value(*invert_codes(self.table, state, uniform))

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """The distribution with only these states."""
        return replace(self, table=self.table[:, states])

    def codes_of(self, variable: Variable) -> int:
        """Number of codes that a table of this variable must have."""
        return max(1, len(variable.levels))

    def check(self, variable: Variable, n_states: int) -> None:
        """Also compares the table with the variable's codes."""
        check_table(self.table, self.marginal, self.codes_of(variable), n_states)
        super().check(variable, n_states)


def check_table(table: Floats, marginal: Floats, n_codes: int, n_states: int) -> None:
    """Refuse a file's content that is not a table of log probabilities with its marginal."""
    found = np.shape(table)
    require(found[1:] == (n_states,), f"table must have {n_states} states; it is of shape {found}")
    require(found[0] == n_codes, f"table must have {n_codes} codes; it is of shape {found}")
    check_log_chances("table", table, found)
    check_chances("marginal", marginal, (n_codes,))


def weight_per_code(code: NDArray[np.int64], weight: Floats, n_codes: int) -> Floats:
    """Weights summed per code."""
    return np.bincount(code, weights=weight, minlength=n_codes).astype(np.float64)


def start_table(counts: Floats, share: Floats | None, n_states: int) -> tuple[Floats, Floats]:
    """A table with the marginal in each state, and the marginal.

    Frequencies include one more row, spread over the codes evenly or in proportion to ``share``.
    """
    even = np.full(len(counts), 1 / len(counts))
    marginal = counts + SMOOTHING * (even if share is None else share)
    marginal = marginal / marginal.sum()
    return np.repeat(log_of(marginal)[:, None], n_states, axis=1), marginal


def log_of(probability: Floats) -> Floats:
    """Logarithm; -inf where a probability is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability))


def log_sum_exp(terms: Floats, axis: int, keepdims: bool = False) -> Floats:
    """Logarithm of the sum of exponentials; -inf where all terms are.

    Examples
    --------
    >>> log_sum_exp(np.array([[0.0, 0.0], [-np.inf, -np.inf]]), axis=1).round(6).tolist()
    [0.693147, -inf]
    """
    top = terms.max(axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    out = log_of(np.exp(terms - top).sum(axis=axis, keepdims=True)) + top
    return out if keepdims else out.squeeze(axis)


def maximise_tables(
    counts: Sequence[Floats], marginals: Sequence[Floats], strengths: Floats
) -> list[Floats]:
    """Maximum a posteriori log probabilities, (codes, states) each, under Dirichlet priors.

    A state without rows gets the marginal.
    """
    codes = np.array([len(marginal) for marginal in marginals])
    table = _maximised(np.concatenate(counts), np.concatenate(marginals), codes, strengths)
    ends = np.cumsum(codes).tolist()
    return [table[end - len(one) : end] for end, one in zip(ends, marginals, strict=True)]


def _maximised(
    count: Floats, marginal: Floats, codes: NDArray[np.int64], strengths: Floats
) -> Floats:
    first = np.cumsum(codes) - codes
    total = np.add.reduceat(count, first)
    # A state without rows or prior gets the marginal.
    strength = np.where(total + strengths[:, None] > 0, strengths[:, None], 1.0)
    count = count + prior_rows(marginal, strength, codes, count.shape[1])
    return log_of(count / np.repeat(np.add.reduceat(count, first), codes, axis=0))


def prior_rows(
    marginal: Floats, strength: Floats, codes: NDArray[np.int64], n_states: int
) -> Floats:
    """The pseudo-rows of Dirichlet priors, (all codes, states), ``strength`` (tables, states).

    They follow the marginal; up to one row is spread over all codes and states evenly. Otherwise a
    code that was never seen, with a small part of a row in the marginal, would get only that small
    part of that part in each step. All states may share one column.
    """
    even = np.minimum(strength, SMOOTHING) / (codes[:, None] * n_states)
    of_code = np.repeat(np.arange(len(codes)), codes)
    return np.asarray(strength[of_code] * marginal[:, None] + even[of_code])


def table_prior(table: Floats, marginal: Floats, strength: float) -> float:
    """Log Dirichlet density of a table, up to a constant."""
    if strength == 0:
        return 0.0
    rows = strength * marginal + min(strength, SMOOTHING) / table.size  # as in prior_rows
    return float(rows @ table.sum(axis=1))


def log_prior_of(distributions: Sequence[Univariate], strength: float) -> float:
    """The sum of :meth:`Univariate.log_prior`, computed for all tables at once."""
    tables = [one for one in distributions if isinstance(one, UnivariateTable)]
    total = sum(
        one.log_prior(strength) for one in distributions if not isinstance(one, UnivariateTable)
    )
    if not tables or strength == 0:
        return total
    table = np.concatenate([one.table for one in tables])
    codes = np.array([len(one.table) for one in tables])
    marginal = np.concatenate([one.marginal for one in tables])
    rows = prior_rows(marginal, np.full((len(tables), 1), strength), codes, table.shape[1])
    return total + float(rows[:, 0] @ table.sum(axis=1))


def invert_codes(
    table: Floats, state: NDArray[np.integer[Any]], uniform: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """One code for each entry of ``state``, and the uniform number rescaled within the code."""
    bounds = np.cumsum(np.exp(table), axis=0)
    last = len(table) - 1 - np.argmax(np.isfinite(table[::-1]), axis=0)
    place, codes = uniform * bounds[-1, state], np.zeros(len(state), dtype=np.int64)
    if len(table) <= FEW_CODES:
        for bound in bounds[:-1]:
            codes += place >= bound[state]
    else:
        for k in np.unique(state):
            here = np.flatnonzero(state == k)
            codes[here] = np.searchsorted(bounds[:, k], place[here], side="right")
    codes = np.minimum(codes, last[state])
    below = np.where(codes > 0, bounds[codes - 1, state], 0.0)
    left = (place - below) / np.maximum(bounds[codes, state] - below, TINY)
    return codes, np.clip(left, LEAST, 1 - LEAST)


def draw_allowed(
    table: Floats,
    state: NDArray[np.integer[Any]],
    allowed: NDArray[np.bool_],
    uniform: Floats,
) -> NDArray[np.int64]:
    """One of the allowed codes, (draws, codes), for each entry of ``state``.

    If the state gives them no mass, each of them is equally likely.
    """
    chance = np.exp(table.T)[state] * allowed
    nothing = chance.sum(axis=1) == 0
    chance[nothing] = allowed[nothing]
    bounds = np.cumsum(chance, axis=1)
    u = uniform * bounds[:, -1]
    # A number equal to the last bound would be one code too far.
    last = chance.shape[1] - 1 - np.argmax(chance[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum((bounds <= u[:, None]).sum(axis=1), last))
