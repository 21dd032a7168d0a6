"""Why an answer is what it is: conditional Shapley values of the expected output.

Players (:mod:`knothole.inspection.players`) join one after the other. What a player adds to v(S),
averaged over all orders in which they can join, is its value; the values of a row's players add up
to E[f | x_o] - E[f]. Expectations are those of one joint density, so that a column which the model
does not split on has a value where it tells of those that it does.

For few players all coalitions are valued. For many, orders are drawn, each with its reverse:

    phi_j = mean over pairs of half [v(S_j and j) - v(S_j)] + half [v(R_j and j) - v(R_j)]

where S_j are those before j, R_j those after. Under a drawn density each pair has draws of its own,
the same for all of its coalitions. Orders and draws are the same for all rows with as many players,
so that values are smooth in what a row says. What a surrogate
(:mod:`knothole.inspection.surrogate`)
has along them beyond its own mean over many orders is taken off. How far pairs then lie apart tells
the standard error, of orders and draws alike; a row whose error is too large is given more of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from knothole.arrays import Floats, Mask
from knothole.columns.evidence import Evidence
from knothole.expectation.expectation import Expectation
from knothole.expectation.replicates import n_groups
from knothole.expectation.tolerance import NONE, Tolerance, warn_missed
from knothole.inspection.players import Players
from knothole.inspection.surrogate import Orders, Surrogate

#: With so many players or fewer, all coalitions are valued.
FEW_PLAYERS = 10
# How many pairs of orders a row may have, and how many words of draws where there are no orders.
PAIRS = tuple(n << k for k in range(6) for n in (8, 12))
WORDS = (1, 2, 4, 8, 16, 32, 64)
# Pairs of orders that tell the surrogate's mean, in groups that tell its error; others than v's.
_FIRST, _GROUPS, _SIZE = 1 << 20, 8, 128
# With more players the surrogate, whose work grows with their cube, is left out.
_MOST_PLAYERS = 64
# Values that are held at once.
_VALUES = 1 << 18


class Explained(NamedTuple):
    """Values and errors (rows, players, outputs), and what they start from."""

    values: Floats
    errors: Floats
    base: Floats  # (outputs,)


def explain(
    expectation: Expectation,
    evidence: Evidence,
    players: Players,
    *,
    margins: bool,
    tol: float | None,
    threads: int | None = None,
) -> Explained:
    """Conditional Shapley values of rows; 0 for players that say nothing."""
    answers = expectation.margin if margins else expectation.predict
    unit = expectation.spread.margin if margins else expectation.spread.prediction
    tolerance = NONE if tol is None else Tolerance(unit, tol)
    nothing = Evidence(np.full((1, evidence.points.shape[1]), np.nan))
    total, total_error = answers(evidence, threads=threads)
    base, base_error = answers(nothing, threads=threads)
    known = players.known(evidence)
    shape = (*known.shape, total.shape[1])
    values, errors = np.zeros(shape), np.zeros(shape)
    work = _Work(expectation, evidence, players, margins, tolerance, threads)
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        if not pattern.any():
            continue
        own = np.flatnonzero(which == number)
        step = work.rows_at_once(int(pattern.sum()))
        for start in range(0, len(own), step):
            rows = own[start : start + step]
            whole = Whole(total[rows] - base, np.hypot(total_error[rows], base_error))
            found = work.explain(rows, pattern, whole)
            values[np.ix_(rows, pattern)], errors[np.ix_(rows, pattern)] = found
    if tol is not None:
        warn_missed(errors, tolerance, "value")
    return Explained(values, errors, base[0])


class Whole(NamedTuple):
    """E[f | x_o] - E[f] of rows and its standard error, (rows, outputs) each."""

    value: Floats
    error: Floats

    def settle(self, replicates: Floats, rows: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Values and errors (rows, players, outputs) from independent replicates.

        These are (rows, outputs, players, replicates): sums along the last axis have the same bits
        for any number of rows. What they miss of the whole, which is known better, is divided
        among players.
        """
        players, n = replicates.shape[2:]
        lacking = self.value[rows][:, :, None] - replicates.sum(axis=2)
        settled = replicates + lacking[:, :, None] / players
        error = np.repeat(self.error[rows][:, :, None] / players, players, axis=2)
        if n > 1:
            spread = settled.std(axis=3, ddof=1) / np.sqrt(n)
            error = np.hypot(error, _student(n) * spread)
        return settled.mean(axis=3).swapaxes(1, 2), error.swapaxes(1, 2)


@dataclass(frozen=True, eq=False)
class _Work:
    """What all rows of a table are explained by."""

    expectation: Expectation
    evidence: Evidence
    players: Players
    margins: bool
    tolerance: Tolerance
    threads: int | None

    @cached_property
    def surrogate(self) -> Surrogate:
        """Nearly the same game."""
        return Surrogate.of(self.expectation, self.margins)

    def rows_at_once(self, n: int) -> int:
        """Rows with so many players."""
        return max(1, _VALUES // (2**n * n if n <= FEW_PLAYERS else 4 * PAIRS[0] * n))

    def explain(self, rows: NDArray[np.intp], pattern: Mask, whole: Whole) -> tuple[Floats, Floats]:
        """Values and errors (rows, players of the pattern, outputs) of rows with one pattern."""
        n = int(pattern.sum())
        few, drawn = n <= FEW_PLAYERS, n_groups(self.expectation, self.margins) > 1
        sizes = PAIRS if not few else WORDS if drawn else WORDS[:1]
        along = None
        if not few and n <= _MOST_PLAYERS:
            along = _Along.of(self.surrogate, self.players, pattern)
        value, error = np.zeros((2, len(rows), n, whole.value.shape[1]))

        def replicates(late: NDArray[np.intp], first: int, last: int) -> Floats:
            found = (self._by_words if few else self._by_pairs)(rows[late], pattern, first, last)
            if along is None:
                return found
            return found - along.beyond(self.evidence.points[rows[late]], first, last)

        late = np.arange(len(rows))
        unsure = np.zeros(value.shape)
        if along is not None:
            unsure = along.error(self.evidence.points[rows])
        kept, done = replicates(late, 0, sizes[0]), sizes[0]
        for size in (*sizes[1:], 0):
            value[late], now = whole.settle(kept, late)
            now = np.hypot(now, unsure[late])
            # As for predictions: those that stop would be those whose error happens to look small.
            before = error[late]
            error[late] = np.where(before > 0, np.sqrt((now**2 + before**2) / 2), now)
            over = (error[late] > self.tolerance.allowed).any(axis=(1, 2))
            late, kept = late[over], kept[over]
            if not len(late) or not size:
                break
            further = replicates(late, done, size)
            if few:
                kept = (kept * done + further * (size - done)) / size
            else:
                kept = np.concatenate([kept, further], axis=3)
            error[late] *= np.sqrt(done / size)
            done = size
        return value, error

    def _by_words(self, rows: NDArray[np.intp], pattern: Mask, first: int, last: int) -> Floats:
        """Shapley values by groups of draws, (rows, outputs, players, groups)."""
        coalitions, weights = all_coalitions(int(pattern.sum()))
        v = self._values(rows, pattern, coalitions, range(first, last))
        shares = np.stack([(v * weight).sum(axis=3) for weight in weights])
        return np.ascontiguousarray(shares.transpose(1, 3, 0, 2))

    def _by_pairs(self, rows: NDArray[np.intp], pattern: Mask, first: int, last: int) -> Floats:
        """What pairs of orders say of values, (rows, outputs, players, pairs)."""
        n = int(pattern.sum())
        drawn = n_groups(self.expectation, self.margins) > 1
        parts = []
        # Exact values know no draws: all pairs at once, and no coalition twice.
        for start in range(first, last, 1 if drawn else last):
            stop = start + 1 if drawn else last
            coalitions, plus, minus = pairs(n, start, stop)
            v = self._values(rows, pattern, coalitions, range(start, start + 1))
            v = np.add.accumulate(v, axis=1)[:, -1] / v.shape[1]  # over groups, one by one
            parts.append(((v[..., plus] - v[..., minus]) / 2).sum(axis=2))
        return np.ascontiguousarray(np.concatenate(parts, axis=2).swapaxes(2, 3))

    def _values(
        self, rows: NDArray[np.intp], pattern: Mask, coalitions: Mask, words: range
    ) -> Floats:
        """v(S) of coalitions of a pattern's players, (rows, groups, outputs, coalitions)."""
        whole = np.zeros((len(coalitions), len(pattern)), dtype=np.bool_)
        whole[:, pattern] = coalitions
        return self.players.values(
            self.expectation, self.evidence[rows], whole,
            margins=self.margins, words=words, threads=self.threads,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Along:
    """What the surrogate adds along orders of a pattern's players, and its mean over many."""

    surrogate: Surrogate
    variables: Orders
    owner: Orders
    n: int
    mean: Floats  # by groups of orders, (groups, outputs, players, variables)

    @classmethod
    def of(cls, surrogate: Surrogate, players: Players, pattern: Mask) -> _Along:
        """For the players of a pattern."""
        own = [list(players.variables[player]) for player in np.flatnonzero(pattern)]
        variables = np.array([v for each in own for v in each])
        owner = np.repeat(np.arange(len(own)), [len(each) for each in own])
        starts = range(_FIRST, _FIRST + _GROUPS * _SIZE, _SIZE)
        many = [
            surrogate.shares(variables, owner, orders(len(own), first, first + _SIZE)).mean(axis=0)
            for first in starts
        ]
        return cls(surrogate, variables, owner, len(own), np.stack(many))

    def beyond(self, points: Floats, first: int, last: int) -> Floats:
        """What pairs of orders have beyond the mean, (rows, outputs, players, pairs)."""
        shares = self.surrogate.shares(self.variables, self.owner, orders(self.n, first, last))
        return self._added(points, shares - self.mean.mean(axis=0))

    def error(self, points: Floats) -> Floats:
        """The standard error of the mean, (rows, players, outputs)."""
        spread = self._added(points, self.mean).std(axis=3, ddof=1)
        return np.asarray(spread / np.sqrt(_GROUPS)).swapaxes(1, 2)

    def _added(self, points: Floats, shares: Floats) -> Floats:
        """By shares (orders, outputs, players, variables), (rows, outputs, players, orders)."""
        z = self.surrogate.z(points, self.variables)[:, :, None]
        # Sums along the last axis have the same bits for any number of rows.
        return np.stack([(own * z).sum(axis=3) for own in shares], axis=3)


@lru_cache(maxsize=64)
def _student(n: int) -> float:
    """What makes 1.96 standard errors of n replicates cover as often as they should."""
    return float(student.ppf(0.975, n - 1) / 1.959964)


@lru_cache(maxsize=16)
def all_coalitions(n: int) -> tuple[Mask, Floats]:
    """All coalitions of n players, and their weights (players, coalitions) in Shapley's formula.

    Examples
    --------
    >>> all_coalitions(2)[1].tolist()
    [[-0.5, 0.5, -0.5, 0.5], [-0.5, -0.5, 0.5, 0.5]]
    """
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 == 1
    size = coalitions.sum(axis=1)
    # A player in a coalition of s has joined s - 1 others; one outside would join s.
    joined = np.array([0.0, *(1 / (n * comb(n - 1, s - 1)) for s in range(1, n + 1))])[size]
    joins = np.array([*(1 / (n * comb(n - 1, s)) for s in range(n)), 0.0])[size]
    return coalitions, np.where(coalitions.T, joined, -joins)


def orders(n: int, first: int, last: int) -> Orders:
    """Orders of n players, from the first to the last, (orders, players)."""
    rngs = (np.random.default_rng([n, number]) for number in range(first, last))
    return np.stack([rng.permutation(n) for rng in rngs])


@lru_cache(maxsize=1024)
def pairs(n: int, first: int, last: int) -> tuple[Mask, NDArray[np.intp], NDArray[np.intp]]:
    """Orders of n players, from the first to the last, and the reverse of each.

    Returns
    -------
    coalitions : bool (coalitions, players)
        All that occur on the way, once.
    plus, minus : int (2, pairs, players)
        The coalition in which a player has joined, and the one it has joined.
    """
    place = np.argsort(orders(n, first, last), axis=1)
    # Who is among the first i of an order; its reverse begins with all others.
    before = place[:, None, :] < np.arange(n + 1)[None, :, None]
    both = np.stack([before, ~before]).reshape(-1, n)
    packed = np.packbits(both, axis=1)
    whole = packed.view(f"V{packed.shape[1]}").ravel()
    _, which, places = np.unique(whole, return_index=True, return_inverse=True)
    at = places.reshape(2, len(place), n + 1)
    now, then = (np.take_along_axis(at, (place + k)[None], axis=2) for k in (0, 1))
    plus, minus = np.stack([then[0], now[1]]), np.stack([now[0], then[1]])
    return both[which], plus, minus
