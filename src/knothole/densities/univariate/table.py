"""Families whose parameters are a table of log probabilities alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_chances, check_log_chances, require
from knothole.columns.columns import Variable
from knothole.densities.univariate.base import Emission, Natural, Statistics

# Rows' worth of uniform counts added to a column's frequencies, so that nothing is impossible.
SMOOTHING = 1.0
# What is left of a uniform number within a code is kept off 0 and 1, where tails are infinite.
LEAST = 2.0**-33
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class TableEmission(Emission):
    """A probability for each code in each state; where a code has several values, they share it.

    The prior is Dirichlet: ``strength`` rows with the column's own frequencies, nearly; see
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
        """Part of each code's mass that lies in ``[low, high)``: (regions, codes)."""

    @abstractmethod
    def value(self, code: NDArray[np.int64], uniform: Floats) -> Floats:
        """A value of what each code stands for, by a uniform number."""

    def natural(self) -> Natural:
        """The log probabilities."""
        return Natural(self.table)

    def maximise(self, statistics: Statistics, strength: float) -> Self:
        """Frequencies of the rows and of the prior's rows together."""
        return self.maximise_each([self], [statistics], np.array([strength]))[0]

    @classmethod
    def maximise_each(
        cls, emissions: Sequence[Self], statistics: Sequence[Statistics], strengths: Floats
    ) -> list[Self]:
        """The tables of all of them as one."""
        marginals = [emission.marginal for emission in emissions]
        tables = maximise_tables([own.count for own in statistics], marginals, strengths)
        pairs = zip(emissions, tables, strict=True)
        return [replace(emission, table=table) for emission, table in pairs]

    def log_prior(self, strength: float) -> float:
        """Expected log probability of the prior's rows."""
        return table_prior(self.table, self.marginal, strength)

    def mass(self, low: Floats, high: Floats, not_recorded: NDArray[np.bool_]) -> Floats:
        """Mass of intervals."""
        return np.asarray(self.coverage(low, high) @ np.exp(self.table))

    def invert(self, state: NDArray[np.integer[Any]], uniform: Floats) -> Floats:
        """A code, then a value of it."""
        return self.value(*invert_codes(self.table, state, uniform))

    def take(self, states: NDArray[np.integer[Any]]) -> Self:
        """Only these states."""
        return replace(self, table=self.table[:, states])

    def codes_of(self, variable: Variable) -> int:
        """Codes that the table of this variable must have."""
        return max(1, len(variable.levels))

    def check(self, variable: Variable, n_states: int) -> None:
        """With the table against the variable's codes."""
        check_table(self.table, self.marginal, self.codes_of(variable), n_states)
        super().check(variable, n_states)


def check_table(table: Floats, marginal: Floats, n_codes: int, n_states: int) -> None:
    """Refuse what a file holds where it is no table of log probabilities with its marginal."""
    found = np.shape(table)
    require(found[1:] == (n_states,), f"table must have {n_states} states; it is of shape {found}")
    require(found[0] == n_codes, f"table must have {n_codes} codes; it is of shape {found}")
    check_log_chances("table", table, found)
    check_chances("marginal", marginal, (n_codes,))


def weight_per_code(code: NDArray[np.int64], weight: Floats, n_codes: int) -> Floats:
    """Weights summed per code."""
    return np.bincount(code, weights=weight, minlength=n_codes).astype(np.float64)


def start_table(counts: Floats, share: Floats | None, n_states: int) -> tuple[Floats, Floats]:
    """The marginal as a table with the same column for each state, and itself.

    Frequencies have one more row spread over the codes, evenly or as ``share`` says.
    """
    even = np.full(len(counts), 1 / len(counts))
    marginal = counts + SMOOTHING * (even if share is None else share)
    marginal = marginal / marginal.sum()
    return np.repeat(log_of(marginal)[:, None], n_states, axis=1), marginal


def log_of(probability: Floats) -> Floats:
    """Logarithm; -inf where a probability is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probability))


def maximise_tables(
    counts: Sequence[Floats], marginals: Sequence[Floats], strengths: Floats
) -> list[Floats]:
    """Maximum a posteriori log probabilities, (codes, states) each, under Dirichlet priors.

    A state without any rows has the marginal.
    """
    codes = np.array([len(marginal) for marginal in marginals])
    table = _maximised(np.concatenate(counts), np.concatenate(marginals), codes, strengths)
    return np.split(table, np.cumsum(codes)[:-1])


def _maximised(
    count: Floats, marginal: Floats, codes: NDArray[np.int64], strengths: Floats
) -> Floats:
    first = np.cumsum(codes) - codes
    total = np.add.reduceat(count, first)
    # Weight in no state at all and no prior: the marginal is as good as any.
    strength = np.where(total + strengths[:, None] > 0, strengths[:, None], 1.0)
    count = count + prior_rows(marginal, strength, codes, count.shape[1])
    return log_of(count / np.repeat(np.add.reduceat(count, first), codes, axis=0))


@dataclass(frozen=True, eq=False)
class Tables:
    """Several tables as one, for steps of EM in which Python has to do with all of them at once.

    Attributes
    ----------
    kinds : tuple of TableEmission
        What each of them is of; their own tables are of no account.
    marginal, codes : float64 (codes of all,), int64 (tables,)
    table : float64 (codes of all, states)
        Log probabilities.
    """

    kinds: tuple[TableEmission, ...]
    marginal: Floats
    codes: NDArray[np.int64]
    table: Floats

    @classmethod
    def of(cls, emissions: Sequence[TableEmission]) -> Tables | None:
        """The tables of some emissions; None where there are none."""
        if not emissions:
            return None
        marginal = np.concatenate([emission.marginal for emission in emissions])
        codes = np.array([len(emission.marginal) for emission in emissions])
        table = np.concatenate([emission.table for emission in emissions])
        return cls(tuple(emissions), marginal, codes, table)

    @property
    def emissions(self) -> tuple[TableEmission, ...]:
        """One by one."""
        parts = np.split(self.table, np.cumsum(self.codes)[:-1])
        return tuple(replace(kind, table=own) for kind, own in zip(self.kinds, parts, strict=True))

    def take(self, states: NDArray[np.integer[Any]]) -> Tables:
        """Only these states."""
        return replace(self, table=self.table[:, states])

    def maximised(self, count: Floats, strength: float) -> Tables:
        """As :meth:`Emission.maximise` of each, from counts (codes of all, states)."""
        strengths = np.full(len(self.codes), strength)
        return replace(self, table=_maximised(count, self.marginal, self.codes, strengths))

    def log_prior(self, strength: float) -> float:
        """The sum of :meth:`Emission.log_prior`."""
        strengths = np.full((len(self.codes), 1), strength)
        rows = prior_rows(self.marginal, strengths, self.codes, self.table.shape[1])
        return float(rows[:, 0] @ self.table.sum(axis=1))


def prior_rows(
    marginal: Floats, strength: Floats, codes: NDArray[np.int64], n_states: int
) -> Floats:
    """Rows that priors stand for, (codes of all, states): ``strength`` (tables, states) of each.

    They have the marginal, and one row at most is spread over all codes and states evenly. Of a
    code that was never seen, the marginal has a small part of a row; after a step that alone would
    be that part of that part. All states may share one column.
    """
    even = np.minimum(strength, SMOOTHING) / (codes[:, None] * n_states)
    of_code = np.repeat(np.arange(len(codes)), codes)
    return np.asarray(strength[of_code] * marginal[:, None] + even[of_code])


def table_prior(table: Floats, marginal: Floats, strength: float) -> float:
    """Log Dirichlet density of a table, up to a constant."""
    if strength == 0:
        return 0.0
    rows = prior_rows(marginal, np.full((1, 1), strength), np.array([len(table)]), table.shape[1])
    return float(rows[:, 0] @ table.sum(axis=1))


def invert_codes(
    table: Floats, state: NDArray[np.integer[Any]], uniform: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """One code for each entry of ``state``, and the uniform number that is left within it."""
    codes = np.empty(len(state), dtype=np.int64)
    left = np.empty(len(state))
    for k in np.unique(state):
        here = np.flatnonzero(state == k)
        possible = np.flatnonzero(np.isfinite(table[:, k]))
        bounds = np.cumsum(np.exp(table[possible, k]))
        place = uniform[here] * bounds[-1]
        position = np.minimum(np.searchsorted(bounds, place, side="right"), len(possible) - 1)
        codes[here] = possible[position]
        below = np.where(position > 0, bounds[position - 1], 0.0)
        left[here] = (place - below) / np.maximum(bounds[position] - below, TINY)
    return codes, np.clip(left, LEAST, 1 - LEAST)


def draw_allowed(
    table: Floats,
    state: NDArray[np.integer[Any]],
    allowed: NDArray[np.bool_],
    uniform: Floats,
) -> NDArray[np.int64]:
    """One of the allowed codes, (draws, codes), for each entry of ``state``.

    Where the state gives none of them any mass, one of them evenly.
    """
    chance = np.exp(table.T)[state] * allowed
    nothing = chance.sum(axis=1) == 0
    chance[nothing] = allowed[nothing]
    bounds = np.cumsum(chance, axis=1)
    u = uniform * bounds[:, -1]
    # A draw on the last bound itself is one too far.
    last = chance.shape[1] - 1 - np.argmax(chance[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum((bounds <= u[:, None]).sum(axis=1), last))
