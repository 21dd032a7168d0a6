"""Conditional Shapley values of the expected prediction.

A *player* is a variable or, on request, a group of columns. A *coalition* is a set of players. Its
value

    v(S) = E[f(X) | the values of the players in S]

is the expected output if the values of all other players are missing. Players join one after the
other. The Shapley value of a player is what it adds to v(S), averaged over all orders in which
players can join; the values of a row's players add up to E[f | x_o] - E[f]. All expectations are
under one joint density, so a column that the model does not split on has a value too if it carries
information about columns that the model does split on.

With few players, all coalitions are evaluated. With many, orders are drawn, each with its
reverse:

    phi_j = mean over pairs of half [v(S_j and j) - v(S_j)] + half [v(R_j and j) - v(R_j)]

where S_j are the players before j and R_j those after. Under Monte Carlo each pair has its own
draws, shared by all of its coalitions. Orders and draws are the same for all rows with as many
players, so values vary smoothly with the row. A control variate reduces the variance: the result of
a surrogate game along these orders, minus its mean over many orders, is subtracted; with 20 columns
that saves half to two thirds of the time. The spread of pairs gives the standard error, for orders
and draws alike; a row whose error is too large gets more of them.

The surrogate: let z_j = E[f | x_j], by bins of x_j, estimated from draws of the density. Its value
of a coalition is the linear regression of f on the z of its players,

    w(S) = E[f] + Cov(f, z_S) Cov(z_S)^-1 (z_S - E[z_S]).

If players join in some order, L L' is Cov(z) in that order, u = L^-1 (z - E[z]) and
g = L^-1 Cov(z, f), then the k-th variable adds g_k u_k, and one factorisation serves all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.cached import cached_property
from knothole.checks import check_choice
from knothole.columns.columns import NOT_RECORDED, Columns, Kind, Variable, variable_of
from knothole.columns.evidence import Evidence
from knothole.densities.base import drawn_rows
from knothole.errors import InvalidInput, MissingExtra
from knothole.expectation.expectation import Expectation
from knothole.expectation.tolerance import Tolerance, refine, tolerance_of, warn_missed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Groups of columns: a mapping from names to the names (or positions) of columns.
Groups = Mapping[str, Sequence[str | int]]
Rows = NDArray[np.intp]
Orders = NDArray[np.intp]

#: With at most so many players, all coalitions are evaluated.
FEW_PLAYERS = 10
# Possible numbers of pairs of orders of a row; also of words of draws if there are no orders.
PAIRS = tuple(n << k for k in range(6) for n in (8, 12))
WORDS = (1, 2, 4, 8, 16, 32, 64)
# Pairs of orders that estimate the surrogate's mean, in groups that give its error; they differ
# from the orders of v.
_FIRST_ORDER, _ORDER_GROUPS, _ORDER_GROUP = 1 << 20, 8, 128
# With more players there is no surrogate: its work grows with the cube of their number.
_MOST_PLAYERS = 64
# Draws from which the surrogate is learned, bins of a numeric variable, and the shrinkage of
# correlations, so that no variable is a linear combination of others.
_SURROGATE_DRAWS, _SURROGATE_BINS, _RIDGE = 4096, 32, 1e-3
# The most values, and rows of evidence, in memory at once.
_VALUES, _EVIDENCE = 1 << 18, 1 << 14
# Rows that a notebook shows and that text does, and players that a plot does.
_SHOWN_ROWS, _TABLE_ROWS, _SHOWN_PLAYERS = 10, 5, 12
_BLUE, _RED, _GREY = "#0072B2", "#D55E00", "#B8C1CA"


@dataclass(frozen=True, eq=False)
class Players:
    """The players of a game: variables and groups of columns.

    Attributes
    ----------
    names : tuple of str
    variables : tuple of tuple of int
        The columns' variables that belong to each player.
    members : bool (players, variables of the density)
        All variables of the density that become known together with a player.
    """

    names: tuple[str, ...]
    variables: tuple[tuple[int, ...], ...]
    members: Mask

    @classmethod
    def of(cls, expectation: Expectation, groups: Groups | None = None) -> Players:
        """Every variable is a player of its own, unless a group contains it."""
        columns, density = expectation.columns, expectation.density
        owner = _owners(columns, groups or {})
        names = tuple(dict.fromkeys(owner))
        variables = tuple(
            tuple(v for v, name in enumerate(owner) if name == player) for player in names
        )
        members = np.zeros((len(names), len(density.variables_)), dtype=np.bool_)
        for player, its_variables in enumerate(variables):
            members[player, list(its_variables)] = True
        return cls(names, variables, members)

    def known(self, evidence: Evidence) -> Mask:
        """Players of whom something is known, (rows, players)."""
        told = ~np.isnan(evidence.points)
        for v, rows, _ in evidence.restricted():
            told[rows, v] = True
        for v, rows, _ in evidence.missing_with_odds():
            told[rows, v] = True
        if evidence.hypotheses is not None:
            unknown = evidence.hypotheses.unknown
            told[:, : unknown.shape[1]] |= unknown
        return np.stack([told[:, members].any(axis=1) for members in self.members], axis=1)

    def codes(self, evidence: Evidence) -> Floats:
        """Points of the players that are variables, (rows, players); NaN for groups."""
        return self.of_variables(np.where(np.isinf(evidence.points), np.nan, evidence.points))

    def of_variables(self, values: Floats) -> Floats:
        """Values (rows, variables) of the players that are single variables; NaN for groups."""
        single = [variables[0] if len(variables) == 1 else -1 for variables in self.variables]
        return np.where(np.array(single) < 0, np.nan, values[:, single])

    def described(self, evidence: Evidence, columns: Columns) -> list[list[Any]]:
        """The value of each player in each row, for display; NaN where nothing is known."""
        sets: dict[tuple[int, int], str] = {}
        for v, rows, allowed in evidence.restricted():
            levels = columns.variables[v].levels
            for row, mask in zip(rows.tolist(), allowed, strict=True):
                sets[row, v] = " or ".join(str(levels[code]) for code in np.flatnonzero(mask))
        return [
            [
                _joined([sets.get((row, v), _shown(columns.variables[v], x[v])) for v in variables])
                for variables in self.variables
            ]
            for row, x in enumerate(evidence.points)
        ]


def _owners(columns: Columns, groups: Groups) -> list[str]:
    """The name of the player that has each variable."""
    variables = columns.variables
    owner = [variable.name for variable in variables]
    taken: dict[int, str] = {}
    for name, given in groups.items():
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise InvalidInput(
                f"groups must give the columns of each group by name or position, as in "
                f"{{{name!r}: [...]}}; got {given!r}."
            )
        what = f"groups[{name!r}]"
        for v in sorted({variable_of(each, columns.names, variables, what) for each in given}):
            if v in taken:
                raise InvalidInput(
                    f"groups: {variables[v].name!r} must be in one group; it is in {taken[v]!r} "
                    f"and {name!r}."
                )
            taken[v] = owner[v] = name
    for v, variable in enumerate(variables):
        if v not in taken and variable.name in groups:
            raise InvalidInput(
                f"groups: {variable.name!r} is a column that is not in the group of that name; "
                f"give the group another name."
            )
    return owner


def _shown(variable: Variable, point: float) -> Any:
    if np.isnan(point):
        return np.nan
    if variable.kind is Kind.CATEGORICAL:
        level = variable.levels[int(point)]
        return "not recorded" if level is None else level
    if point == NOT_RECORDED:
        return "not recorded"
    return int(point) if variable.kind is Kind.INTEGER and point.is_integer() else float(point)


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    known = [_text(part) for part in parts if part == part]
    return ", ".join(known) or np.nan


# ---- values ---------------------------------------------------------------------------------


def explain(
    expectation: Expectation,
    evidence: Evidence,
    players: Players,
    *,
    margins: bool,
    tol: float | None,
    threads: int | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Conditional Shapley values of rows; 0 for players of whom nothing is known.

    Returns
    -------
    values, errors : float64 (rows, players, outputs)
    base : float64 (outputs,)
        E[f], to which the values of a row are added.
    """
    answers = expectation.margin if margins else expectation.predict
    unit = expectation.spread.margin if margins else expectation.spread.prediction
    tolerance = tolerance_of(unit, tol)
    nothing = Evidence(np.full((1, evidence.points.shape[1]), np.nan))
    total, total_error = answers(evidence, threads=threads)
    base, base_error = answers(nothing, threads=threads)
    total, total_error = total - base, np.hypot(total_error, base_error)
    known = players.known(evidence)
    values, errors = np.zeros((2, *known.shape, total.shape[1]))
    patterns, which = np.unique(known, axis=0, return_inverse=True)
    game = Game(expectation, players, margins, threads)
    for number, pattern in enumerate(patterns):
        n, rows = int(pattern.sum()), np.flatnonzero(which == number)
        if not n:
            continue
        step = max(1, _VALUES // (2**n * n if n <= FEW_PLAYERS else 4 * PAIRS[0] * n))
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            at = np.ix_(some, pattern)
            values[at], errors[at] = game.shapley(
                evidence[some], pattern, total[some], total_error[some], tolerance
            )
    if tol is not None:
        warn_missed(errors, tolerance, "value")
    return values, errors, base[0]


@dataclass(frozen=True, eq=False)
class Game:
    """The values of coalitions, and the Shapley values of their players."""

    expectation: Expectation
    players: Players
    margins: bool
    threads: int | None = None

    @cached_property
    def surrogate(self) -> Surrogate:
        """An approximation of the game that is cheap to evaluate."""
        return Surrogate.of(self.expectation, self.margins)

    def values(self, evidence: Evidence, coalitions: Mask, words: range) -> Floats:
        """v(S) of coalitions (coalitions, players) of rows: (rows, groups, outputs, coalitions).

        The groups are those of :meth:`.Expectation.by_group`. Rows of one coalition are adjacent: a
        density's computations for a pattern serve all of them.
        """
        n = len(evidence.points)
        step = max(1, _EVIDENCE // max(1, n))
        parts = []
        for start in range(0, len(coalitions), step):
            some = coalitions[start : start + step]
            hide = (~some[:, :, None] & self.players.members).any(axis=1)
            told = evidence[np.tile(np.arange(n), len(some))].hidden(np.repeat(hide, n, axis=0))
            parts.append(self.expectation.by_group(told, self.margins, words, threads=self.threads))
        joined = np.concatenate(parts)
        shaped = joined.reshape(len(coalitions), n, *joined.shape[1:])
        return np.ascontiguousarray(np.moveaxis(shaped, 0, 3))

    def shapley(
        self,
        evidence: Evidence,
        pattern: Mask,
        total: Floats,
        total_error: Floats,
        tolerance: Tolerance,
    ) -> tuple[Floats, Floats]:
        """Values and errors (rows, players of the pattern, outputs) of rows with one pattern.

        ``total`` (rows, outputs) is E[f | x_o] - E[f].
        """
        n = int(pattern.sum())
        few, drawn = n <= FEW_PLAYERS, not self.expectation.is_exact(self.margins)
        sizes = PAIRS if not few else WORDS if drawn else WORDS[:1]
        control, unsure = None, np.zeros((len(total), n, total.shape[1]))
        if not few and n <= _MOST_PLAYERS:
            control = ControlVariate.of(self.surrogate, self.players, pattern)
            unsure = control.error(evidence.points)

        def replicate(rows: Rows, numbers: range) -> Floats:
            by, some = self._by_words if few else self._by_pairs, evidence[rows]
            shares = by(some, pattern, numbers.start, numbers.stop)
            if control is None:
                return shares
            return shares - control.beyond(some.points, numbers.start, numbers.stop)

        def settled(shares: Floats, rows: Rows, size: int) -> tuple[Floats, Floats]:
            value, error = settle(shares, total[rows], total_error[rows])
            return value, np.hypot(error, unsure[rows])

        def join(shares: Floats, further: Floats, before: int, now: int) -> Floats:
            if few:
                return (shares * before + further * (now - before)) / now
            return np.concatenate([shares, further], axis=3)

        def decay(before: int, now: int) -> float:
            return float(np.sqrt(before / now))

        return refine(len(total), sizes, replicate, settled, tolerance, decay, join)[:2]

    def _by_words(self, evidence: Evidence, pattern: Mask, first: int, last: int) -> Floats:
        """Shapley values by groups of draws, (rows, outputs, players, groups)."""
        coalitions, weights = all_coalitions(int(pattern.sum()))
        v = self.values(evidence, _among(coalitions, pattern), range(first, last))
        shares = np.stack([(v * weight).sum(axis=3) for weight in weights])
        return np.ascontiguousarray(shares.transpose(1, 3, 0, 2))

    def _by_pairs(self, evidence: Evidence, pattern: Mask, first: int, last: int) -> Floats:
        """Shapley values by pairs of orders, (rows, outputs, players, pairs)."""
        drawn = not self.expectation.is_exact(self.margins)
        parts = []
        # Exact values have no draws: all pairs at once, and no coalition twice.
        for start in range(first, last, 1 if drawn else last):
            stop = start + 1 if drawn else last
            coalitions, plus, minus = pairs(int(pattern.sum()), start, stop)
            v = self.values(evidence, _among(coalitions, pattern), range(start, start + 1))
            v = np.add.accumulate(v, axis=1)[:, -1] / v.shape[1]  # over groups, one by one
            parts.append(((v[..., plus] - v[..., minus]) / 2).sum(axis=2))
        return np.ascontiguousarray(np.concatenate(parts, axis=2).swapaxes(2, 3))


def settle(shares: Floats, total: Floats, total_error: Floats) -> tuple[Floats, Floats]:
    """Values and errors (rows, players, outputs) from independent replicates.

    Replicates are (rows, outputs, players, replicates): sums along the last axis have the same bits
    for any number of rows. The total is known more precisely; what the replicates' sum lacks is
    divided among the players.
    """
    players, n = shares.shape[2:]
    lacking = total[:, :, None] - shares.sum(axis=2)
    settled = shares + lacking[:, :, None] / players
    error = np.repeat(total_error[:, :, None] / players, players, axis=2)
    if n > 1:
        # Student's t, so that 1.96 standard errors of n replicates cover as often as they should.
        from scipy.stats import t as student  # imports much

        width = student.ppf(0.975, n - 1) / 1.959964
        error = np.hypot(error, width * settled.std(axis=3, ddof=1) / np.sqrt(n))
    return settled.mean(axis=3).swapaxes(1, 2), error.swapaxes(1, 2)


def _among(coalitions: Mask, pattern: Mask) -> Mask:
    """Coalitions of the players of a pattern as coalitions of all players."""
    out = np.zeros((len(coalitions), len(pattern)), dtype=np.bool_)
    out[:, pattern] = coalitions
    return out


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
    # A player in a coalition of s players joined s - 1 others; one outside would join s.
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
        The coalition after a player has joined, and the one before.
    """
    place = np.argsort(orders(n, first, last), axis=1)
    # Who is among the first i of an order; its reverse begins with all others.
    before = place[:, None, :] < np.arange(n + 1)[None, :, None]
    both = np.stack([before, ~before]).reshape(-1, n)
    packed = np.packbits(both, axis=1)
    keys = packed.view(f"V{packed.shape[1]}").ravel()
    _, which, places = np.unique(keys, return_index=True, return_inverse=True)
    at = places.reshape(2, len(place), n + 1)
    now, then = (np.take_along_axis(at, (place + k)[None], axis=2) for k in (0, 1))
    plus, minus = np.stack([then[0], now[1]]), np.stack([now[0], then[1]])
    return both[which], plus, minus


# ---- the surrogate --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The surrogate game of a model under its density.

    Attributes
    ----------
    edges : list of float64 arrays
        Bin edges of each variable.
    scores : list of float64 arrays (outputs, bins)
        z of each bin, standardised.
    correlation : float64 (outputs, variables, variables)
    slope : float64 (outputs, variables)
        Covariance of z and f.
    """

    edges: list[Floats]
    scores: list[Floats]
    correlation: Floats
    slope: Floats

    @classmethod
    def of(cls, expectation: Expectation, margins: bool) -> Surrogate:
        """Learn it from draws, for margins or for predictions."""
        ensemble, variables = expectation.ensemble, expectation.columns.variables
        nothing = Evidence(np.full((1, len(expectation.density.variables_)), np.nan))
        points = drawn_rows(expectation.density, nothing, _SURROGATE_DRAWS, expectation.seed)[0]
        points = np.ascontiguousarray(points[:, : len(variables)])
        f = (ensemble.margin if margins else ensemble.predict)(points, 1)
        f = f - f.mean(axis=0)
        edges, scores, z = [], [], np.empty((f.shape[1], *points.shape))
        for v, variable in enumerate(variables):
            width = _SURROGATE_DRAWS // _SURROGATE_BINS
            cuts = np.unique(np.sort(points[:, v])[width::width])
            edges.append(np.arange(1.0, len(variable.levels)) if variable.levels else cuts)
            bins = np.searchsorted(edges[v], points[:, v], "right")
            count = np.maximum(np.bincount(bins, minlength=len(edges[v]) + 1), 1)
            means = [np.bincount(bins, own, minlength=len(count)) / count for own in f.T]
            spread = np.stack(means)[:, bins].std(axis=1, keepdims=True)
            scores.append(np.stack(means) / np.where(spread > 0, spread, 1.0))
            z[:, :, v] = scores[v][:, bins]
        correlation = np.einsum("oni,onj->oij", z, z) / _SURROGATE_DRAWS * (1 - _RIDGE)
        correlation[:, range(len(variables)), range(len(variables))] = 1.0
        return cls(edges, scores, correlation, np.einsum("oni,no->oi", z, f) / _SURROGATE_DRAWS)

    def z(self, points: Floats, variables: Orders) -> Floats:
        """Scores of points, (rows, outputs, variables); 0 where nothing is known."""
        found = np.zeros((len(points), len(self.slope), len(variables)))
        for place, v in enumerate(variables):
            known = ~np.isnan(points[:, v])
            bins = np.searchsorted(self.edges[v], points[known, v], "right")
            found[known, :, place] = self.scores[v][:, bins].T
        return found

    def shares(self, variables: Orders, owner: Orders, orders: Orders) -> Floats:
        """What each player adds, as a function of z, (orders, outputs, players, variables).

        Mean of an order and its reverse.

        Parameters
        ----------
        variables, owner : int arrays
            Variables that are known, and the player of each.
        orders : int (orders, players)
        """
        place = np.argsort(orders, axis=1)
        both = [self._one_way(variables, owner, way) for way in (place, -place)]
        added = (both[0] + both[1]) / 2
        own = owner == np.arange(orders.shape[1])[:, None]
        return np.stack([added[:, :, one].sum(axis=2) for one in own], axis=2)

    def _one_way(self, variables: Orders, owner: Orders, place: Orders) -> Floats:
        """What each variable adds in one order, as a function of z, (orders, outputs, variables,
        variables).
        """
        order = np.argsort(place[:, owner], axis=1, kind="stable")
        at = variables[order]
        whole = self.correlation[:, at[:, :, None], at[:, None, :]]
        inverse = np.linalg.inv(np.linalg.cholesky(whole))
        added = (inverse * self.slope[:, at][:, :, None, :]).sum(axis=3, keepdims=True) * inverse
        back = np.argsort(order, axis=1)
        rows = np.arange(len(order))[:, None, None]
        return np.asarray(added[:, rows, back[:, :, None], back[:, None, :]].swapaxes(0, 1))


@dataclass(frozen=True, eq=False)
class ControlVariate:
    """The surrogate's result along orders of a pattern's players, minus its mean over many."""

    surrogate: Surrogate
    variables: Orders
    owner: Orders
    n: int
    mean: Floats  # by groups of orders, (groups, outputs, players, variables)

    @classmethod
    def of(cls, surrogate: Surrogate, players: Players, pattern: Mask) -> ControlVariate:
        """For the players of a pattern."""
        own = [list(players.variables[player]) for player in np.flatnonzero(pattern)]
        variables = np.array([v for each in own for v in each])
        owner = np.repeat(np.arange(len(own)), [len(each) for each in own])
        size = _ORDER_GROUP
        starts = range(_FIRST_ORDER, _FIRST_ORDER + _ORDER_GROUPS * size, size)
        many = [
            surrogate.shares(variables, owner, orders(len(own), first, first + size)).mean(axis=0)
            for first in starts
        ]
        return cls(surrogate, variables, owner, len(own), np.stack(many))

    def beyond(self, points: Floats, first: int, last: int) -> Floats:
        """The result of pairs of orders minus the mean, (rows, outputs, players, pairs)."""
        shares = self.surrogate.shares(self.variables, self.owner, orders(self.n, first, last))
        return self._added(points, shares - self.mean.mean(axis=0))

    def error(self, points: Floats) -> Floats:
        """The standard error of the mean, (rows, players, outputs)."""
        spread = self._added(points, self.mean).std(axis=3, ddof=1)
        return np.asarray(spread / np.sqrt(_ORDER_GROUPS)).swapaxes(1, 2)

    def _added(self, points: Floats, shares: Floats) -> Floats:
        """Results (rows, outputs, players, orders) for shares over orders and variables."""
        z = self.surrogate.z(points, self.variables)[:, :, None]
        # Sums along the last axis have the same bits for any number of rows.
        return np.stack([(own * z).sum(axis=3) for own in shares], axis=3)


# ---- what users get -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Conditional Shapley values of some rows.

    Attributes
    ----------
    values, errors : float64 (rows, players), or (rows, players, outputs) where there are several
        What each player adds, and its standard error; both 0 for missing values. The values of a
        row and ``base`` add up to the expected output.
    base : float, or float64 (outputs,)
        The expected output where nothing is known.
    data : pandas.DataFrame
        The values of the players in each row, NaN where they are missing.
    codes : float64 (rows, players)
        The same as numbers, for colours: positions of categories, NaN for groups.
    outputs : list
        Labels of the outputs.
    lost_probability : pandas.DataFrame
        The probability that each missing value was recorded, and lost (see
        :meth:`Robust.lost_probability`); NaN where it is observed, and for groups.
    unit : {"prediction", "probability", "margin"}
        What is explained.

    Examples
    --------
    >>> import knothole as kh
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 10)
    >>> model = DecisionTreeRegressor().fit(X, 2 * X[:, 0] + X[:, 1])
    >>> found = kh.wrap(model, X, density=kh.Factorized()).explain([[1.0, 1.0], [0.0, np.nan]])
    >>> found.base, found.values.round(6).tolist()
    (1.5, [[1.0, 0.5], [-1.0, 0.0]])
    """

    values: Floats
    errors: Floats
    base: Any
    data: pd.DataFrame
    codes: Floats
    outputs: list[Any]
    lost_probability: pd.DataFrame
    unit: str = "prediction"

    def table(self, output: Any = None) -> pd.DataFrame:
        """Values as a table, (rows, players).

        Where there are several outputs: of one of them, or without ``output`` of all, as
        (rows and outputs, players) with both in the index.
        """
        import pandas as pd

        if output is None and self.values.ndim == 3:
            tables = {each: self.table(each) for each in self.outputs}
            everything = pd.concat(tables, names=["output", self.data.index.name]).swaplevel()
            in_rows = np.arange(len(everything)).reshape(len(self.outputs), -1).T.ravel()
            in_order: pd.DataFrame = everything.iloc[in_rows]
            return in_order
        return pd.DataFrame(
            self._one(self.values, output), index=self.data.index, columns=self.data.columns
        )

    def to_shap(self) -> Any:
        """The same as a ``shap.Explanation``, for all of shap's plots."""
        try:
            import shap
        except ImportError as error:
            raise MissingExtra("to_shap needs shap: pip install 'knothole[shap]'.") from error
        base = np.tile(self.base, (len(self.values), 1))
        return shap.Explanation(
            values=self.values,
            base_values=base[:, 0] if self.values.ndim == 2 else base,
            data=self.codes,
            display_data=self.data.to_numpy(),
            feature_names=[str(name) for name in self.data.columns],
            output_names=None if self.values.ndim == 2 else [str(name) for name in self.outputs],
            error_std=self.errors,
        )

    def bar(self, output: Any = None, ax: Axes | None = None) -> Axes:
        """Mean size of each player's values; for a single row, the values and their errors."""
        values, errors = self._one(self.values, output), self._one(self.errors, output)
        single = len(values) == 1
        height = values[0] if single else np.abs(values).mean(axis=0)
        order = np.argsort(-np.abs(height), kind="stable")[:_SHOWN_PLAYERS]
        names = [str(self.data.columns[j]) for j in order]
        if single:
            names = [
                f"{name} = {_text(self.data.iloc[0, j])}"
                for name, j in zip(names, order, strict=True)
            ]
        ax = _axes(ax)
        ax.barh(
            np.arange(len(order)), height[order],
            xerr=1.96 * errors[0][order] if single and errors.any() else None,
            color=np.where(height[order] < 0, _RED, _BLUE).tolist(), ecolor=_GREY,
        )  # fmt: skip
        ax.set_yticks(np.arange(len(order)), names)
        ax.invert_yaxis()
        ax.set_xlabel("value" if single else "mean size of values")
        return ax

    def beeswarm(self, output: Any = None, ax: Axes | None = None) -> Axes:
        """The values of every row, one line per player, blue for low and red for high entries."""
        import pandas as pd
        from matplotlib.colors import LinearSegmentedColormap

        values = self._one(self.values, output)
        order = np.argsort(-np.abs(values).mean(axis=0), kind="stable")[:_SHOWN_PLAYERS]
        ax = _axes(ax)
        colours = LinearSegmentedColormap.from_list("low to high", [_BLUE, "#C9B8C8", _RED])
        for place, j in enumerate(order):
            code = pd.Series(self.codes[:, j]).rank(pct=True).to_numpy()
            known = ~np.isnan(code)
            height = place + _jitter(values[:, j])
            ax.scatter(values[~known, j], height[~known], s=7, color=_GREY, linewidths=0)
            ax.scatter(
                values[known, j], height[known], s=7, c=code[known], cmap=colours, vmin=0, vmax=1,
                linewidths=0,
            )  # fmt: skip
        ax.axvline(0, color=_GREY, linewidth=0.8, zorder=0)
        ax.set_yticks(np.arange(len(order)), [str(self.data.columns[j]) for j in order])
        ax.invert_yaxis()
        ax.set_xlabel("value (grey: missing or a group; blue to red: low to high)")
        return ax

    def _one(self, values: Floats, output: Any) -> Floats:
        """The values of one output."""
        if values.ndim == 2:
            return values
        check_choice("output", output, self.outputs)
        return np.asarray(values[:, :, self.outputs.index(output)])

    def __repr__(self) -> str:
        import pandas as pd

        rows, base = len(self.values), np.atleast_1d(self.base)
        lines = [f"Explanation of {self._subject()} of {rows:,} row{'' if rows == 1 else 's'}"]
        for place, (label, start) in enumerate(zip(self.outputs, base, strict=True)):
            values = self.values if self.values.ndim == 2 else self.values[:, :, place]
            cells = pd.DataFrame(values[:_TABLE_ROWS], self.data.index[:_TABLE_ROWS])
            cells = cells.set_axis(self.data.columns, axis=1).map(_signed)
            if self.values.ndim == 3:
                lines.append(f"{label!r}:")
            lines.append(f"{start:.4g} where nothing is known; each column adds:")
            lines.append(cells.to_string(max_cols=_SHOWN_PLAYERS, line_width=100))
        if rows > _TABLE_ROWS:
            lines.append(f"and {rows - _TABLE_ROWS:,} more rows; .table() has all")
        return "\n".join(lines)

    def _subject(self) -> str:
        """What is explained."""
        if self.unit != "probability" or self.values.ndim == 3:
            several = {"probability": "probabilities"}.get(self.unit, f"{self.unit}s")
            return f"the {self.unit if self.values.ndim == 2 else several}"
        return f"the probability of {self.outputs[0]!r}"

    def _repr_html_(self) -> str:
        """A table of each player's value and contribution, for the first rows."""
        import pandas as pd

        values = self.values[:_SHOWN_ROWS]
        one = values if values.ndim == 2 else values[:, :, -1]
        cells = [
            [f"{_text(said)}: {value:+.3g}" for said, value in zip(row, own, strict=True)]
            for row, own in zip(self.data.to_numpy().tolist(), one, strict=False)
        ]
        shown = pd.DataFrame(cells, index=self.data.index[:_SHOWN_ROWS], columns=self.data.columns)
        base = ", ".join(f"{value:.4g}" for value in np.atleast_1d(self.base))
        subject = self._subject()
        if self.values.ndim == 3:
            subject = f"the {self.unit} of {self.outputs[-1]!r}"
            base = f"{np.atleast_1d(self.base)[-1]:.4g}"
        return (
            f"<p>Explanation of {escape(subject)}: {escape(base)} where nothing is known, and what "
            f"each column adds</p>{shown.to_html()}"
        )


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'knothole[plot]'.") from error
    made: Axes = pyplot.subplots(layout="constrained")[1]
    return made


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{value:+.3g}"


def _text(said: Any) -> str:
    if said != said:
        return "?"
    return f"{said:.4g}" if isinstance(said, float) else str(said)


def _jitter(values: Floats) -> Floats:
    """Heights that keep points of similar value apart; the densest are spread the widest."""
    import pandas as pd

    if np.ptp(values) == 0:
        return np.zeros(len(values))
    bins = np.floor((values - values.min()) / np.ptp(values) * 60).astype(np.intp)
    count = np.bincount(bins)
    number = pd.Series(bins).groupby(bins).cumcount().to_numpy()
    side = np.where(number % 2 == 0, 1, -1) * ((number + 1) // 2)
    return np.asarray(0.4 * side / max(1, count.max() / 2))
