"""Slow, obvious twins of leaf probabilities: enumerate all cells of missing values and add up.

A cell is a category of a categorical variable, an interval between neighbouring thresholds of a
numeric one, or "not recorded". Its probability comes from the density's own ``log_evidence`` with
regions, and its leaves from walking the trees with one representative.
"""

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from knothole.columns.columns import NOT_RECORDED
from knothole.columns.evidence import Evidence
from knothole.densities.base import LatentDensity, Within
from knothole.trees.in_variables import in_variables


@dataclass(frozen=True)
class Answer:
    """Everything that follows from the leaf probabilities of one row, by enumeration."""

    leaf_probabilities: np.ndarray  # (leaves,)
    pairs: np.ndarray  # (leaves, leaves)
    margins: np.ndarray  # (cells, outputs)
    probability: np.ndarray  # (cells,)
    leaves: np.ndarray  # (cells, trees)

    @property
    def mean(self):
        return self.probability @ self.margins

    @property
    def variance(self):
        return self.probability @ (self.margins - self.mean) ** 2

    def mean_of(self, function):
        return self.probability @ function(self.margins)


def cells_of(ensemble, density, v):
    """(region, representative point) of every cell of variable ``v``."""
    variable = density.variables_[v]
    if variable.levels:
        return [(Within(v, codes=(c,)), float(c)) for c in range(len(variable.levels))]
    thresholds = np.unique(ensemble.threshold[(ensemble.feature == v) & (ensemble.set_start < 0)])
    edges = [-np.inf, *thresholds[np.isfinite(thresholds)], np.inf]
    cells = []
    for low, high in pairwise(edges):
        point = low if np.isfinite(low) else (high - 1.0 if np.isfinite(high) else 0.0)
        cells.append((Within(v, low, high), point))
    if variable.nullable:
        cells.append((Within(v, 0.0, 0.0, not_recorded=True), NOT_RECORDED))
    return cells


def enumerate_row(original, density, evidence, row):
    """The answer for one row of evidence."""
    ensemble = in_variables(original, density.columns_)
    n_variables = len(ensemble.columns)
    one = evidence[row : row + 1]
    incomplete = [v for v in range(n_variables) if np.isnan(one.points[0, v])]
    allowed = {v: sets[0] for v, _, sets in one.restricted()}
    options = []
    for v in incomplete:
        cells = cells_of(ensemble, density, v)
        if v in allowed:
            cells = [cell for cell in cells if allowed[v][cell[0].codes[0]]]
        options.append(cells)
    log_p, points = [], []
    for cells in product(*options):
        point = one.points[0, :n_variables].copy()
        for region, value in cells:
            point[region.variable] = value
        # Whole missing values only: the regions say what is allowed.
        plain = Evidence(one.points)
        log_p.append(LatentDensity.log_evidence(density, plain, [cell[0] for cell in cells])[0])
        points.append(point)
    log_p = np.array(log_p)
    probability = np.exp(log_p - log_p.max())
    probability /= probability.sum()
    leaves = ensemble.leaves(np.array(points), 1)
    indicator = np.zeros((len(points), ensemble.n_leaves))
    np.put_along_axis(indicator, leaves, 1.0, axis=1)
    return Answer(
        leaf_probabilities=probability @ indicator,
        pairs=indicator.T @ (probability[:, None] * indicator),
        margins=ensemble.margin(np.array(points), 1),
        probability=probability,
        leaves=leaves,
    )
