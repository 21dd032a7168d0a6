"""Kernels of walks compiled by using them: without a density, and most of what is to be imported.

For a process that compiles ahead of another: scikit-learn and pandas take as long as two kernels.
"""

from __future__ import annotations

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Column, Columns
from knothole.columns.evidence import Evidence
from knothole.compiled.sobol import COMMON, Points
from knothole.densities.gaussian.draws import Normals
from knothole.expectation.gaussian import SingleMissing
from knothole.expectation.monte_carlo.engine import MonteCarloEngine
from knothole.trees.ensemble import Ensemble, Nodes


def use_walks(ensemble: Ensemble | None = None, drawn: bool = True) -> None:
    """Use the kernels that walk for rows under a Gaussian mixture: drawn, with one hole, complete.

    First that of the points which rows share: it is soon needed.

    Examples
    --------
    >>> use_walks()
    """
    Points(0, 1).uniform(range(1), COMMON)
    ensemble = _small() if ensemble is None else ensemble
    nothing = _Nothing(len(ensemble.columns))
    walk = MonteCarloEngine(ensemble, nothing, 0)
    numbers = ensemble.feature[(ensemble.feature >= 0) & (ensemble.set_start < 0)]
    points = np.zeros((1, len(ensemble.columns)))
    points[:, numbers[:1]] = np.nan
    SingleMissing(ensemble, nothing.cut_scores, nothing.describe_number).margin(Evidence(points))
    if drawn:
        walk.margin(Evidence(np.full_like(points, np.nan)))
    ensemble.margin(np.zeros_like(points))


def _small() -> Ensemble:
    """A tree with one split."""
    children = np.array([1, 0, 0])
    nodes = Nodes(
        roots=np.zeros(1, dtype=np.int64), feature=np.array([0, -1, -1]), cut=np.zeros(3),
        left=children, right=children + 1, missing_left=np.zeros(3, dtype=np.bool_),
        value=np.arange(3.0)[:, None], native_leaf=np.arange(3),
    )  # fmt: skip
    columns = Columns((Column("x"),))
    return Ensemble.build(nodes, columns=columns, base=0.0, library="none", precision="float64")


class _Nothing:
    """A density that draws nothing but zeros, and whose normals are all alike."""

    def __init__(self, n_variables: int) -> None:
        self.coordinate_variables = np.arange(n_variables)

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """Zeros for all draws."""
        rows, variables = evidence.points.shape
        return np.zeros((rows, variables, uniform.shape[1])).transpose(0, 2, 1)

    def cut_scores(self, variable: int, cuts: Floats) -> Floats:
        """Zero for all cuts."""
        return np.zeros(len(cuts))

    def describe_number(self, evidence: Evidence) -> Normals:
        """Standard normals."""
        share, mean = np.ones((1, 1)), np.zeros((1, 1))
        return Normals(share, mean, share)
