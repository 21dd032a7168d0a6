"""Rare values of missing variables: what few draws may all have missed, and what it would change.

The spread of groups of draws tells their error where all groups have met what matters. A value
whose conditional probability is ``m`` is met by ``n m`` of ``n`` draws: where that is little, the
groups may agree because none of them has met it. The density knows ``m``, and some of the draws,
with the value put in their place, tell what it would change. If ``d`` is the difference from the
mean, then among ``n`` independent draws the value alone gives the mean an error of
``sqrt(m d^2 / n)`` and the variance one of ``sqrt(m d^4 / n)``: no error is told to be less.

Groups may agree on a common value, too, where it is the only one that is missing: each of 8 groups
of a net meets it ``n m / 8`` times, rounded up or down at random, and all may be rounded alike.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.evidence import Evidence
from knothole.densities.base import Density, LatentDensity, Within
from knothole.expectation.tables import Grid
from knothole.sobol import GROUPS
from knothole.trees.in_variables import Merged

#: So many draws with a value tell its part of the error, group by group.
ENOUGH = 32.0
# Values that are less probable change no answer that is told.
NEVER = 1e-9
# A numeric variable with more cells than this has its two ends alone, each with at most this
# probability; a categorical variable with more cells has none. (Chosen on a table of correlated
# normal columns, three kinds of model, five densities; ends of 0.02 left twice as many errors of
# standard deviations beyond three reported ones.)
FEW_CELLS, ENDS = 8, 0.05
# Two cells together are rare where each is less probable than this.
BOTH = 0.15
# Two of them, that draws meet less often than this.
SELDOM = 0.05
# Pairs of rows and cells whose draws are in memory at once: a word of each. (Of 8 draws, one in
# twenty missed what a common value of another variable makes of a rare one.)
PAIRS_AT_ONCE = 1024


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
    """

    row: NDArray[np.intp]
    mass: Floats
    inside: Floats
    beside: Floats

    def sums(
        self, link: Callable[[Floats], Floats], n: int, value: Floats, *powers: int
    ) -> tuple[Floats, list[Floats]]:
        """Sums of m d^power over cells, (rows, answers), and the unit of d; of common cells, what
        nets leave of m.

        In units of a row's own, powers of two: so the fourth power of a large d is no infinity.
        """
        values, own = link(self.inside), link(self.beside)
        apart = np.abs(values - own.mean(axis=1, keepdims=True))
        largest = np.abs(value)
        np.maximum.at(largest, self.row, apart.max(axis=1, initial=0.0))
        unit = np.ldexp(1.0, np.frexp(largest)[1] - 1)
        square: Floats = ((apart / unit[self.row][:, None]) ** 2).mean(axis=1)
        # Each group meets a cell as often as it should, or once more.
        more = np.modf(n * self.mass / GROUPS)[0]
        weight = np.where(self.mass * n < ENOUGH, self.mass, GROUPS * more * (1 - more) / n)
        sums = []
        for power in powers:
            out = np.zeros_like(unit)
            np.add.at(out, self.row, weight[:, None] * square ** (power // 2))
            sums.append(out)
        return unit, sums

    def of(self, rows: NDArray[np.intp]) -> Rare:
        """Those of some rows, which are numbered anew."""
        number = np.full(int(max(rows.max(initial=0), self.row.max(initial=0))) + 1, -1)
        number[rows] = np.arange(len(rows))
        own = number[self.row]
        some = own >= 0
        return Rare(own[some], self.mass[some], self.inside[some], self.beside[some])

    def error_of_mean(self, link: Callable[[Floats], Floats], n: int, value: Floats) -> Floats:
        """The least standard error of means of ``n`` draws."""
        unit, (second,) = self.sums(link, n, value, 2)
        return np.asarray(unit * np.sqrt(second / n))

    def error_of_std(self, link: Callable[[Floats], Floats], n: int, value: Floats) -> Floats:
        """The least standard error of standard deviations of ``n`` draws."""
        unit, (second, fourth) = self.sums(link, n, value, 2, 4)
        variance = np.maximum((value / unit) ** 2, second)
        least = np.zeros_like(unit)
        np.divide(np.sqrt(fourth / n), 2 * np.sqrt(variance), out=least, where=variance > 0)
        return np.asarray(unit * least)

    def error_of_both(self, link: Callable[[Floats], Floats], n: int, value: Floats) -> Floats:
        """Of means and standard deviations side by side."""
        mean, std = np.split(value, 2, axis=1)
        return np.hstack([self.error_of_mean(link, n, mean), self.error_of_std(link, n, std)])


class Pairs(NamedTuple):
    """Rows, and one or two cells of each: the second is -1 where there is one."""

    row: NDArray[np.intp]
    first: NDArray[np.intp]
    second: NDArray[np.intp]
    mass: Floats


def pairs_of(mass: Floats, cells: list[Cell], draws: int, alone: Mask) -> Pairs:
    """Cells that ``draws`` hardly meet, and two of them together, as if these were independent.

    Rows that lack a single value (``alone``) have all their cells.
    """
    row, cell = np.nonzero((mass > NEVER) & ((mass * draws < ENOUGH) | alone[:, None]))
    found = [(row, cell, np.full_like(row, -1), mass[row, cell])]
    some = [c for c, each in enumerate(cells) if not each.end]
    for place, c in enumerate(some):
        others = [d for d in some[:place] if cells[d].within.variable != cells[c].within.variable]
        rows = np.flatnonzero((mass[:, c] > 0) & (mass[:, c] < BOTH))
        both = mass[rows][:, others] * mass[rows, c, None]
        at, other = np.nonzero((mass[rows][:, others] < BOTH) & (both * draws > SELDOM))
        of_both = both[at, other], np.array(others, dtype=np.intp)[other]
        found.append((rows[at], np.full_like(at, c), of_both[1], of_both[0]))
    parts = [np.concatenate(each) for each in zip(*found, strict=True)]
    order = np.argsort(parts[0], kind="stable")
    return Pairs(*(part[order] for part in parts))


#: The least standard error of answers, from the rare cells, the link, the number of draws, answers.
LeastError = Callable[[Rare, Callable[[Floats], Floats], int, Floats], Floats]


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
    out = np.zeros((len(evidence.points), len(cells)))
    missing = np.isnan(evidence.points)
    with np.errstate(invalid="ignore"):
        if isinstance(density, LatentDensity):
            terms = density.terms(evidence)
            log_p = density.combine(terms)
            for c, cell in enumerate(cells):
                v = cell.within.variable
                rows = np.flatnonzero(missing[:, v])
                if len(rows):
                    some = [term[rows] for term in terms]
                    some[v] = some[v] + density.log_region(cell.within)
                    out[rows, c] = np.exp(density.combine(some) - log_p[rows])
        else:
            log_p = density.log_evidence(evidence)
            for c, cell in enumerate(cells):
                rows = np.flatnonzero(missing[:, cell.within.variable])
                if len(rows):
                    found = density.log_evidence(evidence[rows], [cell.within])
                    out[rows, c] = np.exp(found - log_p[rows])
    return np.where(np.isfinite(out), out, 0.0)
