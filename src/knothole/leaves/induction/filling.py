"""Completions of a table, of the table's own class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.columns.outputs import filled
from knothole.columns.read import class_of
from knothole.densities.base import Density
from knothole.expectation.registry import completer_of

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Completions:
    """Rows of a table whose holes can be drawn.

    Attributes
    ----------
    parts : tuple of (Density, rows)
        What the holes of some rows are drawn from; every row is in one part.
    table : table
    matrix : float64 (rows, columns)
        The rows, encoded.
    gone : bool (rows, columns)
        Their holes; what else is NaN stays so.
    target : array (rows,) or None
        Targets as the densities take them.
    redraw : float
        Part of the variables observed in an incomplete row that are drawn anew as well, others in
        every draw. The rows are still draws from p.
    """

    parts: tuple[tuple[Density, Rows], ...]
    table: Any
    matrix: Floats
    gone: Mask
    target: NDArray[Any] | None = None
    redraw: float = 0.0

    @property
    def incomplete(self) -> Mask:
        """Rows that have holes, (rows,)."""
        return np.asarray(self.gone.any(axis=1))

    def drawn(self, draws: int, seed: int) -> Floats:
        """What was drawn, encoded, NaN where nothing was: (incomplete rows, draws, columns)."""
        numbers = np.cumsum(self.incomplete) - 1
        out = np.full((int(self.incomplete.sum()), draws, self.gone.shape[1]), np.nan)
        for density, of in self.parts:
            rows = of[self.incomplete[of]]
            if not len(rows):
                continue
            if self.redraw == 0:
                out[numbers[rows]] = self._drawn(density, rows, self.gone[rows], draws, seed)
                continue
            for draw in range(draws):
                rng = np.random.default_rng([seed, draw])
                hidden = self.gone[rows] | self._redrawn(density, rows, rng)
                new = self._drawn(density, rows, hidden, 1, int(rng.integers(2**31)))
                out[numbers[rows], draw] = new[:, 0]
        return out

    def _redrawn(self, density: Density, rows: Rows, rng: np.random.Generator) -> Mask:
        """Entries that are hidden too, whole variables at a time."""
        hidden = np.zeros((len(rows), self.gone.shape[1]), dtype=np.bool_)
        for variable in density.columns_.variables:
            members = list(variable.columns)
            known = ~np.isnan(self.matrix[rows][:, members]).any(axis=1)
            hidden[:, members] = (known & (rng.random(len(rows)) < self.redraw))[:, None]
        return hidden

    def _drawn(self, density: Density, rows: Rows, hidden: Mask, draws: int, seed: int) -> Floats:
        columns = density.columns_
        own = columns.evidence(np.where(hidden, np.nan, self.matrix[rows]), hidden)
        given = None if self.target is None else self.target[rows]
        evidence = density.extended(own, given)
        points = completer_of(density).complete_points(evidence, draws, seed)
        points = points[:, :, : len(columns.variables)].reshape(len(rows) * draws, -1)
        matrix = columns.decode(points).reshape(len(rows), draws, -1)
        return np.where(hidden[:, None, :], matrix, np.nan)

    def expanded(self, draws: int, seed: int, complete: int = 1) -> tuple[Any, Rows]:
        """Incomplete rows ``draws`` times, others ``complete`` times; and which row each is of."""
        row = np.repeat(np.arange(len(self.gone)), np.where(self.incomplete, draws, complete))
        matrix = np.full((len(row), self.gone.shape[1]), np.nan)
        matrix[self.incomplete[row]] = self.drawn(draws, seed).reshape(-1, matrix.shape[1])
        return self.filled(row, matrix), row

    def filled(self, row: Rows, matrix: Floats) -> Any:
        """Rows by number, with what was drawn for each of them."""
        table = take(self.table, row)
        if hasattr(table, "reset_index"):
            table = table.reset_index(drop=True)
        return filled(table, self.parts[0][0].columns_, matrix, ~np.isnan(matrix))


def aligned(params: Mapping[str, Any], n: int, rows: Rows) -> dict[str, Any]:
    """Parameters of ``fit`` for some of n rows: those that go with rows are taken along."""
    return {
        name: take(value, rows) if hasattr(value, "__len__") and len(value) == n else value
        for name, value in params.items()
    }


def take(values: Any, rows: Rows) -> Any:
    """Some rows of a table, or of what goes with its rows."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    kind = class_of(values)
    if kind is not None and kind[0] == "pyarrow":
        return values.take(rows)
    return np.asarray(values)[rows] if kind is None else values[rows]
