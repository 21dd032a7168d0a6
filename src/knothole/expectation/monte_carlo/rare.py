"""Rare values of missing variables: what few draws may all have missed, and what it would change.

The spread of groups of draws gives their error if all groups have met what matters. A value
whose conditional probability is ``m`` is met by ``n m`` of ``n`` draws. If that is little, the
groups may agree because none of them has met it. The density knows ``m``, and some of the row's
draws, with the value put in, show what it changes. If ``d`` is the difference from the mean, then
among ``n`` independent draws the value alone gives the mean an error of ``sqrt(m d^2 / n)`` and the
variance one of ``sqrt(m d^4 / n)``. Reported errors are at least as large.

Groups may also agree on a common value if hardly anything else that is missing matters: each of 8
groups of a net meets it ``n m / 8`` times, rounded up or down, and all may be rounded alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.densities.base import Density, Within
from knothole.expectation.tables import Grid
from knothole.sobol import GROUPS, WORD
from knothole.trees.in_variables import Merged

Rows = NDArray[np.intp]

#: So many draws with a value tell its part of the error, group by group.
ENOUGH = 32.0
# Values that are less probable change no answer that is told. What others change is found by draws
# of the row if it may be an error of so many default tolerances; otherwise it is taken from rows
# drawn without evidence.
NEVER, LITTLE = 1e-9, 1.0
# A numeric variable with more cells than this has its two ends alone, each with at most this
# probability; a categorical variable with more cells has none. (Chosen on a table of correlated
# normal columns, three kinds of model, five densities; ends of 0.02 left twice as many errors of
# standard deviations beyond three reported ones.)
FEW_CELLS, ENDS = 8, 0.05
# Two cells together are rare where each is less probable than this.
BOTH = 0.15
# Two of them, that draws meet less often than this.
SELDOM = 0.05
# Draws of a row that show what a value changes: several values share a word of 64 draws. (Of 8
# draws, one in twenty missed what a common value of another variable makes of a rare one.)
PROBES = 16


class Cell(NamedTuple):
    """Values of a variable that no split tells apart, or an ``end`` of its values; one of them."""

    within: Within
    value: float
    end: bool = False


class Rare(NamedTuple):
    """The rare cells of some rows' missing variables: pairs of both.

    Attributes
    ----------
    row : int64 (pairs,)
        In order.
    mass : float64 (pairs,)
        The conditional probability of the cell.
    inside, beside : float64 (pairs, probes, outputs)
        Margins of draws with the value, and of the same draws as they are.
    others : float64 (rows, cells)
        The conditional probabilities of all other cells; 0 of those above.
    changes : tuple of float64 (cells, outputs)
        What these change in rows drawn without evidence: E[d^2]^(1/2) and E[d^4]^(1/4).
    """

    row: NDArray[np.intp]
    mass: Floats
    inside: Floats
    beside: Floats
    others: Floats
    changes: tuple[Floats, Floats]

    def sums(self, told: Told, *powers: int) -> tuple[Floats, list[Floats]]:
        """Sums of m d^power over cells, (rows, answers), and the unit of d.

        In units of a row's own, powers of two: so the fourth power of a large d is no infinity.
        """
        link, n, value = told
        values, own = link(self.inside), link(self.beside)
        apart = np.abs(values - own.mean(axis=1, keepdims=True))
        largest = np.maximum(np.abs(value), max(each.max(initial=0.0) for each in self.changes))
        np.maximum.at(largest, self.row, apart.max(axis=1, initial=0.0))
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1)
        square: Floats = ((apart / unit[self.row][:, None]) ** 2).mean(axis=1)
        weight, others = missed(self.mass, n)[:, None], missed(self.others, n)
        sums = []
        for power in powers:
            out = np.zeros_like(unit)
            np.add.at(out, self.row, weight * square ** (power // 2))
            for one, change in zip(others.T, self.changes[power // 2 - 1], strict=True):
                out += one[:, None] * (change / unit) ** power
            sums.append(out)
        return unit, sums

    def of(self, rows: NDArray[np.intp]) -> Rare:
        """Those of some rows, which are numbered anew."""
        number = np.full(int(max(rows.max(initial=0), self.row.max(initial=0))) + 1, -1)
        number[rows] = np.arange(len(rows))
        own = number[self.row]
        some = own >= 0
        pairs = own[some], self.mass[some], self.inside[some], self.beside[some]
        return Rare(*pairs, self.others[rows], self.changes)

    def error_of_mean(self, told: Told) -> Floats:
        """The least standard error of means."""
        unit, (second,) = self.sums(told, 2)
        return np.asarray(unit * np.sqrt(second / told.draws))

    def error_of_std(self, told: Told) -> Floats:
        """The least standard error of standard deviations."""
        unit, (second, fourth) = self.sums(told, 2, 4)
        variance = np.maximum((told.value / unit) ** 2, second)
        least = np.zeros_like(unit)
        np.divide(
            np.sqrt(fourth / told.draws), 2 * np.sqrt(variance), out=least, where=variance > 0
        )
        return np.asarray(unit * least)

    def error_of_both(self, told: Told) -> Floats:
        """Of means and standard deviations side by side."""
        mean, std = np.split(told.value, 2, axis=1)
        of_mean = self.error_of_mean(told._replace(value=mean))
        return np.hstack([of_mean, self.error_of_std(told._replace(value=std))])


def missed(mass: Floats, n: int) -> Floats:
    """The probability that stands for what ``n`` draws leave open of cells' probabilities.

    All of it where draws hardly meet the cell. Of common cells what nets leave: each group meets
    one as often as it should, or once more, and all groups may be rounded alike.
    """
    more = np.modf(n * mass / GROUPS)[0]
    return np.asarray(np.where(mass * n < ENOUGH, mass, GROUPS * more * (1 - more) / n))


class Told(NamedTuple):
    """Answers of rows, (rows, outputs), the number of their draws, and the link."""

    link: Callable[[Floats], Floats]
    draws: int
    value: Floats


class Pairs(NamedTuple):
    """Rows, and one or two cells of each: the second is -1 where there is one."""

    row: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    mass: Floats


def pairs_of(mass: Floats, cells: list[Cell], draws: int, least: Floats) -> Pairs:
    """Cells that ``draws`` hardly meet, and two of them together, as if these were independent.

    What is less probable than ``least`` (cells, cells), with the cells themselves on the diagonal,
    is left out.
    """
    row, cell = np.nonzero((mass > np.diagonal(least)) & (mass * draws < ENOUGH))
    found = [(row, cell, np.full_like(row, -1), mass[row, cell])]
    some = [c for c, each in enumerate(cells) if not each.end]
    for place, c in enumerate(some):
        others = [
            d
            for d in some[:place]
            if cells[d].within.variable != cells[c].within.variable and least[c, d] < BOTH**2
        ]
        rows = np.flatnonzero((mass[:, c] > 0) & (mass[:, c] < BOTH))
        both = mass[rows][:, others] * mass[rows, c, None]
        needed = np.maximum(SELDOM / draws, least[c, others])
        at, other = np.nonzero((mass[rows][:, others] < BOTH) & (both > needed))
        of_both = both[at, other], np.array(others, dtype=np.intp)[other]
        found.append((rows[at], np.full_like(at, c), of_both[1], of_both[0]))
    parts = [np.concatenate(each) for each in zip(*found, strict=True)]
    order = np.argsort(parts[0], kind="stable")
    return Pairs(*(part[order] for part in parts))


def least_masses(effect: Floats, draws: int) -> Floats:
    """The probabilities below which cells, and two of them, matter little, (cells, cells).

    ``effect`` is the most that each changes, in units of the default tolerance. Two may change
    more than both by themselves: no less than any. The variance of a mean is divided by ``draws``.
    """
    effects = np.maximum(np.add.outer(effect, effect), effect.max())
    np.fill_diagonal(effects, effect)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(NEVER, draws * (LITTLE / effects) ** 2))


class Probes(NamedTuple):
    """Draws with values of cells put in, some of a row's pairs to a word.

    Attributes
    ----------
    row : int64 (words,)
        Of each word, among the rows that have pairs.
    draws : float64 (words, variables, 64)
    first, word, slot : int64 (pairs,)
        Where the margins of a pair's row as it is are, in the first ``PROBES`` draws of a word;
        where those of the pair are: a word, and the number of ``PROBES`` draws in it.
    """

    row: Rows
    draws: Floats
    first: Rows
    word: Rows
    slot: Rows

    @classmethod
    def of(cls, pairs: Pairs, cells: list[Cell], drawn: Floats) -> Probes:
        """Put the values of pairs into the draws of their rows (rows, variables, PROBES)."""
        slots = WORD // PROBES
        row, counts = np.unique(pairs.row, return_inverse=True, return_counts=True)[1:]
        number = np.arange(len(row)) - np.searchsorted(pairs.row, pairs.row) + 1
        words = counts // slots + 1
        first = (np.cumsum(words) - words)[row]
        word, slot = first + number // slots, number % slots
        of_row = np.repeat(np.arange(len(counts)), words)
        draws = np.tile(drawn[of_row], (1, 1, slots))
        by_slot = draws.reshape(*draws.shape[:2], slots, PROBES)
        variable = np.array([cell.within.variable for cell in cells])
        value = np.array([cell.value for cell in cells])
        for cell in (pairs.first, pairs.second):
            some = np.flatnonzero(cell >= 0)
            by_slot[word[some], variable[cell[some]], slot[some]] = value[cell[some], None]
        return cls(of_row, draws, first, word, slot)

    def margins(self, margins: Floats) -> tuple[Floats, Floats]:
        """Those of pairs, and of their rows as they are, from all (words, 64, outputs)."""
        by_slot = margins.reshape(len(margins), WORD // PROBES, PROBES, -1)
        return by_slot[self.word, self.slot], by_slot[self.first, 0]


#: The least standard error of answers.
LeastError = Callable[[Rare, Told], Floats]


def cells_of(merged: Merged, density: Any) -> list[Cell]:
    """The cells of all variables that trees split on."""
    if not isinstance(density, Density):
        return []
    ensemble, found = merged.ensemble, list[Cell]()
    grid, nothing = Grid.of(ensemble), Evidence(np.full((1, len(density.variables_)), np.nan))
    for v in np.flatnonzero(ensemble.used).tolist():
        levels = int(ensemble.n_levels[v])
        if levels:
            if levels <= FEW_CELLS and v not in merged.classes:
                found += [Cell(Within(v, codes=(code,)), float(code)) for code in range(levels)]
            continue
        thresholds = np.asarray(grid.thresholds[v])
        thresholds = thresholds[np.isfinite(thresholds)]
        if not len(thresholds):
            continue
        ends = np.concatenate([[-np.inf], thresholds, [np.inf]])
        inside = np.concatenate([np.nextafter(thresholds[:1], -np.inf), thresholds])
        regions = [Within(v, *pair) for pair in pairwise(ends.tolist())]
        if len(regions) <= FEW_CELLS:
            found += map(Cell, regions, inside.tolist())
            continue

        def below(threshold: float, v: int = v) -> float:
            return float(np.exp(density.log_evidence(nothing, [Within(v, high=threshold)])[0]))

        # Few of the thresholds are asked about: their probabilities ascend.
        low = bisect_right(thresholds, ENDS, key=below)
        high = bisect_left(thresholds, 1 - ENDS, key=below)
        if low:
            found.append(
                Cell(Within(v, high=float(thresholds[low - 1])), float(inside[low - 1]), True)
            )
        if high < len(thresholds):
            found.append(
                Cell(Within(v, low=float(thresholds[high])), float(thresholds[high]), True)
            )
    return found


def masses(density: Density, evidence: Evidence, cells: list[Cell]) -> Floats:
    """The conditional probability of each cell, (rows, cells); 0 where its variable is known."""
    evidence = replace(evidence, odds=None, hypotheses=None)
    found = density.region_masses(evidence, [cell.within for cell in cells])
    missing = np.isnan(evidence.points[:, [cell.within.variable for cell in cells]])
    return np.where(missing & np.isfinite(found), found, 0.0)
