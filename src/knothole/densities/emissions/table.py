"""Families whose parameters are a table of log probabilities alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.checks import check_chances, check_log_chances, require
from knothole.densities.emissions.base import Emission, Natural, Statistics
from knothole.tables.columns import Variable

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
        table = maximise_table(statistics.count, self.marginal, strength)
        return replace(self, table=table)

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


def maximise_table(count: Floats, marginal: Floats, strength: float) -> Floats:
    """Maximum a posteriori log probabilities (codes, states) under a Dirichlet prior.

    A state without any rows has the marginal.
    """
    total = count.sum(axis=0)
    # Weight in no state at all and no prior: the marginal is as good as any.
    pseudo = prior_rows(marginal, np.where(total + strength > 0, strength, 1.0))
    return log_of((count + pseudo) / (total + pseudo.sum(axis=0)))


def prior_rows(marginal: Floats, strength: Floats) -> Floats:
    """Rows that the prior stands for, (codes, states): ``strength`` (states,) of the marginal.

    And one row at most, over all codes and states evenly. Of a code that was never seen, the
    marginal has a small part of a row; after a step that alone would be that part of that part.
    """
    even = np.minimum(strength, SMOOTHING) / (len(marginal) * len(strength))
    return np.asarray(strength * marginal[:, None] + even)


def table_prior(table: Floats, marginal: Floats, strength: float) -> float:
    """Log Dirichlet density of a table, up to a constant."""
    if strength == 0:
        return 0.0
    rows = prior_rows(marginal, np.full(table.shape[1], strength))
    return float((rows * table).sum())


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
