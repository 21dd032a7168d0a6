"""What trees and distributions say together before any row is seen.

A region of a numeric variable is an interval between two cuts of the ensemble, so its mass in
state k is the difference of two rows of a table of cumulative masses; a region of a categorical
variable is a set of codes, and its mass a sum of rows of a table of probabilities. Both kinds of
rows stand in one array, ``mass``: kernels for mixtures, latent trees, single trees and pairs of
trees all read from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.bits import unpack_at
from knothole.densities.univariate.base import Univariate
from knothole.trees.ensemble import Ensemble
from knothole.trees.in_variables import Merged
from knothole.trees.regions import arrivals


@dataclass(frozen=True, eq=False)
class Grid:
    """Every cut of an ensemble by its position among the distinct cuts of its variable.

    Attributes
    ----------
    cuts : tuple of float64 arrays
        Sorted distinct cuts of each variable; empty for a categorical one.
    offset : int64 (variables + 1,)
        First row of each variable in a table with ``len(cuts[v]) + 2`` rows for a numeric
        variable (below everything, below each cut, everything) and one row per code for a
        categorical one.
    position : int32 (nodes,)
        Row of the node's cut within its variable, from 1; 0 at leaves and categorical splits.
    """

    cuts: tuple[Floats, ...]
    offset: NDArray[np.int64]
    position: NDArray[np.int32]

    @classmethod
    def of(cls, ensemble: Ensemble) -> Grid:
        """The grid of an ensemble over variables."""
        numeric = (ensemble.feature >= 0) & (ensemble.set_start < 0)
        position = np.zeros(len(ensemble.feature), dtype=np.int32)
        cuts: list[Floats] = []
        rows: list[int] = []
        for v, n_levels in enumerate(ensemble.n_levels.tolist()):
            nodes = np.flatnonzero(numeric & (ensemble.feature == v))
            distinct, where = np.unique(ensemble.cut[nodes], return_inverse=True)
            position[nodes] = where + 1
            cuts.append(distinct)
            rows.append(n_levels if n_levels else len(distinct) + 2)
        offset = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        return cls(tuple(cuts), offset, position)

    def masses(self, distributions: Sequence[Univariate], merged: Merged) -> Floats:
        """Cumulative masses and probabilities of the distributions' states, (rows, states)."""
        n_levels = merged.ensemble.n_levels
        out = np.zeros((int(self.offset[-1]), distributions[0].n_states))
        for v, cuts in enumerate(self.cuts):
            rows = slice(int(self.offset[v]), int(self.offset[v + 1]))
            if n_levels[v]:
                mass, classes = np.exp(distributions[v].form.table), merged.classes.get(v)
                if classes is not None:
                    mass = np.stack([np.bincount(classes[:-1], each) for each in mass.T], axis=1)
                out[rows] = mass
                continue
            high = np.append(cuts, np.inf)
            low = np.full(len(high), -np.inf)
            below = distributions[v].mass(low, high, np.zeros(len(high), dtype=np.bool_))
            out[rows][1:] = np.maximum.accumulate(below, axis=0)
        return out


def not_recorded_mass(distributions: Sequence[Univariate], n_levels: NDArray[np.int32]) -> Floats:
    """Mass of the state "not recorded" of each numeric variable, (variables, states)."""
    out = np.zeros((len(n_levels), distributions[0].n_states))
    nowhere, flag = np.array([0.0]), np.array([True])
    for v, distribution in enumerate(distributions[: len(n_levels)]):
        if not n_levels[v]:
            out[v] = distribution.mass(nowhere, nowhere, flag)[0]
    return out


@dataclass(frozen=True, eq=False)
class Tables:
    """The arrays that exact kernels read, for an ensemble over variables and their distributions.

    Attributes
    ----------
    grid : Grid
        Positions of cuts.
    mass : float64 (grid rows, states)
        See the module's docstring.
    absent : float64 (variables, states)
        Mass of "not recorded" of numeric variables.
    """

    grid: Grid
    mass: Floats
    absent: Floats

    @classmethod
    def of(cls, merged: Merged, distributions: Sequence[Univariate]) -> Tables:
        """Tabulate an ensemble over variables against one distribution for each variable."""
        ensemble = merged.ensemble
        grid = Grid.of(ensemble)
        mass = grid.masses(distributions, merged)
        absent = not_recorded_mass(distributions, ensemble.n_levels)
        return cls(grid, mass, absent)


def left_probabilities(ensemble: Ensemble, tables: Tables) -> Floats:
    """Probability q of going left at a node, for every state, where the node's variable is a hole.

    It is mass(arriving and left) / mass(arriving). A state that gives the arriving region no mass
    carries no weight there either; q is 0 then.
    """
    grid, mass, absent = tables.grid, tables.mass, tables.absent
    arriving = arrivals(ensemble)
    out = np.zeros((len(ensemble.feature), mass.shape[1]))
    for v, n_levels in enumerate(ensemble.n_levels.tolist()):
        nodes = np.flatnonzero(ensemble.feature == v)
        rows = mass[grid.offset[v] : grid.offset[v + 1]]
        if n_levels:
            region = unpack_at(arriving.sets, arriving.set_start[nodes], n_levels)
            goes_left = unpack_at(ensemble.sets, ensemble.set_start[nodes], n_levels)
            total, part = region @ rows, (region & goes_left) @ rows
        else:
            low = np.searchsorted(grid.cuts[v], arriving.low[nodes]) + 1
            low[arriving.low[nodes] == -np.inf] = 0
            high = np.searchsorted(grid.cuts[v], arriving.high[nodes]) + 1
            high = np.maximum(high, low)
            middle = np.clip(grid.position[nodes], low, high)
            missing = arriving.missing[nodes, None]
            total = rows[high] - rows[low] + missing * absent[v]
            part = rows[middle] - rows[low]
            part += (missing & ensemble.missing_left[nodes, None]) * absent[v]
        np.divide(part, total, out=part, where=total > 0)
        out[nodes] = np.where(total > 0, part, 0.0)
    return out
