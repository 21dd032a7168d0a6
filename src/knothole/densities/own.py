"""A user's own density: anything with ``complete(X, draws)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from knothole.arrays import Floats
from knothole.columns.columns import Columns, Evidence
from knothole.errors import InvalidInput


class OwnDensity:
    """What completions need of a density, from an object that completes matrices of columns.

    ``density.complete(X, draws)`` is given a float64 matrix (rows, columns), categories as codes
    and holes as NaN, and returns (rows, draws, columns) with every hole filled; in nullable
    columns NaN says "not recorded".
    """

    def __init__(self, density: Any, columns: Columns) -> None:
        self.density = density
        self.columns_ = columns
        self.variables_ = columns.variables

    def __repr__(self) -> str:
        return repr(self.density)

    def extended(self, own: Evidence, target: Any) -> Evidence:
        """There is nothing beside the columns' own variables."""
        if target is not None:
            raise InvalidInput("target: a density of your own has none.")
        return own

    def complete_points(self, evidence: Evidence, draws: int, seed: int) -> Floats:
        """Points with every hole drawn from its conditional, (rows, draws, variables)."""
        matrix = self._matrix(evidence)
        drawn = np.asarray(self.density.complete(matrix, draws), dtype=np.float64)
        shape = (len(matrix), draws, len(self.columns_))
        if drawn.shape != shape:
            raise InvalidInput(
                f"density: {type(self.density).__name__}.complete must return {shape}, (rows, "
                f"draws, columns); got {drawn.shape}."
            )
        points = self.columns_.evidence(drawn.reshape(-1, shape[2])).points
        points = points.reshape(len(matrix), draws, -1)
        left = np.isnan(points).any(axis=(0, 1))
        if left.any():
            name = self.variables_[int(np.argmax(left))].name
            raise InvalidInput(
                f"density: {type(self.density).__name__}.complete left holes in {name!r}; every "
                f"draw must be complete."
            )
        return np.where(np.isnan(evidence.points)[:, None], points, evidence.points[:, None])

    def _matrix(self, evidence: Evidence) -> Floats:
        """Rows of columns; in blocks observed in part, what is excluded is 0."""
        matrix = self.columns_.decode(evidence.points)
        for v, rows, allowed in evidence.restricted():
            dummies = np.array(self.variables_[v].columns)
            matrix[np.ix_(rows, dummies)] = np.where(allowed[:, : len(dummies)], np.nan, 0.0)
        return matrix
