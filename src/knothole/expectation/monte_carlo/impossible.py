"""Draws for rows that a density holds impossible: what makes them so is forgotten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from knothole.arrays import Floats
from knothole.columns.evidence import Evidence
from knothole.densities.base import LatentDensity, inverted
from knothole.errors import InvalidInput
from knothole.expectation.engine import warn_impossible


class ForgetsImpossible:
    """A density whose ``draw_points`` answers every row.

    Values that no state can have are taken for unknown; where the others still contradict each
    other, all of the row's are. A warning says so.
    """

    def __init__(self, density: LatentDensity) -> None:
        self.density = density
        self.coordinates, self.drawn_at_once = density.coordinates, density.drawn_at_once
        self.variables_ = density.variables_

    def complete_points(self, evidence: Evidence, draws: int, seed: int) -> Floats:
        """As the density's own, for every row."""
        return inverted(self, evidence, draws, seed)

    def draw_points(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        try:
            return np.asarray(self.density.draw_points(evidence, uniform))
        except InvalidInput:
            log_p = self.density.log_evidence(evidence)
            if not np.isneginf(log_p).any():
                raise
        warn_impossible(log_p)
        some = self._without_impossible_values(evidence)
        lost = np.isneginf(self.density.log_evidence(some))
        n_variables = evidence.points.shape[1]
        points = np.empty((len(lost), uniform.shape[1], n_variables))
        nothing = Evidence(np.full((int(lost.sum()), n_variables), np.nan))
        for rows, known in ((~lost, some[np.flatnonzero(~lost)]), (lost, nothing)):
            if rows.any():
                points[rows] = self.density.draw_points(known, uniform[rows])
        return points

    def _without_impossible_values(self, evidence: Evidence) -> Evidence:
        points = evidence.points.copy()
        for v, terms in enumerate(self.density.terms(evidence)):
            points[np.isneginf(terms).all(axis=1), v] = np.nan
        return replace(evidence, points=points)
