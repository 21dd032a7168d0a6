"""Draws of a Gaussian mixture, 64 at a time: tables for ``core/gaussian_draws.cpp``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import gaussian_draws as core
from knothole.arrays import Floats, Words
from knothole.columns.evidence import Evidence
from knothole.densities.gaussian.kernels import PackedComponents
from knothole.densities.gaussian.normal_scores import Maps, NormalScores
from knothole.sobol import WORD


class Discrete(NamedTuple):
    """Discrete distributions as plain arrays.

    Attributes
    ----------
    variable : int64 (distributions,)
        The variable of each distribution.
    flag : bool (distributions,)
        Whether its codes say if a numeric variable is recorded (code 0) or not (code 1).
    first_code : int64 (distributions + 1,)
        First row of each in ``probability``.
    probability : float64 (codes, k)
        Of every code in each component.
    first_word : int64 (distributions,)
        First word of the variable in ``Evidence.allowed``; -1 where it has none.
    """

    variable: NDArray[np.int64]
    flag: NDArray[np.bool_]
    first_code: NDArray[np.int64]
    probability: Floats
    first_word: NDArray[np.int64]


class Normals(NamedTuple):
    """A mixture of normals for each row: shares, means and standard deviations, (rows, k) each."""

    share: Floats
    mean: Floats
    deviation: Floats


class DrawTables(NamedTuple):
    """A fitted mixture as plain arrays.

    Attributes
    ----------
    packed : PackedComponents
    sharpness : float64 (d, k)
        Log p is lowered by half the product of this and the variance of a score.
    maps : Maps
    numeric : int64 (d,)
        The variable of each column of ``maps``.
    discrete : Discrete
    """

    packed: PackedComponents
    sharpness: Floats
    maps: Maps
    numeric: NDArray[np.int64]
    discrete: Discrete


class Drawing:
    """A fitted mixture in the form for draws."""

    def __init__(
        self,
        packed: PackedComponents,
        sharpness: Floats,
        scores: NormalScores,
        numeric: NDArray[np.int64],
        discrete: Discrete,
    ) -> None:
        numeric = np.ascontiguousarray(numeric)
        self.tables = DrawTables(packed, sharpness, scores.maps, numeric, discrete)

    def draw(self, evidence: Evidence, uniform: Floats) -> Floats:
        """See :meth:`knothole.densities.base.Density.draw`."""
        n = uniform.shape[1]
        uniform = uniform.transpose(0, 2, 1)
        if n % WORD:
            uniform = np.pad(uniform, [(0, 0), (0, 0), (0, -n % WORD)], constant_values=0.5)
        uniform = np.ascontiguousarray(uniform)
        out = np.empty((*evidence.points.shape, uniform.shape[2]))
        core.fill(self.tables, *_known(evidence), uniform, out)
        return out[:, :, :n].transpose(0, 2, 1)

    def describe_number(self, evidence: Evidence) -> Normals:
        """The distribution of the score of each row's only missing number."""
        k = len(self.tables.packed.log_weight)
        normals = Normals(*np.empty((3, len(evidence.points), k)))
        core.describe(self.tables, *_known(evidence), *normals)
        return normals


def _known(evidence: Evidence) -> tuple[Floats, Words, Floats, Floats]:
    """Points, sets of codes, odds of missing values and probabilities of the hypotheses."""
    points, allowed = evidence.points, evidence.allowed
    if allowed is None:
        allowed = np.empty((len(points), 0), dtype=np.uint64)
    chance, odds = np.ones((1, 1)), np.ones((1, 1, points.shape[1]))
    if evidence.odds is not None or evidence.hypotheses is not None:
        chance, odds = evidence.odds_by_hypothesis()
    points, allowed = np.ascontiguousarray(points), np.ascontiguousarray(allowed)
    return points, allowed, np.ascontiguousarray(odds), np.ascontiguousarray(chance)
