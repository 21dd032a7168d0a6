"""A game that is nearly the one to be explained and costs next to nothing.

Let z_j = E[f | x_j], by bins of x_j, over draws from the density. The surrogate's value of a
coalition is the linear regression of f on the z of its players,

    w(S) = E[f] + Cov(f, z_S) Cov(z_S)^-1 (z_S - E[z_S]).

Let players join in an order, L L' be Cov(z) in that order, u = L^-1 (z - E[z]) and
g = L^-1 Cov(z, f): then the k-th variable adds g_k u_k, and one factorization serves all rows. So
what players add on average is known from many orders. How far off it is along the few orders in
which v itself is valued tells how far off v's are (a control variate): most of what is due to the
choice of orders cancels out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.expectation.expectation import Expectation
from knothole.expectation.registry import completer_of

# Draws that the surrogate is learned from, and bins of a numeric variable.
_DRAWS, _BINS = 4096, 32
# What correlations are drawn towards 0 by, so that no variable is a sum of others.
_RIDGE = 1e-3

Orders = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The surrogate game of a model under its density.

    Attributes
    ----------
    edges : list of float64 arrays
        Between the bins of each variable.
    scores : list of float64 arrays (outputs, bins)
        z of each bin, in units of its standard deviation, 0 on average.
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
        """Learned from draws; of margins or of predictions."""
        ensemble, variables = expectation.ensemble, expectation.columns.variables
        nothing = Evidence(np.full((1, len(expectation.density.variables_)), np.nan))
        completer = completer_of(expectation.density)
        points = completer.complete_points(nothing, _DRAWS, expectation.seed)[0]
        points = np.ascontiguousarray(points[:, : len(variables)])
        f = (ensemble.margin if margins else ensemble.predict)(points, 1)
        f = f - f.mean(axis=0)
        edges, scores, z = [], [], np.empty((f.shape[1], *points.shape))
        for v, variable in enumerate(variables):
            cuts = np.unique(np.sort(points[:, v])[_DRAWS // _BINS :: _DRAWS // _BINS])
            edges.append(np.arange(1.0, len(variable.levels)) if variable.levels else cuts)
            bins = np.searchsorted(edges[v], points[:, v], "right")
            count = np.maximum(np.bincount(bins, minlength=len(edges[v]) + 1), 1)
            means = [np.bincount(bins, own, minlength=len(count)) / count for own in f.T]
            spread = np.stack(means)[:, bins].std(axis=1, keepdims=True)
            scores.append(np.stack(means) / np.where(spread > 0, spread, 1.0))
            z[:, :, v] = scores[v][:, bins]
        correlation = np.einsum("oni,onj->oij", z, z) / _DRAWS * (1 - _RIDGE)
        correlation[:, range(len(variables)), range(len(variables))] = 1.0
        return cls(edges, scores, correlation, np.einsum("oni,no->oi", z, f) / _DRAWS)

    def z(self, points: Floats, variables: Orders) -> Floats:
        """Scores of points, (rows, outputs, variables); 0 where nothing is known."""
        found = np.zeros((len(points), len(self.slope), len(variables)))
        for place, v in enumerate(variables):
            known = ~np.isnan(points[:, v])
            bins = np.searchsorted(self.edges[v], points[known, v], "right")
            found[known, :, place] = self.scores[v][:, bins].T
        return found

    def shares(self, variables: Orders, owner: Orders, orders: Orders) -> Floats:
        """What each player adds, by z of the variables, (orders, outputs, players, variables).

        Mean of an order and its reverse.

        Parameters
        ----------
        variables, owner : int arrays
            Variables that are told, and the player of each.
        orders : int (orders, players)
        """
        place = np.argsort(orders, axis=1)
        both = [self._one_way(variables, owner, way) for way in (place, -place)]
        added = (both[0] + both[1]) / 2
        own = owner == np.arange(orders.shape[1])[:, None]
        return np.stack([added[:, :, one].sum(axis=2) for one in own], axis=2)

    def _one_way(self, variables: Orders, owner: Orders, place: Orders) -> Floats:
        """What each variable adds, by z, (orders, outputs, variables, variables)."""
        order = np.argsort(place[:, owner], axis=1, kind="stable")
        at = variables[order]
        whole = self.correlation[:, at[:, :, None], at[:, None, :]]
        inverse = np.linalg.inv(np.linalg.cholesky(whole))
        added = (inverse * self.slope[:, at][:, :, None, :]).sum(axis=3, keepdims=True) * inverse
        back = np.argsort(order, axis=1)
        rows = np.arange(len(order))[:, None, None]
        return np.asarray(added[:, rows, back[:, :, None], back[:, None, :]].swapaxes(0, 1))
